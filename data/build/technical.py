"""Makes the two technical texts of the experiments from an installed CPython 3.11: ``python -m data.build.technical``.

Code: whole modules of its library. Prose: chapters of the language reference, as ``pydoc`` holds them.
"""

from __future__ import annotations

import pydoc_data.topics
import sysconfig
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[2] / "experiments" / "texts"
MODULES = ("heapq", "fractions", "textwrap", "selectors", "json/encoder", "queue", "shlex")
CHAPTERS = ("compound", "specialnames", "execmodel", "import", "debugger")


def main() -> None:
    """Write both."""
    library = Path(sysconfig.get_path("stdlib"))
    code = [(library / f"{name}.py").read_text(encoding="utf-8").strip("\n") for name in MODULES]
    prose = [pydoc_data.topics.topics[name].strip("\n") for name in CHAPTERS]
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, parts in (("python_code", code), ("python_reference", prose)):
        (FOLDER / f"{name}.txt").write_text("\n\n\n".join(parts) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
