"""Trace files from elsewhere: judged by their headers before anything is read, and never unpickled."""

from __future__ import annotations

import json
import math
import struct
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from focus_core.errors import FocusError, InvalidInput, TooLarge
from focus_core.trace import FORMAT, Trace
from focus_core.trace_arrays import check_shapes, check_values, is_known
from focus_core.trace_provenance import check_document, wrong

MAX_BYTES = 128 << 20
"""Largest file that is opened: a Trace holds at most 64 MB of queries and keys, and little beside them."""
MAX_UNPACKED = 192 << 20
MAX_DOCUMENT = 12 << 20
"""Largest document: text, tokens and likely tokens of some 200,000 tokens of any script."""
_DOCUMENT = "document"
_DOCUMENT_LEAST, _DOCUMENT_A_TOKEN = 1 << 20, 1 << 10
_MAX_DIRECTORY = 1 << 20
_END = struct.Struct("<4s4H2LH")
_PACKINGS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)


@dataclass(frozen=True)
class Header:
    """What an array says of itself."""

    shape: tuple[int, ...]
    dtype: np.dtype


def open_trace(path: Path | str) -> Trace:
    """Read a Trace file that someone else may have made.

    No array is read before its name, dtype, shape and size are those of a Trace of that many tokens, layers and heads.

    Raises:
        InvalidInput: it is no Trace, or its parts do not fit each other. TooLarge: it is larger than a Trace can be.
    """
    path = Path(path)
    size = path.stat().st_size
    if size > MAX_BYTES:
        raise TooLarge(f"The file has {size / 1e6:,.0f} MB; a Trace has {MAX_BYTES / 1e6:,.0f} MB at most.")
    try:
        _check_directory(path, size)
        with zipfile.ZipFile(path) as archive:
            members = _members(archive)
            headers = {name: _header(archive, name, info) for name, info in members.items()}
            document = _document(archive, members, headers)
        check_document(document)
        check_shapes(document["provenance"], len(document["tokens"]), headers)
        trace = Trace.load(path)
        check_values(trace)
    except FocusError:
        raise
    except zipfile.BadZipFile as error:
        raise wrong(f"it is no .npz archive, or damaged ({error})") from None
    except Exception as error:
        raise wrong(f"it cannot be read ({type(error).__name__})") from None
    return trace


def _check_directory(path: Path, size: int) -> None:
    """Refuse an archive that lists more members than a Trace has, before the list is read."""
    with path.open("rb") as file:
        file.seek(max(0, size - _END.size - 20))
        tail = file.read()
    if len(tail) < _END.size or not tail[-_END.size :].startswith(b"PK\5\6"):
        raise wrong("it is no .npz archive, or its end is missing")
    *_, listed, _start, comment = _END.unpack(tail[-_END.size :])
    if listed > _MAX_DIRECTORY or comment or tail.startswith(b"PK\6\7"):
        raise wrong("it lists more arrays than a Trace has")


def _members(archive: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    """The archive's arrays by name, when all of them are a Trace's."""
    infos = archive.infolist()
    unpacked = sum(info.file_size for info in infos)
    if unpacked > MAX_UNPACKED:
        raise TooLarge(
            f"Unpacked, the file has {unpacked / 1e6:,.0f} MB; a Trace has {MAX_UNPACKED / 1e6:,.0f} MB at most."
        )
    found: dict[str, zipfile.ZipInfo] = {}
    for info in infos:
        name = info.filename.removesuffix(".npy")
        if not info.filename.endswith(".npy") or not (name == _DOCUMENT or is_known(name)):
            raise wrong(f"{info.filename[:60]!r} is no array of a Trace")
        if name in found:
            raise wrong(f"{name} is there twice")
        if info.compress_type not in _PACKINGS:
            raise wrong(f"{name} is packed in a way that is not read here")
        found[name] = info
    if _DOCUMENT not in found:
        raise wrong("its document is missing")
    return found


def _header(archive: zipfile.ZipFile, name: str, info: zipfile.ZipInfo) -> Header:
    with archive.open(info) as stream:
        return _read_header(stream, name, info.file_size)


def _read_header(stream: IO[bytes], name: str, size: int) -> Header:
    """The header of one ``.npy``, when the bytes behind it are as many as it says."""
    try:
        if np.lib.format.read_magic(stream) != (1, 0):
            raise wrong(f"{name} is of a form that is not read here")
        shape, _, dtype = np.lib.format.read_array_header_1_0(stream)
        bytes_said = math.prod(shape) * dtype.itemsize
    except (InvalidInput, zipfile.BadZipFile):
        raise
    except Exception as error:
        raise wrong(f"{name} has no header that can be read ({type(error).__name__})") from None
    if dtype.hasobject or min(shape, default=0) < 0 or bytes_said != size - stream.tell():
        raise wrong(f"{name} does not hold the {shape} values of {dtype} that it says")
    return Header(shape, dtype)


def _document(archive: zipfile.ZipFile, members: dict[str, zipfile.ZipInfo], headers: dict[str, Header]) -> Any:
    """The JSON document; it is read when it is no longer than that many tokens need."""
    header = headers.pop(_DOCUMENT)
    if header.dtype != np.uint8 or len(header.shape) != 1:
        raise wrong(f"its document holds {header.dtype}, not bytes")
    if "nll" not in headers:
        raise wrong("nll is missing")
    tokens = 1 + (headers["nll"].shape[0] if headers["nll"].shape else 0)
    most = min(MAX_DOCUMENT, _DOCUMENT_LEAST + _DOCUMENT_A_TOKEN * tokens)
    if header.shape[0] > most:
        raise TooLarge(
            f"The file's text and tokens take {header.shape[0] / 1e6:,.1f} MB; "
            f"those of {tokens:,} tokens take {most / 1e6:,.1f} MB at most."
        )
    try:
        document = json.loads(archive.read(members[_DOCUMENT])[-header.shape[0] or None :])
    except (ValueError, RecursionError) as error:
        raise wrong(f"its document cannot be read ({type(error).__name__})") from None
    if isinstance(document, dict) and document.get("format") != FORMAT:
        raise wrong(f"it has Trace format {str(document.get('format'))[:20]}, this version reads {FORMAT}")
    return document
