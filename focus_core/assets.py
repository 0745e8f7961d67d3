"""What ships in ``data``: texts with their tags and roles, and trained adapters.

Nothing here needs a model or torch, so the app's own process may import it.
"""

from __future__ import annotations

import difflib
import json
import re
import shutil
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from focus_core.errors import InvalidInput
from focus_core.jobs.files import cache_folder, read_json, user_path

if TYPE_CHECKING:
    from focus_core.models.facts import ModelFacts

DATA = Path(__file__).resolve().parents[1] / "data"
"""The folder of the shipped assets."""

MAX_BYTES = 16_000_000
"""The largest text file that is read when the caller names no limit."""


class Tag(NamedTuple):
    """One tagged word: its bytes in the UTF-8 text, the word, its Brown tag and universal tag."""

    byte_start: int
    byte_end: int
    word: str
    brown_tag: str
    universal_tag: str


class Role(NamedTuple):
    """The part that characters ``start:end`` play: training, validation, held-out or evaluation."""

    role: str
    start: int
    end: int


@dataclass(frozen=True)
class Text:
    """A text and what is known about it.

    Attributes:
        name: the shipped name, or the file's path.
        title: what people read.
        text: the text itself, every line ended by a single line feed.
        note: one sentence about where it comes from.
        tags: hand-made part-of-speech tags in reading order; None where there are none.
        roles: which characters are for training, validation, held out or for evaluation; empty for a file.
        tokens: number of SmolLM2 tokens; None for a file.
    """

    name: str
    title: str
    text: str
    note: str
    tags: tuple[Tag, ...] | None = None
    roles: tuple[Role, ...] = ()
    tokens: int | None = None


@cache
def catalog() -> dict[str, Any]:
    """Return ``data/catalog.json``: the shipped texts in menu order."""
    return dict(json.loads((DATA / "catalog.json").read_text(encoding="utf-8")))


def text_names(kind: str | None = None) -> list[str]:
    """Return the names of the shipped texts.

    Args:
        kind: only ``passage``, ``novel`` or ``tagged``; None for all, short passages first.
    """
    return [entry["name"] for entry in catalog()["texts"] if kind in (None, entry["kind"])]


def unwrap(text: str) -> str:
    """Join the lines of a paragraph: a newline alone becomes a space, character for character."""
    return re.sub(r"(?<!\n)\n(?!\n|$)", " ", text)


def decode_text(raw: bytes, name: str = "This text", *, max_bytes: int = MAX_BYTES) -> str:
    """Turn the bytes of a file or an upload into text.

    Args:
        raw: the bytes; UTF-8, with or without a byte-order mark.
        name: what to call it in an error.
        max_bytes: the largest size that is taken.

    Returns:
        The text, every line ended by a single line feed.

    Raises:
        InvalidInput: it is too large, empty, binary or in another encoding.
    """
    if len(raw) > max_bytes:
        raise InvalidInput(
            f"{name} has {len(raw) / 1e6:.3g} MB, more than the limit of {max_bytes / 1e6:.3g} MB.",
            "Cut out the part that matters.",
        )
    if raw[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise InvalidInput(f"{name} is UTF-16, not UTF-8.", "Save it as UTF-8 and try again.")
    if b"\0" in raw:
        raise InvalidInput(f"{name} is not plain text: it holds zero bytes.", "Give a plain text file in UTF-8.")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidInput(
            f"{name} is not UTF-8: byte {error.start + 1:,} is 0x{raw[error.start]:02x}.",
            "Save it as UTF-8 and try again; a picture or a document is not plain text.",
        ) from error
    controls = sum(ord(c) < 32 and c not in "\t\n\r\f\v" for c in text[:100_000])
    if controls > len(text[:100_000]) // 100:
        raise InvalidInput(
            f"{name} is not plain text: {controls:,} control characters.", "Give a plain text file in UTF-8."
        )
    if not text.strip():
        raise InvalidInput(f"{name} is empty.", "Write or choose some text.")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _entry(name: str) -> dict[str, Any] | None:
    return next((entry for entry in catalog()["texts"] if entry["name"] == name), None)


def _read_tags(file: str, text: str) -> tuple[Tag, ...]:
    raw = text.encode("utf-8")
    tags: list[Tag] = []
    for line in (DATA / file).read_text(encoding="utf-8").splitlines():
        start, end, brown, universal = line.split("\t")
        tags.append(Tag(int(start), int(end), raw[int(start) : int(end)].decode("utf-8"), brown, universal))
    return tuple(tags)


def _slice(whole: Text, start: int, end: int) -> tuple[str, tuple[Tag, ...] | None]:
    """Return characters ``start:end`` with the tags that lie wholly inside, counted from there."""
    text = whole.text[start:end]
    if whole.tags is None:
        return text, None
    first = len(whole.text[:start].encode("utf-8"))
    last = first + len(text.encode("utf-8"))
    inside = (tag for tag in whole.tags if first <= tag.byte_start and tag.byte_end <= last)
    return text, tuple(t._replace(byte_start=t.byte_start - first, byte_end=t.byte_end - first) for t in inside)


def _join(parts: list[Text]) -> tuple[str, tuple[Tag, ...]]:
    place = 0
    tags: list[Tag] = []
    for part in parts:
        shifted = (t._replace(byte_start=t.byte_start + place, byte_end=t.byte_end + place) for t in part.tags or ())
        tags.extend(shifted)
        place += len(part.text.encode("utf-8"))
    return "".join(part.text for part in parts), tuple(tags)


@cache
def _shipped(name: str) -> Text:
    entry = _entry(name)
    assert entry is not None
    tags: tuple[Tag, ...] | None = None
    if "of" in entry:
        text, tags = _slice(_shipped(entry["of"]), entry["start"], entry["end"])
        text = unwrap(text)
    elif "parts" in entry:
        text, tags = _join([_shipped(part) for part in entry["parts"]])
    else:
        text = (DATA / entry["file"]).read_bytes().decode("utf-8")
        if "tags" in entry:
            tags = _read_tags(entry["tags"], text)
    roles = tuple(Role(role["role"], role["start"], role["end"]) for role in entry["roles"])
    return Text(name, entry["title"], text, entry["note"], tags, roles, entry["tokens"])


def load_text(name_or_path: str | Path, *, max_bytes: int = MAX_BYTES) -> Text:
    """Return a shipped text by its name, or a file's text by its path.

    Args:
        name_or_path: a name that :func:`text_names` lists, in any case, or the path of a UTF-8 file.
        max_bytes: the largest file that is read.

    Returns:
        The text; equal names give the same object.

    Raises:
        InvalidInput: there is no such text, or the file is empty, binary, too large or not UTF-8.
    """
    name = str(name_or_path).strip()
    if _entry(name.lower()) is not None:
        return _shipped(name.lower())
    path = user_path(name)
    if name and path.is_file():
        try:
            with path.open("rb") as file:
                raw = file.read(max_bytes + 1)
        except OSError as error:
            raise InvalidInput(f"{path.name} cannot be read: {error.strerror}.", "Check its permissions.") from error
        if len(raw) > max_bytes:
            size = path.stat().st_size
            raise InvalidInput(
                f"{path.name} has {size / 1e6:.3g} MB, more than the limit of {max_bytes / 1e6:.3g} MB.",
                "Cut out the part that matters.",
            )
        text = decode_text(raw, path.name, max_bytes=max_bytes)
        return Text(str(path), path.name, text, f"{len(raw):,} bytes from a file.")
    if name and path.is_dir():
        raise InvalidInput(f"{name} is a folder, not a text file.", "Name a file in it.")
    close = difflib.get_close_matches(name.lower(), text_names(), n=1)
    hint = f'Did you mean "{close[0]}"?' if close else f"Shipped texts: {', '.join(text_names())}; or give a file."
    raise InvalidInput(f'There is no text or file named "{name}".', hint)


def _with_role(role: str) -> str:
    parts: list[str] = []
    for name in text_names("novel"):
        text = load_text(name)
        parts.extend(text.text[part.start : part.end].strip("\n") for part in text.roles if part.role == role)
    return "\n\n\n\n".join(parts) + "\n"


@cache
def training_text() -> str:
    """Return what routers are trained on: five novels without the validation slice."""
    return _with_role("training")


@cache
def validation_text() -> str:
    """Return the slice of a training novel that choices are made on; it is never trained on."""
    return _with_role("validation")


def user_adapters_folder() -> Path:
    """Where the adapters lie that were made here: ``adapters`` in the cache folder; it may not exist yet."""
    return cache_folder() / "adapters"


def adapters() -> dict[str, dict[str, Any]]:
    """Return the shipped adapters by name, then those made here.

    Each is ``{"path": folder, "config": its focus_config.json, "user": whether it was made here}``. A folder of the
    user's that is no adapter, or has a shipped one's name, is left out.
    """
    found: dict[str, dict[str, Any]] = {}
    for file in sorted((DATA / "adapters").glob("*/focus_config.json")):
        config = json.loads(file.read_text(encoding="utf-8"))
        found[file.parent.name] = {"path": file.parent, "config": config, "user": False}
    for file in sorted(user_adapters_folder().glob("*/focus_config.json")):
        config = read_json(file)
        if isinstance(config, dict) and isinstance(config.get("model"), dict) and file.parent.name not in found:
            found[file.parent.name] = {"path": file.parent, "config": config, "user": True}
    return found


def check_adapter_name(name: Any) -> str:
    """The name that an adapter is to be kept under, if it can be.

    Raises:
        InvalidInput: it is not a plain name, or there is an adapter of that name.
    """
    if not isinstance(name, str) or not re.fullmatch(r"[a-z0-9][a-z0-9._-]{0,59}", name):
        raise InvalidInput(
            f"The name {str(name)[:80]!r} cannot be kept.",
            "Use 1 to 60 small letters, digits, dots, dashes or underscores, a letter or digit first.",
        )
    if name in adapters() or (user_adapters_folder() / name).exists():
        raise InvalidInput(f"There is an adapter {name!r} already.", "Choose another name, or delete that one.")
    return name


def keep_adapter(name: str, folder: Path) -> Path:
    """Copy an adapter into the user's folder under a new name; it is whole or not there.

    Raises:
        InvalidInput: the name cannot be used, or the folder holds no adapter.
    """
    place = user_adapters_folder() / check_adapter_name(name)
    files = ("focus_config.json", "focus_adapter.safetensors")
    if not all((folder / file).is_file() for file in files):
        raise InvalidInput(f"{folder.name} holds no trained adapter yet.", "It is there after the first validation.")
    place.parent.mkdir(parents=True, exist_ok=True)
    half = Path(tempfile.mkdtemp(prefix=".half-", dir=place.parent))
    try:
        for file in files:
            shutil.copyfile(folder / file, half / file)
        half.rename(place)
    finally:
        shutil.rmtree(half, ignore_errors=True)
    return place


def delete_adapter(name: str) -> None:
    """Delete an adapter that was made here.

    Raises:
        InvalidInput: there is none of that name among the user's own.
    """
    entry = adapters().get(name)
    if entry is None or not entry["user"]:
        raise InvalidInput(f"There is no adapter {name!r} of your own.", "Shipped adapters stay.")
    shutil.rmtree(entry["path"], ignore_errors=True)


def adapters_for(facts: ModelFacts) -> dict[str, dict[str, Any]]:
    """Return the adapters whose base model has the shape of this one.

    The shape alone does not tell Base from Instruct: loading an adapter compares the weights too.
    """
    fields = ("family", "layers", "hidden_size", "heads", "kv_heads", "vocab")
    return {
        name: adapter
        for name, adapter in adapters().items()
        if all(adapter["config"]["model"][field] == getattr(facts, field) for field in fields)
    }
