"""The command line that the benchmarks share."""

import argparse
from pathlib import Path
from typing import Any

import torch

from .tables import RESULTS, Table


def argument_parser(description: str | None, package: str | None = None) -> argparse.ArgumentParser:
    """Return a parser that shows the docstring of a benchmark or package as it is written."""
    return argparse.ArgumentParser(
        package and f"python -m benchmarks.{package}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def add_options(parser: argparse.ArgumentParser, **defaults: Any) -> None:
    """Add an option for every default, with the type of the default, or of the entries of a list.

    >>> parser = argparse.ArgumentParser()
    >>> add_options(parser, rounds=5, seeds=[0, 1])
    >>> parser.parse_args(["--seeds", "7", "8"])
    Namespace(rounds=5, seeds=[7, 8])
    """
    for name, default in defaults.items():
        is_list = isinstance(default, list)
        kind = type(default[0] if is_list else default)
        count = "+" if is_list else None
        parser.add_argument(f"--{name}", type=kind, nargs=count, default=default)


def add_output(parser: argparse.ArgumentParser, *, quick: bool = True) -> argparse.ArgumentParser:
    """Add --output and, where a benchmark has a quick mode, --quick."""
    if quick:
        parser.add_argument("--quick", action="store_true", help="small sizes, for the tests")
    parser.add_argument("--output", type=Path, help="the CSV file, or the folder of several")
    return parser


def table_parser(
    description: str | None, *, quick: bool = True, **defaults: Any
) -> argparse.ArgumentParser:
    """Return a parser with --output, --quick and the options that have these defaults."""
    parser = add_output(argument_parser(description), quick=quick)
    add_options(parser, **defaults)
    return parser


def output_of(args: argparse.Namespace, place: str) -> Path | None:
    """Return --output, by default this place in results/; with --quick there is no default."""
    if args.output is not None or getattr(args, "quick", False):
        return args.output
    return RESULTS / place


def opened(
    parser: argparse.ArgumentParser, place: str, *key: str
) -> tuple[argparse.Namespace, Table]:
    """Return the arguments and the table of a benchmark, which from now on has one thread.

    Args:
        parser: the benchmark's.
        place: the file in results/ if there is no --output; "{device}" is that of --device.
        key: the columns that say what was measured.
    """
    args = parser.parse_args()
    torch.set_num_threads(1)
    return args, Table(output_of(args, place.format_map(vars(args))), key)
