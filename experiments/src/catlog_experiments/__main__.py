"""The entry point of ``catlog`` and ``python -m catlog_experiments``."""

import sys

from .cli import main

if __name__ == "__main__":
    sys.exit(main())
