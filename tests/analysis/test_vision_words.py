"""What the page Vision says of two looks, and of an image file."""

import io

import numpy as np
import pytest
from PIL import Image

from analysis import vision as words
from analysis import vision_figures as figures
from focus_core.errors import InvalidInput
from tests.app import fake_vision

CLASSES = ("T-shirt", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")


@pytest.fixture(scope="module")
def looked():
    request = {"models": ["tiny-softmax", "tiny-g3b"], "pixels": "AAECAwQ="}
    found = fake_vision.result(request)["models"]
    return [
        words.unpack(m, word, kind, CLASSES)
        for m, word, kind in zip(found, ("softmax", "KArAt"), ("softmax", "karat"), strict=True)
    ]


def test_the_answer_names_both_predictions_sums_and_signs(looked):
    said = words.answer(looked, 9, 1, 2, 4)
    row = looked[1].maps[1, 2, 4]
    assert said.startswith("Shown an ankle boot, softmax says Sneaker (82.0 %) and KArAt says Ankle boot (82.0 %).")
    assert "Softmax's weights here add up to 1.00 and none is negative" in said
    assert f"KArAt's weights here add up to {words.number(float(row.sum()))}" in said
    assert f"{100 * (row < 0).mean():.1f} % are negative" in said
    for label, name in ((0, "a T-shirt"), (1, "trousers"), (8, "a bag")):
        assert words.answer(looked, label, 0, 0, 0).startswith(f"Shown {name}, ")
    assert words.answer(looked, None, 0, 0, 0).startswith("Shown your image, softmax")


def test_shares_of_a_row_keep_their_signs_and_add_up_to_one_without_them(looked):
    share = looked[1].row(0, 0, 3, words.SHARE)
    weight = looked[1].row(0, 0, 3, words.WEIGHT)
    assert np.abs(share).sum() == pytest.approx(1)
    assert (np.sign(share) == np.sign(weight)).all()
    table = words.table(looked, 0, 0, 3)
    assert len(table) == 50
    assert table["KArAt share"].to_numpy() == pytest.approx(share)
    assert table["token"][8] == "row 2, column 1"


def test_the_patch_that_is_taken_away_most_is_never_the_class_token(looked):
    token = words.most_negative(looked[1], 2, 1)
    row = looked[1].maps[2, 1, 0]
    assert token == 1 + int(np.argmin(row[1:]))
    assert words.most_negative(looked[0], 2, 1) == 0


def test_models_of_one_kind_are_called_by_their_titles():
    assert words.words_of(["softmax", "karat"], ["a", "b"]) == ["softmax", "KArAt"]
    assert words.words_of(["karat", "karat"], ["Tiny, G1", "Tiny, G3"]) == ["G1", "G3"]
    assert words.words_of(["karat", "karat"], ["Tiny, G1", "Small, G1"]) == ["Tiny, G1", "Small, G1"]


def test_two_learned_models_share_the_legend_of_what_they_share(looked):
    fig = figures.curves_figure([looked[1], looked[1]], 0, 0, 0)
    named = [trace.name for trace in fig.data if trace.showlegend is not False]
    assert named.count("all 50 keys") == named.count("softmax of the same scores") == 1


def test_curves_lie_over_the_scores_with_softmax_beside(looked):
    fig = figures.curves_figure(looked, 1, 0, 0)
    named = [trace.name for trace in fig.data if trace.type == "scatter"]
    assert named[0] == "eˣ over the row's sum"
    assert named[1] == "all 50 keys"
    assert sum(name.startswith("key: ") for name in named) == figures.NAMED
    assert named[-1] == "softmax of the same scores"
    counted = [sum(trace.y) for trace in fig.data if trace.type == "bar"]
    assert counted[0] == 2500
    row = looked[0].scores[1, 0, 0]
    assert figures.softmax_of(row, row).sum() == pytest.approx(1, abs=1e-5)
    bent = figures.most_bent(looked[1].curves, 1, 0)
    swing = np.ptp(looked[1].curves.own[1, 0], axis=-1)
    assert swing[bent[0]] == swing.max()
    assert len(figures.curves_table(looked, 1, 0)) == 50 * fake_vision.POINTS


def file_of(picture: Image.Image, kind: str = "PNG") -> bytes:
    made = io.BytesIO()
    picture.save(made, kind)
    return made.getvalue()


def test_a_file_becomes_what_the_models_read_and_every_change_is_said():
    pixels, said = words.converted(file_of(Image.new("RGB", (90, 60), "white")), 28, 1)
    assert pixels.shape == (1, 28, 28)
    assert pixels.dtype == np.uint8
    assert pixels.max() == 0
    assert [part.split()[0] for part in said] == ["scaled", "its", "turned"]
    ready = np.zeros((28, 28), np.uint8)
    ready[8:20, 8:20] = 200
    same, nothing = words.converted(file_of(Image.fromarray(ready)), 28, 1)
    assert (same[0] == ready).all()
    assert nothing == []


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P", "1", "L", "CMYK", "I;16"])
def test_pictures_of_every_kind_are_read(mode):
    kind = "TIFF" if mode == "CMYK" else "PNG"
    pixels, _ = words.converted(file_of(Image.new(mode, (40, 31)), kind), 28, 1)
    assert pixels.shape == (1, 28, 28)


def test_greys_of_16_bits_keep_their_shades():
    ramp = np.tile(np.arange(28) * 9, (28, 1))
    ramp[:, -1] = ramp[0] = ramp[-1] = 0
    pixels, said = words.converted(file_of(Image.fromarray((ramp * 257).astype(np.uint16))), 28, 1)
    assert (pixels[0] == ramp).all()
    assert said == []


def test_a_clear_image_on_a_transparent_ground_is_read_as_on_white():
    made = Image.new("RGBA", (28, 28), (0, 0, 0, 0))
    made.paste((0, 0, 0, 255), (9, 9, 19, 19))
    pixels, said = words.converted(file_of(made), 28, 1)
    assert pixels[0, 14, 14] == 255
    assert pixels[0, 0, 0] == 0
    assert any("negative" in part for part in said)


@pytest.mark.parametrize("data", [b"", b"nothing of the kind", file_of(Image.new("L", (64, 64)))[:60]])
def test_what_is_no_picture_is_refused(data):
    with pytest.raises(InvalidInput, match="no picture that can be read"):
        words.converted(data, 28, 1)


def test_a_picture_too_large_is_refused_by_its_header(monkeypatch):
    monkeypatch.setattr(words, "MOST_PIXELS", 1000)
    with pytest.raises(InvalidInput, match="40 x 40 pixels"):
        words.converted(file_of(Image.new("L", (40, 40))), 28, 1)


def test_a_picture_that_would_unfold_into_more_than_is_safe_is_called_large_and_not_broken(monkeypatch):
    data = file_of(Image.new("L", (9, 9)))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)
    with pytest.raises(InvalidInput, match="more pixels than can be opened safely"):
        words.converted(data, 28, 1)
