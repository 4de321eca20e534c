"""The command ``catlog``: run experiments, and report on them."""

import contextlib
import errno
import gc
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tyro
from rich.console import Console
from rich.progress import Progress

from catlog import __version__

from . import EXPERIMENTS, records, sweeps
from .named_estimators import chosen_estimator
from .run import execute
from .run_folder import Folder, folder_for
from .settings import Settings

if TYPE_CHECKING:
    Chosen = Settings
else:
    Chosen = tyro.conf.OmitArgPrefixes[
        tyro.extras.subcommand_type_from_defaults(
            {name: cls() for name, cls in EXPERIMENTS.items()},
            {name: cls.__doc__.split("\n")[0] for name, cls in EXPERIMENTS.items()},
            prefix_names=False,
        )
    ]
Sources = tyro.conf.Positional[tuple[Path, ...]]
SHOW_EVERY = 0.5  # seconds
FULL = ". Free some space and run the same command again (`catlog run` with --resume)."


def run(
    experiment: Chosen,
    folder: Path | None = None,
    resume: bool = False,
    checkpoint_every: float = 30.0,
) -> int:
    """Run one experiment of the paper. After Ctrl-C, --resume continues the run.

    Args:
        experiment: The experiment.
        folder: The folder of the run; None: a folder below runs/, named after the settings.
        resume: Continue the run in the folder.
        checkpoint_every: Seconds between checkpoints.
    """
    chosen_estimator(experiment)
    folder = folder_for(experiment) if folder is None else folder
    print(f"{experiment.name} {experiment.estimator}, seed {experiment.seed}, in {folder}")
    try:
        with _progress([folder], experiment.headline) as watch:
            settings: dict[str, Any] = {"resume": resume, "checkpoint_every": checkpoint_every}
            metrics = execute(experiment, folder, watch=lambda *_: watch(), **settings)
    except KeyboardInterrupt:
        flags = f"--resume --folder {shlex.quote(str(folder))}"
        print(f"Stopped. To continue, run the same command with {flags}")
        return 130
    names = dict([experiment.headline])
    for key, value in metrics.items():
        print(f"{names.get(key, key)}: {value if value is None else format(value, '.6g')}")
    return 0


def sweep(
    experiment: Chosen,
    grid: tyro.conf.UseAppendAction[tuple[str, ...]] = (),
    root: Path = Path("runs"),
    jobs: int | None = None,
    address: str | None = None,
    gpus_per_run: float | None = None,
    checkpoint_every: float = 30.0,
) -> int:
    """Run a grid of settings. The same command resumes it, and skips complete runs.

    Args:
        experiment: The experiment.
        grid: An axis of the grid, such as --grid estimator=IndeCateR,RLOO-F --grid seed=0,1,2.
        root: The folder below which the runs are stored.
        jobs: Runs at a time; more than one needs Ray (pip install ray). None: one after another.
        address: Ray: the cluster to join, or auto, in place of one on this machine.
        gpus_per_run: Ray: GPUs of a run, such as 0.25; None: 1 if the cluster has GPUs.
        checkpoint_every: Seconds between checkpoints of a run.
    """
    configs = sweeps.grid(experiment, grid)
    folders = list(dict.fromkeys(folder_for(config, root) for config in configs))
    print(f"Runs of {experiment.name}: {len(folders)}, stored in {root}")
    settings: dict[str, Any] = {"jobs": jobs, "address": address, "gpus_per_run": gpus_per_run}
    try:
        with _progress(folders, experiment.headline) as watch:
            wrong = sweeps.sweep(
                configs, root, checkpoint_every=checkpoint_every, watch=watch, **settings
            )
    except KeyboardInterrupt:
        print("Stopped. Run the same command again to continue.")
        return 130
    print(*wrong, sep="\n", end="\n" * bool(wrong))
    return 1 if wrong else 0


@contextlib.contextmanager
def _progress(folders: Sequence[Path], headline: tuple[str, str]) -> Iterator[Callable[[], None]]:
    """Show how far the runs are, and the last number of one that is not complete.

    All is read from the files of the runs, wherever they are executed, twice a second at most.
    """
    metric, name = headline
    done, shown_at = dict.fromkeys(folders, 0.0), 0.0
    with Progress(transient=True) as bar:
        task = bar.add_task("runs", total=len(folders))

        def watch() -> None:
            nonlocal shown_at
            if time.monotonic() < shown_at + SHOW_EVERY:
                return
            for path in [path for path, share in done.items() if share < 1]:
                rows, sessions = Folder(path).rows(), Folder(path).sessions()
                if rows and sessions:
                    done[path] = rows[-1]["iteration"] / sessions[-1]["iterations"]
                    text = f"{path.name}, {name} {rows[-1].get(metric)}"
                    bar.update(task, completed=sum(done.values()), description=text)
            shown_at = time.monotonic()

        yield watch


def report(
    sources: Sources = (Path("runs"),),
    output: Path = Path("report.html"),
    step_times: Path | None = None,
) -> int:
    """Write an HTML page of runs: figures, numbers, verdicts on the paper's claims.

    Args:
        sources: Folders of runs, or CSV files written by `catlog export`.
        output: The HTML file to write.
        step_times: CSV file with columns problem, method and ms: times in place of runs' clocks.
    """
    from .report.page import provenance, tables, write_page
    from .report.runs import Evidence

    measured = [] if step_times is None else records.read(step_times)
    evidence = Evidence.from_rows(records.read_all(sources), measured)
    write_page(evidence, output, provenance(sources))
    for caption, table in tables(evidence, summary=True).items():
        print(caption, table.to_string(index=False), "", sep="\n")
    print(*evidence.notes, f"Report: {output.resolve()}", sep="\n")
    return 0


def export(sources: Sources = (Path("runs"),), output: Path = Path("results.csv")) -> int:
    """Collect runs in one tidy CSV file.

    Args:
        sources: Folders of runs.
        output: The CSV file to write.
    """
    rows = records.read_all(sources)
    records.write(rows, output)
    print(f"{len(rows)} rows in {output}")
    return 0


def main(arguments: list[str] | None = None) -> int:
    """Run the command; print errors of the user as one line, without a traceback."""
    if arguments is None:
        arguments = sys.argv[1:]
        # What torch made lasts as long as the process: garbage collections need not visit it.
        gc.freeze()
    if arguments == ["--version"]:
        print(f"catlog {__version__}")
        return 0
    try:
        code: int = tyro.extras.subcommand_cli_from_dict(
            {"run": run, "sweep": sweep, "report": report, "export": export},
            args=arguments,
            prog="catlog",
            description="Run experiments, and report on them.",
            config=(tyro.conf.CascadeSubcommandArgs,),
        )
        return code
    except (ValueError, TypeError, OSError, ImportError) as error:
        is_full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
        text = f"catlog: {error}{FULL * is_full}"
        Console(stderr=True).print(text, style="red", markup=False, highlight=False)
        return 2
    except KeyboardInterrupt:
        return 130
