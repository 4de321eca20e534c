"""The command ``catlog`` and ``python -m catlog``: the version without any extra, the rest with the extra ``experiments``."""

import sys

from . import __version__


def main(arguments: list[str] | None = None) -> int:
    """The entry point."""
    given = sys.argv[1:] if arguments is None else arguments
    if given == ["--version"]:
        print(f"catlog {__version__}")
        return 0
    try:
        from .cli.main import main as command
    except ModuleNotFoundError as error:
        if (error.name or "catlog").partition(".")[0] == "catlog":
            raise
        print(
            f"catlog: the command needs the package {error.name}. Run pip install 'catlog[experiments]'.",
            file=sys.stderr,
        )
        return 2
    return command(given)


if __name__ == "__main__":
    sys.exit(main())
