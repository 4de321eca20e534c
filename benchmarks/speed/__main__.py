"""Speed and memory, in one process; the rows of a section are measured in turn.

    python -m benchmarks.speed                      # `make bench`: two CPU cores, about 8 minutes
    python -m benchmarks.speed --compile            # with torch.compile on the CPU
    python -m benchmarks.speed --device cuda        # eager, and compiled in a CUDA graph
    python -m benchmarks.speed --only dvae scaling  # some sections

Prints one table per section, and writes results/speed/speed_<section>_<device>.csv and
results/speed/step_times_<device>.csv (problem, method, ms), which `catlog report --step-times`
reads. The latter keeps the problems that were not measured this time.
"""

import platform
from collections.abc import Callable

import torch

from catlog_experiments import records

from ..command_line import output_of, table_parser
from ..tables import Row, Table, show
from . import memory, scaling, steps
from .timing import Bench

SECTIONS: dict[str, Callable[[Bench], list[Row]]] = {
    "ceilings": steps.ceilings,
    "dvae": steps.dvae,
    "categorical": steps.categorical,
    "addition": steps.addition,
    "scaling": scaling.scaling,
    "memory": memory.memory,
}


def main() -> None:
    parser = table_parser(__doc__)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--repeats", type=int, default=None, help="measurements of every row")
    parser.add_argument(
        "--only",
        nargs="+",
        default=list(SECTIONS),
        choices=SECTIONS,
        metavar="SECTION",
        help=", ".join(SECTIONS),
    )
    parser.add_argument("--compile", action="store_true", help="on a CPU, compiled steps as well")
    parser.add_argument("--digits", type=int, nargs="+", default=None, help="sizes of the addition")
    args = parser.parse_args()
    cuda = args.device == "cuda"
    digits = args.digits or ([16] if cuda else [4, 8, 16, 32])
    torch.set_float32_matmul_precision("high" if cuda else "highest")
    bench = Bench(
        args.device,
        args.repeats or (2 if args.quick else 11),
        args.compile,
        args.quick,
        tuple(digits),
    )
    machine = torch.cuda.get_device_name() if cuda else platform.machine()
    print(f"{machine}, {torch.get_num_threads()} threads, torch {torch.__version__}")
    output = output_of(args, "speed")
    for section in args.only:
        rows = SECTIONS[section](bench)
        tables = {section: rows} | (
            {"exponents": scaling.exponents(rows)} if section == "scaling" else {}
        )
        for name, table in tables.items():
            show(name, table)
            if output:
                records.write(table, output / f"speed_{name}_{args.device}.csv", digits=4)
    if output and bench.step_times:
        Table(output / f"step_times_{args.device}.csv", ("problem",)).add(bench.step_times)


if __name__ == "__main__":
    main()
