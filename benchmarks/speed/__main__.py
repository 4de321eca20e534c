"""Speed and memory of everything, in one process, all rows of a section in turn.

    python benchmarks/speed.py                      # `make bench`: two CPU cores, about 8 minutes
    python benchmarks/speed.py --compile            # torch.compile on the CPU, too (a cold one takes half a minute per row)
    python benchmarks/speed.py --device cuda        # eager, and compiled and captured in one CUDA graph
    python benchmarks/speed.py --only dvae scaling  # some sections
    python benchmarks/speed.py --docs               # the tables of docs/speed.md and README.md anew, from the files

Prints one table per section and writes results/speed/speed_<section>_<device>.csv, and results/speed/step_times_<device>.csv (problem,
method, ms), which `catlog report --step-times` reads; there, problems that were not measured this time are kept.
"""

import argparse
import platform
from collections.abc import Callable
from pathlib import Path

import torch

from catlog.experiments import records
from sections import memory, scaling, steps
from sections.timing import Bench, Row

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "results" / "speed"
SECTIONS: dict[str, Callable[[Bench], list[Row]]] = {
    "ceilings": steps.ceilings,
    "dvae": steps.dvae,
    "categorical": steps.categorical,
    "addition": steps.addition,
    "scaling": scaling.scaling,
    "memory": memory.memory,
}
DEVICES = {"cpu": "two CPU cores", "cuda": "H200"}


def text(value: object) -> str:
    if isinstance(value, float):
        return (
            f"{value:.1e}"
            if 0 < abs(value) < 1e-3
            else f"{value:.0f}"
            if abs(value) >= 100
            else f"{value:.3g}"
        )
    return "" if value is None else str(value)


def filled(rows: list[Row]) -> list[str]:
    """The columns that say something."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    return [name for name in names if any(row.get(name) is not None for row in rows)]


def show(title: str, rows: list[Row]) -> None:
    names = filled(rows)
    table = [names, *([text(row.get(name)) for name in names] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    print(f"\n{title}")
    for line in table:
        print(
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        )
    print(flush=True)


def markdown(rows: list[Row]) -> str:
    names = filled(rows)
    lines = ["| " + " | ".join(names) + " |", "|" + "---|" * len(names)]
    return "\n".join(
        [*lines, *("| " + " | ".join(text(row.get(name)) for name in names) + " |" for row in rows)]
    )


def read(name: str) -> list[Row]:
    path = RESULTS / f"{name}.csv"
    return records.read(path) if path.exists() else []


def between(page: str, name: str, content: str) -> str:
    """The page with what stands between the markers of ``name`` replaced."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    return page[: page.index(begin) + len(begin)] + f"\n{content}\n" + page[page.index(end) :]


def headline() -> str:
    """The table of the README: one step of the paper's autoencoder."""
    shown = {
        "the paper's formula, literally (eager on both)": [steps.LITERAL],
        "`IndeCateR`, black-box f": ["IndeCateR, black-box f"],
        "`IndeCateR`, `FirstLayerLinear`": [steps.LINEAR],
        "`IndeCateR(8, variables=4)`": ["IndeCateR, Taylor, n=8, m=4"],
        "RLOO / Gumbel-Softmax with 800 draws": ["RLOO-F", "GS-F"],
        "RLOO / Gumbel-Softmax with 2 draws": ["RLOO-S", "GS-S"],
    }
    cpu = {row["method"]: row for row in read("speed_dvae_cpu") if row["mode"] == "eager"}
    cuda = {
        row["method"]: row for row in read("speed_dvae_cuda")
    }  # the last of a method is its fastest mode
    lines = [
        "| | evaluations | two CPU cores, ms | H200, compiled and captured (TF32), ms |",
        "|---|---|---|---|",
    ]
    for name, methods in shown.items():
        ours = " / ".join(text(cpu[method]["ms"]) for method in methods)
        theirs = " / ".join(f"{cuda[method]['ms']:.2f}" for method in methods)
        lines.append(f"| {name} | {cpu[methods[0]]['evaluations']} | {ours} | {theirs} |")
    return "\n".join(lines)


def pages() -> dict[Path, str]:
    """docs/speed.md and README.md as the files in results/ want them."""
    speed, readme = ROOT / "docs" / "speed.md", ROOT / "README.md"
    page = speed.read_text(encoding="utf-8")
    for section in (*SECTIONS, "exponents"):
        tables = []
        for device, machine in DEVICES.items():
            rows = [
                {
                    key: value
                    for key, value in row.items()
                    if key != "problem" or section == "addition"
                }
                for row in read(f"speed_{section}_{device}")
            ]
            tables.append(
                f"*{machine}*\n\n{markdown(rows)}" if rows else f"*{machine}*: not measured yet."
            )
        page = between(page, section, "\n\n".join(tables))
    return {speed: page, readme: between(readme.read_text(encoding="utf-8"), "speed", headline())}


def machine(device: str) -> str:
    name = (
        torch.cuda.get_device_name()
        if device == "cuda"
        else f"{torch.get_num_threads()} threads, {platform.machine()}"
    )
    return f"{name}, torch {torch.__version__}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu", choices=DEVICES)
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
    parser.add_argument(
        "--quick",
        action="store_true",
        help="tiny sizes and no files but to a given --output, for the tests",
    )
    parser.add_argument("--output", type=Path, default=None, help="folder for the files")
    parser.add_argument(
        "--docs", action="store_true", help="measure nothing; write the tables of the pages anew"
    )
    args = parser.parse_args()
    if args.docs:
        for path, page in pages().items():
            path.write_text(page, encoding="utf-8")
        return
    cuda, digits = (
        args.device == "cuda",
        args.digits or ([16] if args.device == "cuda" else [4, 8, 16, 32]),
    )
    torch.set_float32_matmul_precision("high" if cuda else "highest")
    bench = Bench(
        args.device,
        args.repeats or (2 if args.quick else 11),
        args.compile,
        args.quick,
        tuple(digits),
    )
    print(f"{args.device}: {machine(args.device)}")

    output = args.output or (None if args.quick else RESULTS)
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
        path, measured = (
            output / f"step_times_{args.device}.csv",
            {row["problem"] for row in bench.step_times},
        )
        kept = [
            row
            for row in (records.read(path) if path.exists() else [])
            if row["problem"] not in measured
        ]
        records.write(kept + bench.step_times, path, digits=4)


if __name__ == "__main__":
    main()
