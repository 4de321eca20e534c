"""Bias and variance of estimators at equal evaluations of f.

    python -m benchmarks.quality suite        # every estimator on every problem, hours of one core
    python -m benchmarks.quality contest      # at about 40 evaluations, some minutes
    python -m benchmarks.quality decoder      # on a trained decoder, 25 minutes
    python -m benchmarks.quality structured   # dependent variables, 4 minutes
    python -m benchmarks.quality networks     # on two random networks, 5 minutes
    python -m benchmarks.quality SECTION --help

A section writes its table to results/quality/. With --quick it takes seconds, and writes only to a
given --output. The sections suite and contest resume where they were interrupted.
"""

import torch

from ..command_line import add_output, argument_parser
from . import contest, decoder, networks, structured, suite

SECTIONS = {
    "suite": suite,
    "contest": contest,
    "decoder": decoder,
    "structured": structured,
    "networks": networks,
}


def main(arguments: list[str] | None = None) -> None:
    parser = argument_parser(__doc__, "quality")
    sections = parser.add_subparsers(dest="section", required=True)
    for name, module in SECTIONS.items():
        section = sections.add_parser(
            name, description=module.__doc__, formatter_class=parser.formatter_class
        )
        module.add_arguments(add_output(section))
    args = parser.parse_args(arguments)
    torch.set_num_threads(1)  # problems are small
    torch.manual_seed(0)
    SECTIONS[args.section].main(args)


if __name__ == "__main__":
    main()
