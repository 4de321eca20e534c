"""The command ``catlog``: run experiments, report on them, and compare estimators."""

import contextlib
import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from catlog import problems
from catlog.core.categories import Kind
from catlog.core.estimator import ANY, INDEPENDENT
from catlog.estimators import ESTIMATORS

from .. import (
    DVAE,
    EXPERIMENTS,
    Addition,
    Gradients,
    Optimisation,
    Programs,
    execute,
    folder_for,
    records,
)
from ..data.files import DataError
from ..named_estimators import check_settings
from ..progress_bar import progress_bar
from ..ranges import Checked, Count, Counted, Digits, NotNegative
from ..ranks import launched_ranks
from ..report.step_times import StepTimes
from ..run import find_shorter_run
from ..run_folder import refuse_run_file
from ..settings import Settings
from ..sweep import check_sweep, grid, sweep
from ..sweep_progress import SweepProgress
from .compare import Advise, Compare


def _subcommand(experiment: type[Settings]) -> Any:
    """Return the subcommand of an experiment, with the first line of its docstring as help.

    The lines of a longer text would be joined, and then broken in the middle of a word.
    """
    first_line = (experiment.__doc__ or "").split("\n")[0]
    return tyro.conf.subcommand(experiment.name, prefix_name=False, description=first_line)


Chosen = (
    Annotated[Gradients, _subcommand(Gradients)]
    | Annotated[Optimisation, _subcommand(Optimisation)]
    | Annotated[DVAE, _subcommand(DVAE)]
    | Annotated[Addition, _subcommand(Addition)]
    | Annotated[Programs, _subcommand(Programs)]
)
FULL_WIDTH = 72  # of a terminal in which the longest name of an estimator leaves space for the rest
# The words of README for the kinds of distribution.
KINDS = {Kind.INDEX: "categorical"}


@dataclass(frozen=True)
class RunCommand(Checked):
    """Run one experiment of the paper. After Ctrl-C, --resume continues the run."""

    experiment: tyro.conf.OmitSubcommandPrefixes[tyro.conf.OmitArgPrefixes[Chosen]]
    folder: Path | None = None
    """The folder of the run; None: a folder below runs/, named after the settings."""
    resume: bool = False
    """Continue the run in the folder, or extend a shorter run of the same settings."""
    checkpoint_every: NotNegative = 30.0
    """Seconds between checkpoints."""
    tensorboard: bool = False
    """Write TensorBoard events as well."""

    def __call__(self) -> int:
        config = self.experiment
        metric, name = config.headline
        check_settings(config)
        folder = folder_for(config) if self.folder is None else self.folder
        extends = None
        if self.resume and self.folder is None:
            extends = find_shorter_run(config)
        console = Console(quiet=_is_silent())
        console.print(
            f"[bold]{config.name}[/bold] {escape(config.estimator)}, seed {config.seed}, "
            f"in {escape(str(folder))}"
        )
        with progress_bar(console) as bar:
            line = bar.add_task("", total=None, visible=False)
            has_begun = False

            def watch(done: int, total: int, row: Mapping[str, float]) -> None:
                nonlocal has_begun
                if self.resume and not has_begun:
                    start = f"Resumes from iteration {done} of {total}."
                    notify(start if done else "Nothing to resume: starts from scratch.")
                has_begun = True
                value = row.get(metric)
                text = "running" if value is None else f"{name} {value:.5g}"
                bar.update(line, completed=done, total=total, visible=True, description=text)

            def notify(note: str) -> None:
                _print_notes([note], console)

            try:
                metrics = execute(
                    config,
                    folder,
                    resume=self.resume,
                    extends=extends,
                    checkpoint_every=self.checkpoint_every,
                    tensorboard=self.tensorboard,
                    watch=watch,
                    notify=notify,
                )
            except KeyboardInterrupt:
                bar.stop()
                flags = f"--resume --folder {shlex.quote(str(folder))}"
                console.print(
                    f"Stopped. To continue, run the same command with [bold]{escape(flags)}[/bold]",
                    soft_wrap=True,  # so that the flags can be copied
                )
                return 130
        if not has_begun:
            console.print("The run is complete already.")
        table = Table("metric", "value")
        for key, value in metrics.items():
            label = f"{key} ({name})" if key == metric != name else key
            table.add_row(label, "" if value is None else f"{value:.6g}")
        console.print(table)
        return 0


@dataclass(frozen=True)
class SweepCommand(Checked):
    """Run a grid of settings. The same command resumes it, and skips complete runs."""

    experiment: tyro.conf.OmitSubcommandPrefixes[tyro.conf.OmitArgPrefixes[Chosen]]
    grid: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """An axis of the grid, such as --grid estimator=IndeCateR,RLOO-F --grid seed=0,1,2."""
    root: Path = Path("runs")
    """The folder below which the runs are stored."""
    engine: Literal["local", "ray"] = "local"
    """Run on this machine, or on a Ray cluster (pip install ray)."""
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
        check_sweep(configs, self.engine)
        output = self.root / f"{self.experiment.name}.csv" if self.output is None else self.output
        for path in (output, self.report):
            if path is not None:
                refuse_run_file(path)
        console = Console()
        engine = "on this machine" if self.engine == "local" else "on Ray"
        console.print(
            f"{_count(len(configs), 'run')} of [bold]{self.experiment.name}[/bold] {engine}, "
            f"stored in {escape(str(self.root))}"
        )
        progress = SweepProgress(configs, self.root)
        try:
            problems, notes = self._run(configs, progress, console)
        except KeyboardInterrupt:
            console.print("Stopped. Run the same command again to continue.")
            return 130
        _print_notes(notes, console)
        for problem in problems:
            console.print(escape(problem), style="red", highlight=False)
        parts = [rows for path in progress.experiments if (rows := records.read_run(path))]
        rows = [row for part in parts for row in part]
        if rows:
            records.write(rows, output)
            console.print(
                f"{_count(len(rows), 'row')} of {len(parts)} of {_count(len(configs), 'run')}: "
                f"{escape(str(output))}"
            )
        if self.report is not None and rows:
            from ..report.page import report
            from ..report.provenance import provenance

            report(rows, self.report, provenance=provenance(progress.experiments, rows))
            console.print(f"Report: {escape(str(self.report.resolve()))}", soft_wrap=True)
        return 1 if problems else 0

    def _run(
        self, configs: Sequence[Settings], progress: SweepProgress, console: Console
    ) -> tuple[list[str], list[str]]:
        """Run the sweep behind a live table, and return its problems and notes."""
        notes: list[str] = []
        with contextlib.ExitStack() as stack:
            live = Live(console=console, refresh_per_second=1)

            def watch() -> None:
                if not live.is_started:  # not before the sweep: an error needs no table
                    stack.enter_context(live)
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
                stopped=progress.stop,
            )
            watch()
        if not console.is_terminal:
            console.line()  # the table has ended without one
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
        from ..report.runs import Evidence

        evidence = Evidence.from_rows(_read_runs(self.sources), _read_step_times(self.step_times))
        for path in save_all(evidence, self.output):
            print(path)
        _print_notes(evidence.notes, Console())
        return 0


@dataclass(frozen=True)
class ReportCommand(Checked):
    """Write an HTML page of runs: figures, numbers, verdicts on the paper's claims."""

    sources: tyro.conf.Positional[tuple[Path, ...]] = (Path("runs"),)
    """Folders of runs, or CSV files written by `catlog export`."""
    output: Path = Path("report.html")
    """The HTML file to write."""
    step_times: Path | None = None
    """Step times as for `catlog plot`, to judge claims about time; None: use each run's clock."""

    def __call__(self) -> int:
        from ..report.page import verdict_lines, write_page
        from ..report.provenance import provenance
        from ..report.runs import Evidence
        from ..report.tables import summary

        rows = _read_runs(self.sources)
        evidence = Evidence.from_rows(rows, _read_step_times(self.step_times))
        write_page(evidence, self.output, provenance(self.sources, rows))
        console = Console()
        for content in summary(evidence):
            table = Table(title=content.caption, title_justify="left")
            for name in content.header:
                table.add_column(name, overflow="fold")
            for row in content.rows:
                table.add_row(*(escape(row[name]) for name in content.header))
            console.print(table)
        _print_notes(evidence.notes, console)
        for line in verdict_lines(evidence):
            console.print(escape(line), highlight=False)
        console.print(f"Report: {escape(str(self.output.resolve()))}", soft_wrap=True)
        return 0


@dataclass(frozen=True)
class ExportCommand(Checked):
    """Collect runs in one tidy CSV file."""

    sources: tyro.conf.Positional[tuple[Path, ...]] = (Path("runs"),)
    """Folders of runs."""
    output: Path = Path("results.csv")
    """The CSV file to write."""
    thin: Count = 1
    """Keep every N-th logged point of each run, and always the last one."""
    digits: Digits = 6
    """Number of significant digits."""

    def __call__(self) -> int:
        rows = records.thinned(_read_runs(self.sources), self.thin)
        records.write(rows, self.output, digits=self.digits)
        print(f"{len(rows)} rows in {self.output}")
        return 0


@dataclass(frozen=True)
class ListCommand:
    """List the experiments, all estimators and the test problems."""

    what: tyro.conf.Positional[Literal["all", "experiments", "estimators", "problems"]] = "all"
    """The table to print."""

    def __call__(self) -> int:
        console = Console()
        tables = {
            "experiments": _experiments_table,
            "estimators": _estimators_table,
            "problems": _problems_table,
        }
        for name, make_table in tables.items():
            if self.what in (name, "all"):
                console.print(make_table(), "")
        return 0


def _table_of_names(name: str, *headers: str) -> Table:
    """Return a table that never shortens names, so that they can be copied and searched for."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False, collapse_padding=True)
    is_wide = Console().width >= FULL_WIDTH
    table.add_column(name, overflow="fold", no_wrap=is_wide)
    for header in headers:
        table.add_column(header, overflow="fold")
    return table


def _experiments_table() -> Table:
    table = _table_of_names("experiment", "the paper's methods", "description")
    for name, cls in EXPERIMENTS.items():
        table.add_row(name, ", ".join(cls.labels), escape((cls.__doc__ or "").split("\n")[0]))
    return table


def _estimators_table() -> Table:
    words = {kind: KINDS.get(kind, str(kind)) for kind in Kind}
    caption = (
        f"independent: {', '.join(words[kind] for kind in Kind if kind in INDEPENDENT)}; "
        f"any: also {words[Kind.STRUCTURED]}"
    )
    table = _table_of_names("estimator", "unbiased", "distributions", "reference")
    table.caption = caption
    names = {ANY: "any", INDEPENDENT: "independent"}
    for name, estimator in ESTIMATORS.items():
        supported = ", ".join(words[kind] for kind in Kind if kind in estimator.supports)
        supported = names.get(frozenset(estimator.supports), supported)
        unbiased = "yes" if estimator().unbiased else "no"
        table.add_row(name, unbiased, supported, estimator.reference)
    return table


def _problems_table() -> Table:
    table = _table_of_names("problem", "description")
    for name, description in problems.describe().items():
        table.add_row(name, description)
    return table


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


def main(arguments: list[str]) -> int:
    """Run the command; print errors of the user as one line, without a traceback."""
    try:
        command: Callable[[], int] = tyro.cli(
            Command,
            args=arguments,
            prog="catlog",
            description="Run experiments, report on them, and compare estimators.",
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
    return launched_ranks() > 1 and int(os.environ["RANK"]) > 0


def _print_notes(notes: Sequence[str], console: Console) -> None:
    for note in notes:
        console.print(escape(note), style="yellow", highlight=False)


def _sweep_table(progress: SweepProgress, console: Console) -> Table:
    """Return a table of as many runs as fit on the screen, running ones first."""
    runs = progress.runs()
    order = {"running": 0, "stopped": 1, "waiting": 2, "done": 3}
    room = max(4, console.height - 8)
    shown = sorted(runs, key=lambda run: order[run.state]) if len(runs) > room else runs
    done = sum(run.state == "done" for run in runs)
    seconds = progress.seconds_left(runs)
    remaining = "" if seconds is None else f", about {_clock(seconds)} left"
    caption = f"{done} of {len(runs)} done{remaining}"
    metric, name = EXPERIMENTS[runs[0].experiment].headline
    axes = list(progress.labels[runs[0].path])
    table = Table(caption=caption, box=SIMPLE_HEAD, pad_edge=False)
    for axis in axes:
        table.add_column(axis, overflow="fold")
    for header in ("iteration", name, "state", "time left"):
        table.add_column(header, no_wrap=header != name)
    for run in shown[:room]:
        value, iteration = "", ""
        if run.row is not None:
            value = "" if run.row.get(metric) is None else f"{run.row[metric]:.5g}"
            total = f"/{run.iterations}" if run.iterations else ""
            iteration = f"{run.row['iteration']}{total}"
        settings = [escape(text) for text in progress.labels[run.path].values()]
        table.add_row(*settings, iteration, value, run.state, _clock(run.seconds_left))
    if len(shown) > room:
        table.add_row(f"and {len(shown) - room} more")
    return table


def _clock(seconds: float | None) -> str:
    """Format seconds as h:mm:ss, None as an empty text."""
    if seconds is None:
        return ""
    minutes, rest = divmod(max(0, round(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"


def _count(number: int, name: str) -> str:
    return f"{number} {name}" if number == 1 else f"{number} {name}s"


def _read_runs(sources: Sequence[Path]) -> list[records.Row]:
    """Return the rows of all sources; raise if there are none."""
    rows = records.read_all(sources)
    if not rows:
        raise ValueError(f"No run in {', '.join(map(str, sources))}. Nothing was written.")
    return rows


def _read_step_times(path: Path | None) -> StepTimes:
    return StepTimes.from_rows([] if path is None else records.read(path))
