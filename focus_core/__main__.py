"""The command line: ``python -m focus_core COMMAND``."""

import sys

if __name__ == "__main__":
    try:
        from focus_core.cli import main

        code = main()
    except KeyboardInterrupt:
        # While modules are imported, before the command itself could answer.
        print("Stopped.", file=sys.stderr)
        code = 130
    sys.exit(code)
