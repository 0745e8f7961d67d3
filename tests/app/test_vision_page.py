"""The page Vision without a browser: no models, one of them, and what its handler refuses."""

import base64
from types import SimpleNamespace

import numpy as np
import pytest

from focus_core.errors import InvalidInput
from focus_core.handlers import vision as handler
from focus_core.vision import models
from tests.app import fake_vision
from tests.app.opening import app, said


@pytest.fixture
def start(monkeypatch, tmp_path):
    monkeypatch.setenv("FOCUS_LAB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(models, "FOLDER", tmp_path / "models")
    (tmp_path / "models").mkdir()
    with app(monkeypatch, "vision") as open_page:
        yield open_page


def test_without_models_the_page_says_what_is_missing_and_keeps_its_records(start):
    at = start()
    words = said(at)
    assert "No trained vision model is on this machine" in words
    assert "data.build.vision" in words
    assert [tab.label for tab in at.tabs] == ["Training", "Fewer pairs"]


def test_one_model_is_looked_with_alone(start):
    fake_vision.write_models(models.FOLDER, ("softmax",))
    words = said(start())
    assert "Shown an ankle boot, softmax says Sneaker" in words
    assert "KArAt says" not in words


def test_the_try_button_picks_a_patch(start):
    fake_vision.write_models(models.FOLDER)
    at = start(vision_layer="2")
    at.button(key="vision_try").click().run()
    assert at.session_state["_vision_token"] > 0
    assert at.query_params["vision_token"] == str(at.session_state["_vision_token"])


def request(**changes):
    pixels = base64.b64encode(bytes(28 * 28)).decode()
    return {"models": ["tiny-softmax"], "pixels": pixels, "side": 28, "channels": 1, **changes}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"models": []}, "No vision models"),
        ({"models": ["nope"]}, "no vision model 'nope'"),
        ({"models": [[]]}, "no vision model"),
        ({"side": 8}, "reads images of 28 x 28"),
        ({"pixels": "AAAA"}, "has 3 numbers"),
        ({"pixels": "no base64!"}, "has 0 numbers"),
    ],
)
def test_the_handler_refuses_what_it_cannot_look_at(monkeypatch, tmp_path, changes, words):
    monkeypatch.setattr(models, "FOLDER", fake_vision.write_models(tmp_path))
    with pytest.raises(InvalidInput, match=words):
        handler.estimate(request(**changes), None)


def test_a_look_of_real_models_is_what_the_models_compute(monkeypatch, tmp_path):
    import torch

    from analysis.vision import unpack
    from focus_core.vision.config import PRESETS
    from focus_core.vision.data import normalise
    from focus_core.vision.models import load_vision_model, save_vision_model
    from focus_core.vision.vit import ViT

    torch.manual_seed(0)
    about = {"data": "fashion", "seed": 0, "accuracy": 0.1}
    for name, change in (("a", {}), ("b", {"kind": "karat"}), ("c", {"kind": "karat", "rank": None, "grid": 1})):
        model = ViT(PRESETS["tiny"].with_attention(**change))
        save_vision_model(model, tmp_path / name, title=name, **about)
    monkeypatch.setattr(models, "FOLDER", tmp_path)
    pixels = np.random.default_rng(0).integers(0, 256, (1, 28, 28), np.uint8)
    context = SimpleNamespace(check=lambda: None, progress=lambda *_: None)
    given = base64.b64encode(pixels.tobytes()).decode()
    for names in (["a", "b"], ["c"]):
        found = handler.run(request(models=names, pixels=given), context)
        assert found["seconds"] < 5
        for part in found["models"]:
            look = unpack(part, "", "", tuple("0123456789"))
            operator = load_vision_model(part["name"]).operator(1)
            weights = torch.from_numpy(look.scores)
            if operator is None:
                assert look.curves is None
                expected = weights[1:2].softmax(-1)
            else:
                expected = operator(weights[1:2]).detach()
                _own_curve_is_the_derivative(operator, look)
            assert look.maps[1] == pytest.approx(expected[0].numpy(), abs=5e-3)
    model = load_vision_model("a")
    assert look.probabilities.sum() == pytest.approx(1)
    assert model(normalise(pixels)).shape == (1, 10)


def _own_curve_is_the_derivative(operator, look):
    """Moving one key's score moves its weight along its own curve and nothing else of it."""
    import torch

    curves, head, key = look.curves, 2, 7
    x = curves.x[1, head]
    scores = torch.zeros(1, 3, 50, 50)
    values = []
    for point in (4, 30):
        scores[0, head, 0, key] = float(x[point])
        values.append(operator(scores)[0, head, 0, key].item())
    own = curves.own[1, head, key]
    assert values[1] - values[0] == pytest.approx(float(own[30] - own[4]), abs=2e-3)
