"""The command ``vision``: a model trained, tested and looked at, and what it refuses."""

import json

import numpy as np
import pytest
from PIL import Image

from focus_core.cli import main
from focus_core.vision.models import vision_models


def _json(capsys, *arguments):
    assert main(["vision", *arguments, "--json", "-"]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_model_is_trained_and_listed(tmp_path, capsys):
    out = tmp_path / "mine"
    found = _json(
        capsys, "train", "--attention", "karat", "--rank", "2", "--limit", "120", "--epochs", "1", "--out", str(out)
    )
    assert found["model"]["attention"]["rank"] == 2
    assert len(found["validation"]) == 1
    assert found["command"].startswith("python -m focus_core vision train")
    (info,) = vision_models(tmp_path)
    assert info.accuracy == found["accuracy"]
    assert not (out / "training.ckpt").exists()
    assert main(["vision", "train", "--limit", "1", "--out", str(out)]) == 2
    assert "held out" in capsys.readouterr().err


def test_the_table_counts_the_published_shapes(capsys):
    rows = {(r["shape"], r["attention"]): r for r in _json(capsys, "table")["shapes"]}
    assert rows["vit-tiny", "G3B"]["operator_parameters"] == 765_936
    assert main(["vision", "table"]) == 0
    assert "765,936" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["eval", "--model", "none-such"], "no vision model"),
        (["look"], "needs --model"),
        (["train"], "--out"),
        (["train", "--size", "vit-base", "--out", "x"], "to be counted"),
        (["train", "--size", "tiny", "--data", "/none", "--out", "x"], "dataset-fashion-mnist"),
        (["train", "--rank", "many", "--out", "x"], "--rank"),
        (["train", "--attention", "xattention", "--out", "x"], "not trained"),
        (["train", "--device", "nowhere", "--out", "x"], "no device"),
        (["train", "--limit", "-5", "--out", "x"], "--limit"),
        (["train", "--seed", "9" * 20, "--out", "x"], "--seed"),
        (["train", "--out", __file__], "a file"),
        (["look", "--model", "digits-softmax", "--image", "\u00b2"], "no picture"),
        (["look", "--model", "digits-softmax", "--image", "/"], "no picture"),
        (["look", "--model", "digits-softmax", "--attention", "karat"], "not trained with KArAt"),
    ],
)
def test_what_cannot_be_done_is_said(capsys, arguments, said):
    assert main(["vision", *arguments]) == 2
    assert said in capsys.readouterr().err


def test_damaged_pictures_and_checkpoints_are_refused_by_name(tmp_path, capsys):
    cut, blank, checkpoint = (tmp_path / name for name in ("cut.png", "nan.tiff", "training.ckpt"))
    pixels = np.random.default_rng(0).integers(0, 256, (99, 99), dtype=np.uint8)
    Image.fromarray(pixels).save(cut)
    cut.write_bytes(cut.read_bytes()[:4000])
    Image.fromarray(np.full((9, 9), np.nan, np.float32)).save(blank)
    for picture, said in ((cut, "no picture that can be read"), (blank, "not finite")):
        assert main(["vision", "look", "--model", "digits-softmax", "--image", str(picture)]) == 2
        assert said in capsys.readouterr().err
    checkpoint.write_bytes(b"half of a checkpoint")
    assert main(["vision", "train", "--limit", "60", "--epochs", "1", "--out", str(tmp_path)]) == 2
    assert "Remove it to begin anew" in capsys.readouterr().err
