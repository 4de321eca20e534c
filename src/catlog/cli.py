"""The command ``catlog``: run, sweep, plot, report, export, list."""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from . import __version__
from .data.files import DataError
from .estimators import ESTIMATORS
from .experiments import DVAE, EXPERIMENTS, Addition, Experiment, Gradients, Optimisation, execute, folder_for, records
from .experiments.sweep import grid, progress, sweep

Chosen = (
    Annotated[Gradients, tyro.conf.subcommand("gradients", prefix_name=False)]
    | Annotated[Optimisation, tyro.conf.subcommand("optimisation", prefix_name=False)]
    | Annotated[DVAE, tyro.conf.subcommand("dvae", prefix_name=False)]
    | Annotated[Addition, tyro.conf.subcommand("addition", prefix_name=False)]
)
HEADLINE = {"gradients": "relative_variance", "optimisation": "value", "dvae": "test", "addition": "accuracy"}


@dataclass(frozen=True)
class Run:
    """Run one experiment of the paper. Ctrl-C leaves a run that --resume continues."""

    experiment: tyro.conf.OmitSubcommandPrefixes[tyro.conf.OmitArgPrefixes[Chosen]]
    folder: Path | None = None
    """Where the run is kept; None: below runs/, named after its settings."""
    resume: bool = False
    """Go on with the run that is in the folder."""
    checkpoint_every: float = 30.0
    """Seconds between checkpoints."""
    tensorboard: bool = False
    """Write TensorBoard events, too."""

    def __call__(self) -> int:
        config = self.experiment
        folder = folder_for(config) if self.folder is None else self.folder
        console = Console()
        console.print(f"[bold]{config.name}[/bold] {config.estimator}, seed {config.seed}, in {folder}")
        with _bar(console) as bar:
            line = bar.add_task("", total=None, visible=False)

            def watch(done: int, total: int, row: Mapping[str, float]) -> None:
                bar.update(line, completed=done, total=total, visible=True, description=_headline(config.name, row))

            try:
                last = execute(
                    config,
                    folder,
                    resume=self.resume,
                    checkpoint_every=self.checkpoint_every,
                    tensorboard=self.tensorboard,
                    watch=watch,
                )
            except KeyboardInterrupt:
                bar.stop()
                console.print(f"Stopped. The same command with [bold]--resume --folder {folder}[/bold] goes on from here.")
                return 130
        table = Table("metric", "value", title=str(folder))
        for key, value in last.items():
            table.add_row(key, "" if value is None else f"{value:.6g}")
        console.print(table)
        return 0


@dataclass(frozen=True)
class Sweep:
    """Run a grid of settings. What is complete is skipped, what was cut is resumed."""

    experiment: tyro.conf.OmitSubcommandPrefixes[tyro.conf.OmitArgPrefixes[Chosen]]
    grid: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """An axis of the grid, such as --grid estimator=IndeCateR,RLOO-F --grid seed=0,1,2."""
    root: Path = Path("runs")
    """The folder below which the runs are kept."""
    jobs: int = 1
    """Runs at a time, each in a process of its own."""
    deadline: float | None = None
    """Stop in good order after so many seconds."""

    def __call__(self) -> int:
        configs = grid(self.experiment, list(self.grid))
        console = Console()
        console.print(f"{len(configs)} runs of [bold]{self.experiment.name}[/bold] in {self.root}, {self.jobs} at a time")
        with Live(_standing(configs, self.root), console=console, refresh_per_second=1) as live:

            def watch(configs: list[Any]) -> None:
                live.update(_standing(configs, self.root))

            problems = sweep(configs, self.root, jobs=self.jobs, deadline=self.deadline, watch=watch)
            watch(configs)
        for problem in problems:
            console.print(escape(problem), style="red", highlight=False)
        return 1 if problems else 0


@dataclass(frozen=True)
class Plot:
    """Draw the paper's figures from runs."""

    sources: tyro.conf.Positional[tuple[Path, ...]] = (Path("runs"),)
    """Folders of runs, or CSV files written by `catlog export`."""
    output: Path = Path("figures")
    """The folder for the pictures."""
    step_times: Path | None = None
    """CSV with the columns method and ms: time axes by step times measured alone, instead of each run's own clock."""

    def __call__(self) -> int:
        from .plots import save_all

        for path in save_all(records.read_all(self.sources), self.output, _times(self.step_times)):
            print(path)
        return 0


@dataclass(frozen=True)
class Report:
    """Write one HTML page: each claim of the paper, the figure, the measured numbers, the verdict."""

    sources: tyro.conf.Positional[tuple[Path, ...]] = (Path("runs"),)
    """Folders of runs, or CSV files written by `catlog export`."""
    output: Path = Path("report.html")
    """The page."""
    step_times: Path | None = None
    """CSV with the columns method and ms, as for `catlog plot`."""

    def __call__(self) -> int:
        from .report import report, summary

        rows = records.read_all(self.sources)
        report(rows, self.output, step_times=_times(self.step_times))
        console = Console()
        listed = summary(rows)
        if listed:
            table = Table(*listed[0].keys())
            for each in listed:
                table.add_row(*(str(value) for value in each.values()))
            console.print(table)
        console.print(f"Report: {self.output.resolve()}")
        return 0


@dataclass(frozen=True)
class Export:
    """Gather runs into one tidy CSV file."""

    sources: tyro.conf.Positional[tuple[Path, ...]] = (Path("runs"),)
    """Folders of runs."""
    output: Path = Path("results.csv")
    """The file."""
    thin: int = 1
    """Keep every so many-th logged point of a run (and always the last)."""
    digits: int = 6
    """Significant digits of a number."""

    def __call__(self) -> int:
        rows = records.thinned(records.read_all(self.sources), self.thin)
        records.write(rows, self.output, digits=self.digits)
        print(f"{len(rows)} rows in {self.output}")
        return 0


@dataclass(frozen=True)
class List:
    """List the experiments with the paper's methods, and all estimators."""

    def __call__(self) -> int:
        console = Console()
        table = Table("experiment", "the paper's methods", "what it is")
        for name, cls in EXPERIMENTS.items():
            table.add_row(name, ", ".join(cls.labels), escape((cls.__doc__ or "").split("\n")[0]))
        console.print(table)
        table = Table("estimator", "unbiased", "laws", "reference")
        for name, each in ESTIMATORS.items():
            table.add_row(name, "yes" if each.unbiased else "no", ", ".join(sorted(each.laws)), each.reference)
        console.print(table)
        return 0


Command = (
    Annotated[Run, tyro.conf.subcommand("run", prefix_name=False)]
    | Annotated[Sweep, tyro.conf.subcommand("sweep", prefix_name=False)]
    | Annotated[Plot, tyro.conf.subcommand("plot", prefix_name=False)]
    | Annotated[Report, tyro.conf.subcommand("report", prefix_name=False)]
    | Annotated[Export, tyro.conf.subcommand("export", prefix_name=False)]
    | Annotated[List, tyro.conf.subcommand("list", prefix_name=False)]
)


def main(arguments: list[str] | None = None) -> int:
    """The entry point; errors of the user's making are one line, not a traceback."""
    given = sys.argv[1:] if arguments is None else arguments
    if given == ["--version"]:
        print(f"catlog {__version__}")
        return 0
    command: Callable[[], int] = tyro.cli(
        Command, args=given, prog="catlog", description=__doc__, config=(tyro.conf.CascadeSubcommandArgs,)
    )
    try:
        return command()
    except (ValueError, TypeError, DataError, OSError, ImportError) as error:
        Console(stderr=True).print(escape(f"catlog: {error}"), style="red", highlight=False)
        return 2
    except KeyboardInterrupt:
        return 130


def _bar(console: Console) -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    return Progress(*columns, console=console, refresh_per_second=4)


def _headline(experiment: str, row: Mapping[str, float]) -> str:
    value = row.get(HEADLINE[experiment])
    return "running" if value is None else f"{HEADLINE[experiment]} {value:.5g}"


def _standing(configs: list[Experiment], root: Path) -> Table:
    """What a sweep looks like now."""
    table = Table("run", "iteration", "metric", "")
    for config, (path, row, finished) in zip(configs, progress(configs, root), strict=True):
        told = _headline(config.name, row) if row else ""
        table.add_row(path.name, str(row["iteration"]) if row else "", told, "done" if finished else "")
    return table


def _times(path: Path | None) -> dict[str, float] | None:
    from .series import step_times

    return None if path is None else step_times(records.read(path))
