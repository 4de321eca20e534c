"""The command ``catlog``: run, sweep, plot, report, export, compare, advise, list."""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro
from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from .. import __version__, problems
from ..data.files import DataError
from ..diagnostics.progress import progress_bar
from ..estimators import ESTIMATORS
from ..experiments import (
    DVAE,
    EXPERIMENTS,
    Addition,
    Gradients,
    Optimisation,
    execute,
    folder_for,
    records,
)
from ..experiments.ranges import Checked, Count, Counted, Digits, NotNegative
from ..experiments.run_folder import refuse_run_file
from ..experiments.settings import Settings
from ..experiments.sweep import SweepProgress, grid, sweep
from ..report.step_times import StepTimes
from .compare import Advise, Compare

Chosen = (
    Annotated[Gradients, tyro.conf.subcommand("gradients", prefix_name=False)]
    | Annotated[Optimisation, tyro.conf.subcommand("optimisation", prefix_name=False)]
    | Annotated[DVAE, tyro.conf.subcommand("dvae", prefix_name=False)]
    | Annotated[Addition, tyro.conf.subcommand("addition", prefix_name=False)]
)
HEADLINE = {
    "gradients": "relative_variance",
    "optimisation": "value",
    "dvae": "test",
    "addition": "accuracy",
}


@dataclass(frozen=True)
class RunCommand(Checked):
    """Run one experiment of the paper. After Ctrl-C, --resume continues the run."""

    experiment: tyro.conf.OmitSubcommandPrefixes[tyro.conf.OmitArgPrefixes[Chosen]]
    folder: Path | None = None
    """The folder of the run; None: a folder below runs/, named after the settings."""
    resume: bool = False
    """Continue the run in the folder."""
    checkpoint_every: NotNegative = 30.0
    """Seconds between checkpoints."""
    tensorboard: bool = False
    """Write TensorBoard events as well."""

    def __call__(self) -> int:
        config = self.experiment
        folder = folder_for(config) if self.folder is None else self.folder
        console = Console(quiet=_is_silent())
        console.print(
            f"[bold]{config.name}[/bold] {escape(config.estimator)}, seed {config.seed}, "
            f"in {escape(str(folder))}"
        )
        with progress_bar(console) as bar:
            line = bar.add_task("", total=None, visible=False)

            def watch(done: int, total: int, row: Mapping[str, float]) -> None:
                text = _headline(config.name, row)
                bar.update(line, completed=done, total=total, visible=True, description=text)

            def notify(note: str) -> None:
                console.print(escape(note), style="yellow", highlight=False)

            try:
                metrics = execute(
                    config,
                    folder,
                    resume=self.resume,
                    checkpoint_every=self.checkpoint_every,
                    tensorboard=self.tensorboard,
                    watch=watch,
                    notify=notify,
                )
            except KeyboardInterrupt:
                bar.stop()
                console.print(
                    "Stopped. To continue, run the same command with "
                    f"[bold]--resume --folder {escape(str(folder))}[/bold]."
                )
                return 130
        table = Table("metric", "value", title=escape(str(folder)))
        for key, value in metrics.items():
            table.add_row(key, "" if value is None else f"{value:.6g}")
        console.print(table)
        return 0


@dataclass(frozen=True)
class SweepCommand(Checked):
    """Run a grid of settings: skip complete runs, resume interrupted ones, retry dead ones."""

    experiment: tyro.conf.OmitSubcommandPrefixes[tyro.conf.OmitArgPrefixes[Chosen]]
    grid: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """An axis of the grid, such as --grid estimator=IndeCateR,RLOO-F --grid seed=0,1,2."""
    root: Path = Path("runs")
    """The folder below which the runs are stored."""
    engine: Literal["local", "ray"] = "local"
    """Run on this machine, or on a Ray cluster (pip install 'catlog[ray]')."""
    jobs: Count | None = None
    """Runs at a time, in separate processes; None: one (on a cluster, as many as fit)."""
    address: str | None = None
    """Ray: the cluster to join (or RAY_ADDRESS); None: start a cluster for this sweep."""
    cpus_per_run: Count = 1
    """Ray: number of cores of a run."""
    gpus_per_run: NotNegative | None = None
    """Ray: GPUs of a run, such as 0.25; None: 1 if the cluster has GPUs, unless --device cpu."""
    retries: Counted = 3
    """How often to retry a run whose process died."""
    deadline: NotNegative | None = None
    """Stop gracefully after this many seconds; the same command continues the sweep."""
    checkpoint_every: NotNegative = 30.0
    """Seconds between checkpoints of a run."""
    output: Path | None = None
    """The CSV file for all runs of the sweep; None: <experiment>.csv in the root."""
    report: Path | None = None
    """Write a report of these runs to this HTML page as well."""

    def __call__(self) -> int:
        configs = grid(self.experiment, list(self.grid))
        output = self.root / f"{self.experiment.name}.csv" if self.output is None else self.output
        for path in (output, self.report):
            if path is not None:
                refuse_run_file(path)
        console = Console()
        engine = "on this machine" if self.engine == "local" else "on Ray"
        console.print(
            f"{len(configs)} runs of [bold]{self.experiment.name}[/bold] {engine}, "
            f"stored in {escape(str(self.root))}"
        )
        progress = SweepProgress(configs, self.root)
        try:
            problems, notes = self._run(configs, progress, console)
        except KeyboardInterrupt:
            console.print("Stopped. Run the same command again to continue.")
            return 130
        for note in notes:
            console.print(escape(note), style="yellow", highlight=False)
        for problem in problems:
            console.print(escape(problem), style="red", highlight=False)
        rows = [row for path in progress.experiments for row in records.read_run(path)]
        if rows:
            records.write(rows, output)
            console.print(f"{len(rows)} rows of {len(configs)} runs: {escape(str(output))}")
        if self.report is not None:
            from ..report.page import report

            report(rows, self.report)
            console.print(f"Report: {escape(str(self.report.resolve()))}")
        return 1 if problems else 0

    def _run(
        self, configs: Sequence[Settings], progress: SweepProgress, console: Console
    ) -> tuple[list[str], list[str]]:
        """Run the sweep behind a live table, and return its problems and notes."""
        notes: list[str] = []
        with Live(_sweep_table(progress, console), console=console, refresh_per_second=1) as live:

            def watch(configs: Sequence[Settings]) -> None:
                live.update(_sweep_table(progress, console))

            problems = sweep(
                configs,
                self.root,
                engine=self.engine,
                jobs=self.jobs,
                address=self.address,
                cpus_per_run=self.cpus_per_run,
                gpus_per_run=self.gpus_per_run,
                retries=self.retries,
                deadline=self.deadline,
                checkpoint_every=self.checkpoint_every,
                watch=watch,
                notify=notes.append,
            )
            watch(configs)
        return problems, notes


@dataclass(frozen=True)
class PlotCommand(Checked):
    """Draw the paper's figures from runs."""

    sources: tyro.conf.Positional[tuple[Path, ...]] = (Path("runs"),)
    """Folders of runs, or CSV files written by `catlog export`."""
    output: Path = Path("figures")
    """The folder for the pictures."""
    step_times: Path | None = None
    """CSV file with the columns method and ms: step times to use instead of each run's clock."""

    def __call__(self) -> int:
        from ..report.figures import save_all

        rows = records.read_all(self.sources)
        for path in save_all(rows, self.output, _read_step_times(self.step_times)):
            print(path)
        return 0


@dataclass(frozen=True)
class ReportCommand(Checked):
    """Write an HTML page with each claim of the paper, the figure, the numbers and the verdict."""

    sources: tyro.conf.Positional[tuple[Path, ...]] = (Path("runs"),)
    """Folders of runs, or CSV files written by `catlog export`."""
    output: Path = Path("report.html")
    """The page."""
    step_times: Path | None = None
    """CSV file with the columns method and ms, as for `catlog plot`."""

    def __call__(self) -> int:
        from ..report.page import report
        from ..report.tables import summary

        rows = records.read_all(self.sources)
        report(rows, self.output, step_times=_read_step_times(self.step_times))
        console = Console()
        lines = summary(rows)
        if lines:
            table = Table(*lines[0].keys())
            for line in lines:
                table.add_row(*(str(value) for value in line.values()))
            console.print(table)
        console.print(f"Report: {escape(str(self.output.resolve()))}")
        return 0


@dataclass(frozen=True)
class ExportCommand(Checked):
    """Collect runs in one tidy CSV file."""

    sources: tyro.conf.Positional[tuple[Path, ...]] = (Path("runs"),)
    """Folders of runs."""
    output: Path = Path("results.csv")
    """The file."""
    thin: Count = 1
    """Keep every N-th logged point of each run, and always the last one."""
    digits: Digits = 6
    """Number of significant digits."""

    def __call__(self) -> int:
        rows = records.thinned(records.read_all(self.sources), self.thin)
        records.write(rows, self.output, digits=self.digits)
        print(f"{len(rows)} rows in {self.output}")
        return 0


@dataclass(frozen=True)
class ListCommand:
    """List the experiments with the paper's methods, all estimators, and the test problems."""

    def __call__(self) -> int:
        console = Console()
        table = Table("experiment", "the paper's methods", "description")
        for name, cls in EXPERIMENTS.items():
            table.add_row(name, ", ".join(cls.labels), escape((cls.__doc__ or "").split("\n")[0]))
        console.print(table)
        table = Table("estimator", "unbiased", "distributions", "reference")
        for name, estimator in ESTIMATORS.items():
            unbiased = "yes" if estimator().unbiased else "no"
            supported = ", ".join(sorted(estimator.supports))
            table.add_row(name, unbiased, supported, estimator.reference)
        console.print(table)
        table = Table("problem", "description")
        for name, description in problems.describe().items():
            table.add_row(name, description)
        console.print(table)
        return 0


Command = (
    Annotated[RunCommand, tyro.conf.subcommand("run", prefix_name=False)]
    | Annotated[SweepCommand, tyro.conf.subcommand("sweep", prefix_name=False)]
    | Annotated[PlotCommand, tyro.conf.subcommand("plot", prefix_name=False)]
    | Annotated[ReportCommand, tyro.conf.subcommand("report", prefix_name=False)]
    | Annotated[ExportCommand, tyro.conf.subcommand("export", prefix_name=False)]
    | Annotated[Compare, tyro.conf.subcommand("compare", prefix_name=False)]
    | Annotated[Advise, tyro.conf.subcommand("advise", prefix_name=False)]
    | Annotated[ListCommand, tyro.conf.subcommand("list", prefix_name=False)]
)


def main(arguments: list[str] | None = None) -> int:
    """Run the command; print errors of the user as one line, without a traceback."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments == ["--version"]:
        print(f"catlog {__version__}")
        return 0
    try:
        command: Callable[[], int] = tyro.cli(
            Command,
            args=arguments,
            prog="catlog",
            description=__doc__,
            config=(tyro.conf.CascadeSubcommandArgs,),
        )
        return command()
    except (ValueError, TypeError, DataError, OSError, ImportError) as error:
        Console(stderr=True, quiet=_is_silent()).print(
            escape(f"catlog: {error}"), style="red", highlight=False
        )
        return 2
    except KeyboardInterrupt:
        return 130


def _is_silent() -> bool:
    """Return True on all ranks of torchrun but the first."""
    return int(os.environ.get("RANK", "0")) > 0


def _headline(experiment: str, row: Mapping[str, float]) -> str:
    value = row.get(HEADLINE[experiment])
    return "running" if value is None else f"{HEADLINE[experiment]} {value:.5g}"


def _sweep_table(progress: SweepProgress, console: Console) -> Table:
    """Return a table of as many runs as fit on the screen, running ones first."""
    runs = progress.runs()
    order = {"running": 0, "waiting": 1, "done": 2}
    room = max(4, console.height - 8)
    shown = sorted(runs, key=lambda run: order[run.state]) if len(runs) > room else runs
    done = sum(run.state == "done" for run in runs)
    seconds = progress.seconds_left(runs)
    remaining = "" if seconds is None else f", about {_clock(seconds)} left"
    caption = f"{done} of {len(runs)} done{remaining}"
    table = Table("run", "iteration", "metric", "state", "time left", caption=caption)
    for run in shown[:room]:
        metric, iteration = "", ""
        if run.row is not None:
            metric = _headline(run.experiment, run.row)
            total = f"/{run.iterations}" if run.iterations else ""
            iteration = f"{run.row['iteration']}{total}"
        table.add_row(run.path.name, iteration, metric, run.state, _clock(run.seconds_left))
    if len(shown) > room:
        table.add_row(f"and {len(shown) - room} more", "", "", "", "")
    return table


def _clock(seconds: float | None) -> str:
    """Format seconds as h:mm:ss, None as an empty text."""
    if seconds is None:
        return ""
    minutes, rest = divmod(max(0, round(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"


def _read_step_times(path: Path | None) -> StepTimes:
    return StepTimes.from_rows([] if path is None else records.read(path))
