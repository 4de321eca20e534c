"""The command line that the benchmarks share."""

import argparse
from pathlib import Path

from .tables import RESULTS


def argument_parser(description: str | None, package: str | None = None) -> argparse.ArgumentParser:
    """Return a parser that shows the docstring of a benchmark or package as it is written."""
    return argparse.ArgumentParser(
        package and f"python -m benchmarks.{package}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def table_parser(
    description: str | None, *, quick: str = "", output: Path | None = None
) -> argparse.ArgumentParser:
    """Return a parser with --output and, if ``quick`` says what it does, --quick."""
    parser = argument_parser(description)
    if quick:
        parser.add_argument("--quick", action="store_true", help=quick)
    parser.add_argument(
        "--output", type=Path, default=output, help="the CSV file, or the folder of several"
    )
    return parser


def output_of(args: argparse.Namespace, *place: str) -> Path | None:
    """Return --output, by default this place in results/; with --quick there is no default."""
    if args.output is not None or args.quick:
        return args.output
    return RESULTS.joinpath(*place)
