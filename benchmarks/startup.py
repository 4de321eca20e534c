"""How long does it take to import catlog and to start its command?

    python -m benchmarks.startup                       # a minute; writes results/speed/startup.csv
    python -m benchmarks.startup --commits ed12b4f d72e8da      # earlier commits beside it

Every program runs in a new process. `seconds` is its CPU time, user and system, the median of
--rounds rounds in which all programs take turns. `beyond_torch` is the median of what it takes
longer than `import torch` in the same round, and `ratio` that of its time relative to it. Sources
are copied and compiled to bytecode before the first round, as an installation does.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from operator import sub, truediv
from pathlib import Path
from statistics import median

from .command_line import table_parser
from .tables import RESULTS, Row, Table, show

ROOT = Path(__file__).parents[1]
BASELINE = "import torch"
PROGRAMS = {
    "import catlog": ["-c", "import catlog"],
    "catlog --help": ["-m", "catlog", "--help"],
}


def copy_source(commit: str | None, folder: Path) -> Path:
    """Copy `src` of a commit (None: of the working tree) into a folder and return its path."""
    if commit is None:
        shutil.copytree(ROOT / "src", folder / "src", ignore=shutil.ignore_patterns("__pycache__"))
    else:
        archive = subprocess.run(
            ["git", "archive", commit, "src"], cwd=ROOT, check=True, capture_output=True
        )
        subprocess.run(["tar", "-x", "-C", folder], input=archive.stdout, check=True)
    return folder / "src"


def cpu_seconds(arguments: list[str], source: Path) -> float:
    """Return the CPU time of Python with these arguments, with catlog imported from `source`."""
    environment = {**os.environ, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    process = subprocess.Popen(
        [sys.executable, *arguments], env=environment, cwd=source, stdout=subprocess.DEVNULL
    )
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{arguments} ended with exit code {process.returncode}.")
    return usage.ru_utime + usage.ru_stime


def measure(commits: list[str], rounds: int, folder: Path) -> list[Row]:
    """Return a row per version and program; the working tree is the version "this"."""
    versions = {"this": None, **{commit: commit for commit in commits}}
    sources = {}
    for version, commit in versions.items():
        (folder / version).mkdir()
        sources[version] = copy_source(commit, folder / version)
    runs = {("torch", BASELINE): (["-c", BASELINE], sources["this"])}
    for version, source in sources.items():
        for program, arguments in PROGRAMS.items():
            runs[version, program] = (arguments, source)
    times: dict[tuple[str, str], list[float]] = {key: [] for key in runs}
    for arguments, source in runs.values():
        cpu_seconds(arguments, source)
    for _ in range(rounds):
        for key, (arguments, source) in runs.items():
            times[key].append(cpu_seconds(arguments, source))
    baseline = times["torch", BASELINE]
    return [
        {
            "version": version,
            "program": program,
            "rounds": rounds,
            "seconds": median(seconds),
            "fastest": min(seconds),
            "beyond_torch": median(map(sub, seconds, baseline)),
            "ratio": median(map(truediv, seconds, baseline)),
        }
        for (version, program), seconds in times.items()
    ]


def main() -> None:
    parser = table_parser(__doc__, output=RESULTS / "speed" / "startup.csv")
    parser.add_argument("--commits", nargs="*", default=[], help="commits to measure as well")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = measure(options.commits, options.rounds, Path(folder))
    Table(options.output, ("version", "program")).add(rows)
    show("CPU seconds of a new process", rows)


if __name__ == "__main__":
    main()
