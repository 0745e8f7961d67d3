"""The command line: ``python -m focus_core COMMAND``."""

import sys

from focus_core.cli import main

if __name__ == "__main__":
    sys.exit(main())
