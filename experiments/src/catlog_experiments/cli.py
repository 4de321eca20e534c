"""The command ``catlog``: run experiments, report on them, and compare estimators."""

import contextlib
import functools
import operator
import shlex
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro
from rich import progress
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from catlog import problems
from catlog.estimators import ESTIMATORS

from . import EXPERIMENTS, records
from .comparing import Advise, Compare
from .named_estimators import chosen_estimator
from .run import execute
from .run_folder import Folder, folder_for, refuse_run_file
from .settings import Checked, Count, Counted, NotNegative, Settings
from .sweeps import grid, sweep


def _subcommands(classes: Mapping[str, type]) -> Any:
    """Return a union of classes as subcommands; the first line of a docstring is the help."""
    parts = []
    for name, cls in classes.items():
        about = (cls.__doc__ or "").split("\n")[0]
        command = tyro.conf.subcommand(name, prefix_name=False, description=about)
        parts.append(Annotated[cls, command])
    return functools.reduce(operator.or_, parts)


if TYPE_CHECKING:
    Chosen = Settings
else:
    Chosen = tyro.conf.OmitSubcommandPrefixes[tyro.conf.OmitArgPrefixes[_subcommands(EXPERIMENTS)]]
Sources = tyro.conf.Positional[tuple[Path, ...]]
SHOW_EVERY = 0.5  # seconds


def _progress_bar(console: Console) -> progress.Progress:
    """Return a bar with description, count, elapsed and remaining time."""
    return progress.Progress(
        progress.TextColumn("{task.description}"),
        progress.BarColumn(bar_width=20),
        progress.MofNCompleteColumn(),
        progress.TimeElapsedColumn(),
        progress.TextColumn("elapsed"),
        progress.TimeRemainingColumn(),
        progress.TextColumn("left"),
        console=console,
        refresh_per_second=4,
    )


@dataclass(frozen=True)
class RunCommand(Checked):
    """Run one experiment of the paper. After Ctrl-C, --resume continues the run."""

    experiment: Chosen
    folder: Path | None = None
    """The folder of the run; None: a folder below runs/, named after the settings."""
    resume: bool = False
    """Continue the run in the folder, or extend a shorter run of the same settings."""
    checkpoint_every: NotNegative = 30.0
    """Seconds between checkpoints."""

    def __call__(self) -> int:
        config, console = self.experiment, Console()
        chosen_estimator(config)
        metric, name = config.headline
        folder = folder_for(config) if self.folder is None else self.folder
        title = f"{config.name} {config.estimator}, seed {config.seed}, in {folder}"
        console.print(title, markup=False, highlight=False)
        if is_complete := Folder(folder).completed(config.record()) is not None:
            console.print("The run is complete already.")
        try:
            with _progress(console, [Path(folder)] * (not is_complete), config.headline) as watch:
                metrics = execute(
                    config,
                    folder,
                    resume=self.resume,
                    checkpoint_every=self.checkpoint_every,
                    watch=lambda *_: watch(),
                    notify=lambda note: _print_notes([note], console),
                )
        except KeyboardInterrupt:
            flags = f"--resume --folder {shlex.quote(str(folder))}"
            text = f"Stopped. To continue, run the same command with {flags}"
            console.print(text, markup=False, highlight=False, soft_wrap=True)  # to be copied
            return 130
        table = Table("metric", "value")
        for key, value in metrics.items():
            label = f"{key} ({name})" if key == metric != name else key
            table.add_row(label, "" if value is None else f"{value:.6g}")
        console.print(table)
        return 0


@dataclass(frozen=True)
class SweepCommand(Checked):
    """Run a grid of settings. The same command resumes it, and skips complete runs."""

    experiment: Chosen
    grid: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """An axis of the grid, such as --grid estimator=IndeCateR,RLOO-F --grid seed=0,1,2."""
    root: Path = Path("runs")
    """The folder below which the runs are stored."""
    jobs: Count | None = None
    """Runs at a time; more than one needs Ray (pip install ray). None: one after another."""
    address: str | None = None
    """Ray: the cluster to join (or RAY_ADDRESS); None: start one on this machine."""
    cpus_per_run: Count = 1
    """Ray: number of cores of a run."""
    gpus_per_run: NotNegative | None = None
    """Ray: GPUs of a run, such as 0.25; None: 1 if the cluster has GPUs."""
    retries: Counted = 3
    """Ray: how often to retry a run whose process died."""
    checkpoint_every: NotNegative = 30.0
    """Seconds between checkpoints of a run."""
    output: Path | None = None
    """The CSV file for all runs of the sweep; None: <experiment>.csv in the root."""

    def __call__(self) -> int:
        configs, console = grid(self.experiment, self.grid), Console()
        output = self.root / f"{self.experiment.name}.csv" if self.output is None else self.output
        refuse_run_file(output)
        folders = [folder_for(config, self.root) for config in configs]
        count = f"{len(configs)} run{'s' * (len(configs) > 1)}"
        title = f"{count} of {self.experiment.name}, stored in {self.root}"
        console.print(title, markup=False, highlight=False)
        names = ("jobs", "address", "cpus_per_run", "gpus_per_run", "retries", "checkpoint_every")
        settings: dict[str, Any] = {name: getattr(self, name) for name in names}
        notes: list[str] = []
        try:
            with _progress(console, folders, self.experiment.headline) as watch:
                wrong = sweep(configs, self.root, watch=watch, notify=notes.append, **settings)
        except KeyboardInterrupt:
            console.print("Stopped. Run the same command again to continue.")
            return 130
        _print_notes(notes, console)
        _print_notes(wrong, console, style="red")
        parts = [rows for path in dict.fromkeys(folders) if (rows := records.read_run(path))]
        if parts:
            rows = [row for part in parts for row in part]
            records.write(rows, output)
            console.print(f"{len(rows)} rows of {len(parts)} of {count}: {escape(str(output))}")
        return 1 if wrong else 0


@contextlib.contextmanager
def _progress(
    console: Console, folders: Sequence[Path], headline: tuple[str, str]
) -> Iterator[Callable[[], None]]:
    """Show how many runs are complete, and how far those are that have begun since now.

    All is read from the files of the runs, wherever they are executed, twice a second at most.
    """
    began, waiting = time.time(), dict.fromkeys(folders)
    metric, name = headline
    count, shown_at = len(waiting), 0.0
    with _progress_bar(console) as bar:
        total = bar.add_task("runs", total=count, visible=False)
        lines: dict[Path, Any] = {}

        def show() -> None:
            for path in list(waiting):
                folder, sessions = Folder(path), path / "sessions.jsonl"
                if folder.completed() is not None:
                    del waiting[path]
                    if path in lines:
                        bar.remove_task(lines.pop(path))
                elif sessions.exists() and sessions.stat().st_mtime >= began:
                    row: Mapping[str, Any] = (folder.rows() or [{}])[-1]
                    if path not in lines:
                        iterations = folder.sessions()[-1]["iterations"]
                        lines[path] = bar.add_task(path.name, total=iterations)
                    value = row.get(metric)
                    text = path.name if value is None else f"{path.name}, {name} {value:.5g}"
                    bar.update(lines[path], completed=row.get("iteration", 0), description=text)
            bar.update(total, completed=count - len(waiting), visible=count > 0)

        def watch() -> None:
            nonlocal shown_at
            if time.monotonic() > shown_at + SHOW_EVERY:
                show()
                shown_at = time.monotonic()

        yield watch
        show()


@dataclass(frozen=True)
class ReportCommand(Checked):
    """Write an HTML page of runs: figures, numbers, verdicts on the paper's claims."""

    sources: Sources = (Path("runs"),)
    """Folders of runs, or CSV files written by `catlog export`."""
    output: Path = Path("report.html")
    """The HTML file to write."""
    figures: Path | None = None
    """A folder for the figures as PNG files as well."""
    step_times: Path | None = None
    """CSV file with the columns method and ms: step times to use instead of each run's clock."""

    def __call__(self) -> int:
        from .report.page import provenance, verdict_lines, write_figures, write_page
        from .report.runs import Evidence
        from .report.tables import summary

        rows, console = _read_runs(self.sources), Console()
        measured = [] if self.step_times is None else records.read(self.step_times)
        evidence = Evidence.from_rows(rows, measured)
        write_page(evidence, self.output, provenance(self.sources, rows))
        for content in summary(evidence):
            cells = ([row[name] for name in content.header] for row in content.rows)
            _print_table(console, content.header, cells, content.caption)
        _print_notes(evidence.notes, console)
        lines = verdict_lines(evidence)
        lines += map(str, write_figures(evidence, self.figures) if self.figures else [])
        for line in [*lines, f"Report: {self.output.resolve()}"]:
            console.print(escape(line), highlight=False, soft_wrap=True)
        return 0


@dataclass(frozen=True)
class ExportCommand(Checked):
    """Collect runs in one tidy CSV file."""

    sources: Sources = (Path("runs"),)
    """Folders of runs."""
    output: Path = Path("results.csv")
    """The CSV file to write."""
    thin: Count = 1
    """Keep every N-th logged point of each run, and always the last one."""
    digits: Count = 6
    """Number of significant digits."""

    def __call__(self) -> int:
        rows = records.thinned(_read_runs(self.sources), self.thin)
        records.write(rows, self.output, digits=self.digits)
        print(f"{len(rows)} rows in {self.output}")
        return 0


def _read_runs(sources: Sequence[Path]) -> list[records.Row]:
    """Return the rows of all sources; raise if there are none."""
    rows = records.read_all(sources)
    if not rows:
        raise ValueError(f"No run in {', '.join(map(str, sources))}. Nothing was written.")
    return rows


@dataclass(frozen=True)
class ListCommand:
    """List the experiments, all estimators and the test problems."""

    what: tyro.conf.Positional[Literal["all", "experiments", "estimators", "problems"]] = "all"
    """The table to print."""

    def __call__(self) -> int:
        tables: dict[str, list[Sequence[str]]] = {
            "experiments": [("experiment", "the paper's methods", "description")],
            "estimators": [("estimator", "unbiased", "distributions", "reference")],
            "problems": [("problem", "description"), *problems.describe().items()],
        }
        for name, cls in EXPERIMENTS.items():
            first_line = (cls.__doc__ or "").split("\n")[0]
            tables["experiments"].append((name, ", ".join(cls.labels), first_line))
        for name, E in ESTIMATORS.items():
            kinds = ", ".join(sorted(map(str, E.supports))).replace("index", "categorical")
            if {"bits", "index", "one-hot", "mixed"} <= set(E.supports):
                kinds = "any" if "structured" in E.supports else "independent"
            unbiased = "yes" if E().unbiased else "no"
            tables["estimators"].append((name, unbiased, kinds, E.reference))
        for name, (header, *rows) in tables.items():
            if self.what in (name, "all"):
                _print_table(Console(), header, rows)
                print()
        return 0


def _print_table(
    console: Console, header: Sequence[str], rows: Iterable[Sequence[str]], title: str | None = None
) -> None:
    """Print a table whose first column is never cut."""
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in header:
        table.add_column(name, overflow="fold", no_wrap=name == header[0])
    for row in rows:
        table.add_row(*map(escape, row))
    console.print(table)


COMMANDS: dict[str, type] = {
    "run": RunCommand, "sweep": SweepCommand, "report": ReportCommand, "export": ExportCommand,
    "compare": Compare, "advise": Advise, "list": ListCommand,
}  # fmt: skip


def main(arguments: list[str]) -> int:
    """Run the command; print errors of the user as one line, without a traceback."""
    try:
        command: Callable[[], int] = tyro.cli(
            _subcommands(COMMANDS),
            args=arguments,
            prog="catlog",
            description="Run experiments, report on them, and compare estimators.",
            config=(tyro.conf.CascadeSubcommandArgs,),
        )
        return command()
    except (ValueError, TypeError, OSError, ImportError) as error:
        _print_notes([f"catlog: {error}"], Console(stderr=True), style="red")
        return 2
    except KeyboardInterrupt:
        return 130


def _print_notes(notes: Sequence[str], console: Console, style: str = "yellow") -> None:
    for note in notes:
        console.print(escape(note), style=style, highlight=False)
