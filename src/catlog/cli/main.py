"""The command ``catlog``: run, sweep, plot, report, export, compare, advise, list."""

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

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
from ..experiments.sweep import Standing, grid, sweep
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
class Run(Checked):
    """Run one experiment of the paper. Ctrl-C leaves a run that --resume continues."""

    experiment: tyro.conf.OmitSubcommandPrefixes[tyro.conf.OmitArgPrefixes[Chosen]]
    folder: Path | None = None
    """Where the run is kept; None: below runs/, named after its settings."""
    resume: bool = False
    """Go on with the run that is in the folder."""
    checkpoint_every: NotNegative = 30.0
    """Seconds between checkpoints."""
    tensorboard: bool = False
    """Write TensorBoard events, too."""

    def __call__(self) -> int:
        config = self.experiment
        folder = folder_for(config) if self.folder is None else self.folder
        console = Console(quiet=_silent())
        console.print(
            f"[bold]{config.name}[/bold] {escape(config.estimator)}, seed {config.seed}, in {escape(str(folder))}"
        )
        with progress_bar(console) as bar:
            line = bar.add_task("", total=None, visible=False)

            def watch(done: int, total: int, row: Mapping[str, float]) -> None:
                bar.update(
                    line,
                    completed=done,
                    total=total,
                    visible=True,
                    description=_headline(config.name, row),
                )

            try:
                last = execute(
                    config,
                    folder,
                    resume=self.resume,
                    checkpoint_every=self.checkpoint_every,
                    tensorboard=self.tensorboard,
                    watch=watch,
                    tell=lambda note: console.print(escape(note), style="yellow", highlight=False),
                )
            except KeyboardInterrupt:
                bar.stop()
                console.print(
                    f"Stopped. The same command with [bold]--resume --folder {escape(str(folder))}[/bold] goes on from here."
                )
                return 130
        table = Table("metric", "value", title=escape(str(folder)))
        for key, value in last.items():
            table.add_row(key, "" if value is None else f"{value:.6g}")
        console.print(table)
        return 0


@dataclass(frozen=True)
class Sweep(Checked):
    """Run a grid of settings. What is complete is skipped, what was cut is resumed, what died is tried again."""

    experiment: tyro.conf.OmitSubcommandPrefixes[tyro.conf.OmitArgPrefixes[Chosen]]
    grid: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """An axis of the grid, such as --grid estimator=IndeCateR,RLOO-F --grid seed=0,1,2."""
    root: Path = Path("runs")
    """The folder below which the runs are kept."""
    engine: Literal["local", "ray"] = "local"
    """Where the runs go: processes here, or a Ray cluster (pip install 'catlog[ray]')."""
    jobs: Count | None = None
    """Runs at a time, each in a process of its own; None: one after another in this process, on a cluster as many as fit."""
    address: str | None = None
    """Ray: the cluster to join (or RAY_ADDRESS); None: one that is started here and ends with the sweep."""
    cpus_per_run: Count = 1
    """Ray: cores that a run takes."""
    gpus_per_run: NotNegative | None = None
    """Ray: GPUs that a run takes, such as 0.25; None: one where the cluster has GPUs and --device is not cpu."""
    retries: Counted = 3
    """How often a run whose process died is tried again."""
    deadline: NotNegative | None = None
    """Stop after so many seconds; the same command goes on."""
    checkpoint_every: NotNegative = 30.0
    """Seconds between checkpoints of a run."""
    output: Path | None = None
    """The tidy CSV file of all runs of the sweep; None: <experiment>.csv in the root."""
    report: Path | None = None
    """Write the report of these runs to this HTML page, too."""

    def __call__(self) -> int:
        configs = grid(self.experiment, list(self.grid))
        output = self.root / f"{self.experiment.name}.csv" if self.output is None else self.output
        for path in (output, self.report):
            if path is not None:
                refuse_run_file(path)
        console = Console()
        where = "here" if self.engine == "local" else "on Ray"
        console.print(
            f"{len(configs)} runs of [bold]{self.experiment.name}[/bold] in {escape(str(self.root))}, {where}"
        )
        standing = Standing(configs, self.root)
        try:
            problems, notes = self._run(configs, standing, console)
        except KeyboardInterrupt:
            console.print("Stopped. The same command goes on from here.")
            return 130
        for note in notes:
            console.print(escape(note), style="yellow", highlight=False)
        for problem in problems:
            console.print(escape(problem), style="red", highlight=False)
        rows = [row for path in standing.folders for row in records.read_run(path)]
        if rows:
            records.write(rows, output)
            console.print(f"{len(rows)} rows of {len(configs)} runs: {escape(str(output))}")
        if self.report is not None:
            from ..report.page import report

            report(rows, self.report)
            console.print(f"Report: {escape(str(self.report.resolve()))}")
        return 1 if problems else 0

    def _run(
        self, configs: list[Any], standing: Standing, console: Console
    ) -> tuple[list[str], list[str]]:
        """What went wrong, and what should be known of the runs anyway."""
        notes: list[str] = []
        with Live(_standing(standing, console), console=console, refresh_per_second=1) as live:

            def watch(configs: list[Any]) -> None:
                live.update(_standing(standing, console))

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
                tell=notes.append,
            )
            watch(configs)
        return problems, notes


@dataclass(frozen=True)
class Plot(Checked):
    """Draw the paper's figures from runs."""

    sources: tyro.conf.Positional[tuple[Path, ...]] = (Path("runs"),)
    """Folders of runs, or CSV files written by `catlog export`."""
    output: Path = Path("figures")
    """The folder for the pictures."""
    step_times: Path | None = None
    """CSV with the columns method and ms: time axes by step times measured alone, instead of each run's own clock."""

    def __call__(self) -> int:
        from ..report.figures import save_all

        for path in save_all(records.read_all(self.sources), self.output, _times(self.step_times)):
            print(path)
        return 0


@dataclass(frozen=True)
class Report(Checked):
    """Write one HTML page: each claim of the paper, the figure, the measured numbers, the verdict."""

    sources: tyro.conf.Positional[tuple[Path, ...]] = (Path("runs"),)
    """Folders of runs, or CSV files written by `catlog export`."""
    output: Path = Path("report.html")
    """The page."""
    step_times: Path | None = None
    """CSV with the columns method and ms, as for `catlog plot`."""

    def __call__(self) -> int:
        from ..report.page import report, summary

        rows = records.read_all(self.sources)
        report(rows, self.output, step_times=_times(self.step_times))
        console = Console()
        listed = summary(rows)
        if listed:
            table = Table(*listed[0].keys())
            for each in listed:
                table.add_row(*(str(value) for value in each.values()))
            console.print(table)
        console.print(f"Report: {escape(str(self.output.resolve()))}")
        return 0


@dataclass(frozen=True)
class Export(Checked):
    """Gather runs into one tidy CSV file."""

    sources: tyro.conf.Positional[tuple[Path, ...]] = (Path("runs"),)
    """Folders of runs."""
    output: Path = Path("results.csv")
    """The file."""
    thin: Count = 1
    """Keep every so many-th logged point of a run (and always the last)."""
    digits: Digits = 6
    """Significant digits of a number."""

    def __call__(self) -> int:
        rows = records.thinned(records.read_all(self.sources), self.thin)
        records.write(rows, self.output, digits=self.digits)
        print(f"{len(rows)} rows in {self.output}")
        return 0


@dataclass(frozen=True)
class List:
    """List the experiments with the paper's methods, all estimators, and the problems to try them on."""

    def __call__(self) -> int:
        console = Console()
        table = Table("experiment", "the paper's methods", "what it is")
        for name, cls in EXPERIMENTS.items():
            table.add_row(name, ", ".join(cls.labels), escape((cls.__doc__ or "").split("\n")[0]))
        console.print(table)
        table = Table("estimator", "unbiased", "laws", "reference")
        for name, each in ESTIMATORS.items():
            table.add_row(
                name,
                "yes" if each().unbiased else "no",
                ", ".join(sorted(each.supports)),
                each.reference,
            )
        console.print(table)
        table = Table("problem", "which structure it tests")
        for name, tests in problems.describe().items():
            table.add_row(name, tests)
        console.print(table)
        return 0


Command = (
    Annotated[Run, tyro.conf.subcommand("run", prefix_name=False)]
    | Annotated[Sweep, tyro.conf.subcommand("sweep", prefix_name=False)]
    | Annotated[Plot, tyro.conf.subcommand("plot", prefix_name=False)]
    | Annotated[Report, tyro.conf.subcommand("report", prefix_name=False)]
    | Annotated[Export, tyro.conf.subcommand("export", prefix_name=False)]
    | Annotated[Compare, tyro.conf.subcommand("compare", prefix_name=False)]
    | Annotated[Advise, tyro.conf.subcommand("advise", prefix_name=False)]
    | Annotated[List, tyro.conf.subcommand("list", prefix_name=False)]
)


def main(arguments: list[str] | None = None) -> int:
    """The entry point; errors of the user's making are one line, not a traceback."""
    given = sys.argv[1:] if arguments is None else arguments
    if given == ["--version"]:
        print(f"catlog {__version__}")
        return 0
    try:
        command: Callable[[], int] = tyro.cli(
            Command,
            args=given,
            prog="catlog",
            description=__doc__,
            config=(tyro.conf.CascadeSubcommandArgs,),
        )
        return command()
    except (ValueError, TypeError, DataError, OSError, ImportError) as error:
        Console(stderr=True, quiet=_silent()).print(
            escape(f"catlog: {error}"), style="red", highlight=False
        )
        return 2
    except KeyboardInterrupt:
        return 130


def _silent() -> bool:
    """Of several ranks, the first one speaks."""
    return int(os.environ.get("RANK", "0")) > 0


def _headline(experiment: str, row: Mapping[str, float]) -> str:
    value = row.get(HEADLINE[experiment])
    return "running" if value is None else f"{HEADLINE[experiment]} {value:.5g}"


def _standing(standing: Standing, console: Console) -> Table:
    """What a sweep looks like now: as many runs as the screen holds, those at work first."""
    runs = standing.look()
    order = {"running": 0, "waiting": 1, "done": 2}
    room = max(4, console.height - 8)
    shown = sorted(runs, key=lambda run: order[run.state]) if len(runs) > room else runs
    done = sum(run.state == "done" for run in runs)
    table = Table(
        "run",
        "iteration",
        "metric",
        "",
        "time left",
        caption=f"{done} of {len(runs)} done{_about(standing.left(runs))}",
    )
    for run in shown[:room]:
        told = _headline(run.experiment, run.row) if run.row else ""
        iteration = (
            ""
            if run.row is None
            else f"{run.row['iteration']}" + (f"/{run.iterations}" if run.iterations else "")
        )
        table.add_row(run.path.name, iteration, told, run.state, _duration(run.left))
    if len(shown) > room:
        table.add_row(f"and {len(shown) - room} more", "", "", "", "")
    return table


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return ""
    minutes, rest = divmod(max(0, round(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"


def _about(seconds: float | None) -> str:
    return "" if seconds is None else f", about {_duration(seconds)} left"


def _times(path: Path | None) -> dict[str, float] | None:
    from ..report.runs import step_times

    return None if path is None else step_times(records.read(path))
