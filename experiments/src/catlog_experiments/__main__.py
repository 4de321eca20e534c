"""The entry point of ``catlog`` and ``python -m catlog_experiments``."""

import gc
import sys

from catlog import __version__


def main(arguments: list[str] | None = None) -> int:
    """Run the command and return its exit code."""
    if arguments is None:
        arguments = sys.argv[1:]
        # What torch made lasts as long as the process: garbage collections need not visit it.
        gc.freeze()
    if arguments == ["--version"]:
        print(f"catlog {__version__}")
        return 0
    from .cli import main as command  # only now: --version needs none of it

    return command(arguments)


if __name__ == "__main__":
    sys.exit(main())
