"""One file a command; a file in this folder that defines ``SUMMARY``, ``configure``, ``run`` and ``table`` is one.

``configure(parser)`` adds the arguments, ``run(args)`` returns the document that ``--json`` writes, with the command
that made it where it is a dict, and ``table`` shows that document to a person. A command that several processes do
together (`accelerate launch`) defines ``SHARED``; the first of them alone writes and shows the document. Nothing here
imports torch before a command runs.
"""

from __future__ import annotations

import argparse
import importlib
import pkgutil
import shlex
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import NoReturn

from focus_core.cli.output import check_json, clear_progress, write_json
from focus_core.errors import (
    Cancelled,
    FocusError,
    InvalidInput,
    NotAvailable,
    TooLarge,
    Unsupported,
    disk_full,
    out_of_memory,
)
from focus_core.launched import processes

DONE, FAILED, REFUSED, INTERRUPTED = 0, 1, 2, 130


class _Parser(argparse.ArgumentParser):
    """Answers wrong arguments with one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(REFUSED, f"{message[:1].upper()}{message[1:].rstrip('.')}. See {self.prog} --help.\n")


def commands() -> dict[str, ModuleType]:
    """Every command's module by its name."""
    names = sorted(m.name for m in pkgutil.iter_modules(__path__))
    modules = {name: importlib.import_module(f"{__name__}.{name}") for name in names}
    return {name: module for name, module in modules.items() if hasattr(module, "SUMMARY")}


def parser() -> argparse.ArgumentParser:
    """The parser of all commands."""
    top = _Parser(prog="python -m focus_core", description="Attention variants on pretrained language models.")
    choices = top.add_subparsers(dest="command", metavar="COMMAND", required=True, parser_class=_Parser)
    for name, module in commands().items():
        one = choices.add_parser(name, help=module.SUMMARY, description=module.SUMMARY, allow_abbrev=False)
        module.configure(one)
        one.add_argument("--json", metavar="FILE", help="write one JSON document there ('-': to standard output)")
        one.set_defaults(module=module)
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        arguments: the command line without the program's name; that of the process by default.

    Returns:
        The exit code: 0 done, 2 wrong arguments or unsupported, 1 failed, 130 interrupted.
    """
    args = parser().parse_args(arguments)
    rank, count = 0, 1
    try:
        rank, count = processes()
        if count > 1 and not getattr(args.module, "SHARED", False):
            raise InvalidInput(f"{args.command} is one process's work, and {count} were started.", "Start it alone.")
        if args.json is not None and rank == 0:
            check_json(args.json)
        document = args.module.run(args)
        if rank:
            return DONE
        if args.json is not None:
            if isinstance(document, dict):
                given = sys.argv[1:] if arguments is None else arguments
                document["command"] = shlex.join(["python", "-m", "focus_core", *given])
            write_json(document, args.json)
        else:
            print(args.module.table(document))
    except (KeyboardInterrupt, Cancelled):
        clear_progress()
        if rank == 0:
            print("Stopped.", file=sys.stderr)
        return INTERRUPTED
    except FocusError as error:
        clear_progress()
        print(f"[process {rank + 1} of {count}] {error}" if count > 1 else error, file=sys.stderr)
        return REFUSED if isinstance(error, (InvalidInput, Unsupported, TooLarge, NotAvailable)) else FAILED
    except BrokenPipeError:
        sys.stderr.close()
        return FAILED
    except OSError as error:
        clear_progress()
        where = f" {error.filename}" if error.filename else ""
        print(f"A file could not be read or written: {error.strerror or error}{where}.", file=sys.stderr)
        return FAILED
    except Exception as error:
        hint = "Ask for fewer tokens, a smaller batch or a smaller model."
        if not (said := out_of_memory(error)):
            said, hint = disk_full(error), "Free some space, or write to another disk."
        if not said:
            raise
        clear_progress()
        print(said, hint, file=sys.stderr)
        return FAILED
    return DONE
