"""The entry point of ``catlog`` and ``python -m catlog``; all but --version needs an extra."""

import gc
import sys

from . import __version__


def main(arguments: list[str] | None = None) -> int:
    """Run the command, or explain how to install the packages that it needs."""
    if arguments is None:
        arguments = sys.argv[1:]
        # What torch made lasts as long as the process: garbage collections need not visit it.
        gc.freeze()
    if arguments == ["--version"]:
        print(f"catlog {__version__}")
        return 0
    try:
        from .cli.main import main as command
    except ModuleNotFoundError as error:
        if (error.name or "catlog").partition(".")[0] == "catlog":
            raise
        print(
            f"catlog: the package {error.name!r} is missing. "
            "Install it with: pip install 'catlog[experiments]'",
            file=sys.stderr,
        )
        return 2
    return command(arguments)


if __name__ == "__main__":
    sys.exit(main())
