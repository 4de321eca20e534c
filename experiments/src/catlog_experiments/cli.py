"""The command ``catlog``: run experiments, and report on them."""

import contextlib
import functools
import gc
import operator
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro
from rich.console import Console
from rich.progress import Progress

from catlog import __version__

from . import EXPERIMENTS, records, sweeps
from .named_estimators import chosen_estimator
from .run import execute
from .run_folder import Folder, folder_for
from .settings import Count, Settings

if TYPE_CHECKING:
    Chosen = Settings
else:
    abouts = {name: cls.__doc__.split("\n")[0] for name, cls in EXPERIMENTS.items()}
    parts = [
        Annotated[cls, tyro.conf.subcommand(name, prefix_name=False, description=abouts[name])]
        for name, cls in EXPERIMENTS.items()
    ]
    union = functools.reduce(operator.or_, parts)
    Chosen = tyro.conf.OmitSubcommandPrefixes[tyro.conf.OmitArgPrefixes[union]]
Sources = tyro.conf.Positional[tuple[Path, ...]]
SHOW_EVERY = 0.5  # seconds


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
        resume: Continue the run in the folder, or extend a shorter run of the same settings.
        checkpoint_every: Seconds between checkpoints.
    """
    chosen_estimator(experiment)
    folder = folder_for(experiment) if folder is None else folder
    print(f"{experiment.name} {experiment.estimator}, seed {experiment.seed}, in {folder}")
    is_complete = Folder(folder).completed(experiment.record()) is not None
    if is_complete:
        print("The run is complete already.")
    try:
        with _progress([folder] * (not is_complete), experiment.headline) as watch:
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
    output: Path | None = None,
) -> int:
    """Run a grid of settings. The same command resumes it, and skips complete runs.

    Args:
        experiment: The experiment.
        grid: An axis of the grid, such as --grid estimator=IndeCateR,RLOO-F --grid seed=0,1,2.
        root: The folder below which the runs are stored.
        jobs: Runs at a time; more than one needs Ray (pip install ray). None: one after another.
        address: Ray: the cluster to join (or RAY_ADDRESS), in place of one on this machine.
        gpus_per_run: Ray: GPUs of a run, such as 0.25; None: 1 if the cluster has GPUs.
        checkpoint_every: Seconds between checkpoints of a run.
        output: The CSV file for all runs of the sweep; None: <experiment>.csv in the root.
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
    if rows := [row for path in folders for row in records.read_run(path)]:
        output = output or root / f"{experiment.name}.csv"
        records.write(rows, output)
        print(f"{len(rows)} rows: {output}")
    return 1 if wrong else 0


@contextlib.contextmanager
def _progress(folders: Sequence[Path], headline: tuple[str, str]) -> Iterator[Callable[[], None]]:
    """Show how many runs are complete, and how far those are that have begun.

    All is read from the files of the runs, wherever they are executed, twice a second at most.
    """
    metric, name = headline
    waiting, lines, shown_at = list(folders), dict[Path, Any](), 0.0
    with Progress(transient=True) as bar:
        total = bar.add_task("runs", total=len(folders), visible=bool(folders))

        def watch() -> None:
            nonlocal shown_at
            if time.monotonic() < shown_at + SHOW_EVERY:
                return
            for path in list(waiting):
                home = Folder(path)
                if (rows := home.rows()) and (sessions := home.sessions()):
                    steps, value = sessions[-1]["iterations"], rows[-1].get(metric)
                    text = path.name if value is None else f"{path.name}, {name} {value:.5g}"
                    if path not in lines:
                        lines[path] = bar.add_task(text, total=steps)
                    done = rows[-1]["iteration"]
                    bar.update(lines[path], completed=done, total=steps, description=text)
                    if home.completed() is not None:
                        waiting.remove(path)
                        bar.remove_task(lines[path])
            bar.update(total, completed=len(folders) - len(waiting))
            shown_at = time.monotonic()

        yield watch


def report(
    sources: Sources = (Path("runs"),),
    output: Path = Path("report.html"),
    figures: Path | None = None,
    step_times: Path | None = None,
) -> int:
    """Write an HTML page of runs: figures, numbers, verdicts on the paper's claims.

    Args:
        sources: Folders of runs, or CSV files written by `catlog export`.
        output: The HTML file to write.
        figures: A folder for the figures as PNG files as well.
        step_times: CSV file with columns problem, method and ms: times in place of runs' clocks.
    """
    from .report.page import count_verdicts, provenance, tables, write_figures, write_page
    from .report.runs import Evidence

    measured = [] if step_times is None else records.read(step_times)
    evidence = Evidence.from_rows(records.read_all(sources), measured)
    write_page(evidence, output, provenance(sources))
    for caption, table in tables(evidence, summary=True).items():
        print(caption, table.to_string(index=False), "", sep="\n")
    paths = write_figures(evidence, figures) if figures else []
    print(*evidence.notes, count_verdicts(evidence), *paths, sep="\n")
    print(f"Report: {output.resolve()}")
    return 0


def export(
    sources: Sources = (Path("runs"),), output: Path = Path("results.csv"), thin: Count = 1
) -> int:
    """Collect runs in one tidy CSV file.

    Args:
        sources: Folders of runs.
        output: The CSV file to write.
        thin: Keep every N-th logged point of each run, and always the last one.
    """
    rows = records.read_all(sources, thin)
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
        Console(stderr=True).print(f"catlog: {error}", style="red", markup=False, highlight=False)
        return 2
    except KeyboardInterrupt:
        return 130
