"""Images: Fashion-MNIST from Debian's package, the few that ship, scikit-learn's digits, and a person's own."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from focus_core.assets import DATA
from focus_core.errors import InvalidInput, NotAvailable

if TYPE_CHECKING:
    import torch
    from PIL import Image

NAMES = (
    "T-shirt", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip
DIGITS = tuple("0123456789")
SHIPPED = DATA / "vision" / "fashion-test.npz"
DEBIAN = Path("/usr/share/datasets/fashion-mnist")
MEAN, SPREAD = 0.286, 0.353
"""Of Fashion-MNIST's training pixels, from 0 to 1; used for all images."""
BLACK = -MEAN / SPREAD
"""A black pixel after normalising."""
_FILES = {"train": "train", "test": "t10k"}


def normalise(images: np.ndarray | torch.Tensor) -> torch.Tensor:
    """uint8 images [batch, side, side] to what a model takes: [batch, 1, side, side] in float32."""
    import torch

    given = torch.tensor(images) if isinstance(images, np.ndarray) else images
    return ((given.float() / 255 - MEAN) / SPREAD).unsqueeze(1)


def fashion_mnist(split: str, folder: str | Path | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Fashion-MNIST (Zalando, MIT).

    Args:
        split: ``train`` (60,000) or ``test`` (10,000).
        folder: where the four idx.gz files are; by default where Debian's package puts them.

    Returns:
        Images [n, 28, 28] uint8 and labels [n] int64.

    Raises:
        NotAvailable: the files are not there.
        InvalidInput: there is no such split, or a file is damaged.
    """
    if split not in _FILES:
        raise InvalidInput(f"There is no split {split!r}.", "There are train and test.")
    place = Path(folder or DEBIAN)
    images, labels = (place / f"{_FILES[split]}-{kind}-ubyte.gz" for kind in ("images-idx3", "labels-idx1"))
    if not (images.is_file() and labels.is_file()):
        raise NotAvailable(
            f"Fashion-MNIST is not in {place}.",
            "apt-get install dataset-fashion-mnist puts it in /usr/share/datasets; or name a folder with its files.",
        )
    x, y = _idx(images), _idx(labels)
    if x.ndim != 3 or len(x) != len(y):
        raise InvalidInput(f"{images} does not hold images for the labels in {labels}.")
    return x, y.astype(np.int64)


def shipped_images() -> tuple[np.ndarray, np.ndarray, tuple[str, ...]]:
    """The test images that ship, balanced by class: uint8 [n, 28, 28], labels [n], the classes' names."""
    with np.load(SHIPPED) as stored:
        return stored["images"], stored["labels"].astype(np.int64), NAMES


def digits() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """scikit-learn's 1,797 digits: training images uint8 [n, 8, 8] and labels, then every fifth for the test."""
    from sklearn.datasets import load_digits

    found: Any = load_digits()
    images, labels = (found.images * (255 / 16)).astype(np.uint8), found.target.astype(np.int64)
    test = np.arange(len(labels)) % 5 == 0
    return images[~test], labels[~test], images[test], labels[test]


def prepare_image(image: Any, side: int = 28) -> torch.Tensor:
    """A person's image as a model takes it: grey, light on black, [1, 1, side, side].

    The data show garments light on black. An image whose border is light is inverted; one that is not
    square is padded with its border's shade, as on the page Vision.
    A clear ground is read as white, and a camera's turn is undone.

    Args:
        image: a PIL image, or an array [h, w] or [h, w, 3 or 4] of 0 to 255.
        side: of the result, pixels.

    Raises:
        InvalidInput: not an image, an empty one, or pixels that are not finite.
    """
    from PIL import Image, ImageOps

    if not isinstance(image, Image.Image):
        array = np.asarray(image)
        if array.ndim not in (2, 3) or 0 in array.shape or (array.ndim == 3 and array.shape[2] not in (3, 4)):
            raise InvalidInput(f"An array of shape {array.shape} is no image.", "Give [h, w] or [h, w, 3 or 4].")
        if array.dtype.kind not in "buif" or not np.isfinite(array).all():
            raise InvalidInput("The array has values that are not finite numbers.", "Give numbers from 0 to 255.")
        image = Image.fromarray(np.clip(array, 0, 255).astype(np.uint8))
    if 0 in image.size:
        raise InvalidInput(f"The image has {image.width} x {image.height} pixels.", "Give one of 1 x 1 or more.")
    grey = np.asarray(squared(on_white(eight_bits(ImageOps.exif_transpose(image))).convert("L"), side))
    if border_shade(grey) > 127:
        grey = 255 - grey
    return normalise(grey[None])


def border_shade(grey: np.ndarray) -> int:
    """The median of a grey image's outermost pixels."""
    return int(np.median(np.concatenate([grey[0], grey[-1], grey[:, 0], grey[:, -1]])))


def on_white(picture: Image.Image) -> Image.Image:
    """A picture without clear parts: they are white."""
    from PIL import Image

    if picture.mode not in ("RGBA", "LA", "PA", "P") and "transparency" not in picture.info:
        return picture
    layer = picture.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer)


def squared(picture: Image.Image, side: int) -> Image.Image:
    """A picture of mode L or RGB, ``side`` pixels square: scaled, and padded with its border's shade."""
    from PIL import ImageOps

    if picture.size == (side, side):
        return picture
    shade = border_shade(np.asarray(picture.convert("L")))
    return ImageOps.pad(picture, (side, side), color=shade if picture.mode == "L" else (shade,) * 3)


def eight_bits(picture: Image.Image) -> Image.Image:
    """A picture whose greys have 16 bits or more, in 8; any other as it is. Pillow itself cuts such greys off at 255.

    Integers are read as 0 to 65535, or to 255 where the mode of 32 bits holds no greater one; floats that stay below 1
    as 0 to 1.

    Raises:
        InvalidInput: pixels that are not finite.
    """
    from PIL import Image

    if picture.mode not in ("I", "F") and not picture.mode.startswith("I;16"):
        return picture
    values = np.asarray(picture, np.float32)
    if not np.isfinite(values).all():
        raise InvalidInput("The picture has pixels that are not finite numbers.", "Save it as a PNG or JPEG.")
    most = float(values.max(initial=0.0))
    if picture.mode == "F" and most <= 1:
        white = 1.0
    else:
        white = 255.0 if most <= 255 and picture.mode in ("I", "F") else max(most, 65535.0)
    return Image.fromarray(np.clip(values * (255 / white), 0, 255).round().astype(np.uint8))


def _idx(path: Path) -> np.ndarray:
    try:
        raw = gzip.decompress(path.read_bytes())
    except (OSError, EOFError) as error:
        raise InvalidInput(f"{path} cannot be read: {error}.") from None
    if len(raw) < 4 or raw[:3] != b"\0\0\x08":
        raise InvalidInput(f"{path} is not an idx file of bytes.")
    axes = raw[3]
    shape = tuple(int.from_bytes(raw[4 + 4 * i : 8 + 4 * i], "big") for i in range(axes))
    body = np.frombuffer(raw, np.uint8, offset=4 + 4 * axes)
    if body.size != int(np.prod(shape)):
        raise InvalidInput(f"{path} is cut short: {body.size} bytes for a shape of {shape}.")
    return body.reshape(shape)
