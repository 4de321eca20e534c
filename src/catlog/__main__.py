"""``python -m catlog``."""

import sys

from .cli import main

sys.exit(main())
