"""Pictures of every depth and kind, damaged ones, and arrays that are no images."""

import io

import numpy as np
import pytest
import torch
from PIL import Image

from analysis.vision import converted
from focus_core.errors import InvalidInput
from focus_core.vision import data
from focus_core.vision.config import AttentionConfig
from focus_core.vision.xattention import kept_pairs

RAMP = np.tile(np.linspace(0, 255, 28), (28, 1)).round()
RAMP[0] = RAMP[-1] = RAMP[:, -1] = 0


def _bytes(model_image):
    return ((model_image[0, 0] * data.SPREAD + data.MEAN) * 255).numpy()


@pytest.mark.parametrize(
    "values",
    [
        (RAMP * 257).astype(np.uint16),
        (RAMP * 257).astype(np.int32),
        RAMP.astype(np.int32),
        RAMP.astype(np.float32),
        (RAMP / 255).astype(np.float32),
    ],
    ids=["I;16", "I", "I to 255", "F", "F to 1"],
)
def test_deep_greys_keep_their_shades(values):
    np.testing.assert_allclose(_bytes(data.prepare_image(Image.fromarray(values))), RAMP, atol=0.6)


def test_a_clear_ground_is_white_and_a_cameras_turn_is_undone(tmp_path):
    made = Image.new("L", (28, 28), 0)
    made.paste(60, (9, 9, 19, 19))
    made.save(tmp_path / "clear.png", transparency=0)
    with Image.open(tmp_path / "clear.png") as opened:
        seen = _bytes(data.prepare_image(opened))
    assert seen[14, 14] == pytest.approx(195, abs=0.6)
    assert seen[0, 0] == pytest.approx(0, abs=0.6)
    turned = Image.new("RGB", (28, 28))
    turned.paste((255, 255, 255), (10, 2, 18, 8))
    turn = Image.Exif()
    turn[0x0112] = 3
    turned.save(tmp_path / "turned.png", exif=turn)
    with Image.open(tmp_path / "turned.png") as opened:
        seen = _bytes(data.prepare_image(opened))
    assert seen[23, 14] > 250
    assert seen[4, 14] < 5


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (np.full((28, 28), np.nan), "not finite"),
        (np.full((28, 28, 3), np.inf), "not finite"),
        (np.array([["a"]]), "not finite numbers"),
        (Image.fromarray(np.full((9, 9), np.nan, np.float32)), "not finite"),
        (Image.new("L", (0, 5)), "0 x 5"),
    ],
)
def test_what_holds_no_pixels_is_refused(given, said):
    with pytest.raises(InvalidInput, match=said):
        data.prepare_image(given)


@pytest.mark.parametrize("size", [(40, 90), (90, 40), (28, 28), (13, 28)])
def test_the_page_and_the_command_frame_a_picture_alike(size):
    shades = np.random.default_rng(3).integers(0, 256, size[::-1], np.uint8)
    shades[0] = shades[-1] = 230
    shades[:, 0] = shades[:, -1] = 230
    saved = io.BytesIO()
    Image.fromarray(shades).save(saved, "PNG")
    shown, _ = converted(saved.getvalue(), 28, 1)
    np.testing.assert_allclose(_bytes(data.prepare_image(Image.fromarray(shades))), shown[0], atol=0.6)


def test_half_precision_keeps_the_blocks_that_fp32_keeps():
    torch.manual_seed(0)
    query, key = torch.randn(2, 2, 3, 197, 16).bfloat16()
    config = AttentionConfig("xattention", stride=4, block=16, threshold=0.8)
    assert torch.equal(kept_pairs(query, key, config, 0.25), kept_pairs(query.float(), key.float(), config, 0.25))
