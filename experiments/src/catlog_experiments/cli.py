"""The command ``catlog``: run experiments, report on them, and compare estimators."""

import contextlib
import shlex
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from catlog import problems
from catlog.estimators import ESTIMATORS

from . import DVAE, EXPERIMENTS, Addition, Gradients, Optimisation, Programs, records
from .comparing import Advise, Compare
from .named_estimators import chosen_estimator
from .progress_bar import progress_bar
from .run import execute
from .run_folder import Folder, folder_for, refuse_run_file
from .settings import Checked, Count, Counted, NotNegative, Settings
from .sweeps import grid, sweep


def _subcommand(experiment: type[Settings]) -> Any:
    """Return the subcommand of an experiment, with the first line of its docstring as help."""
    first_line = (experiment.__doc__ or "").split("\n")[0]
    return tyro.conf.subcommand(experiment.name, prefix_name=False, description=first_line)


Chosen = tyro.conf.OmitSubcommandPrefixes[
    tyro.conf.OmitArgPrefixes[
        Annotated[Gradients, _subcommand(Gradients)]
        | Annotated[Optimisation, _subcommand(Optimisation)]
        | Annotated[DVAE, _subcommand(DVAE)]
        | Annotated[Addition, _subcommand(Addition)]
        | Annotated[Programs, _subcommand(Programs)]
    ]
]
Sources = tyro.conf.Positional[tuple[Path, ...]]


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
    tensorboard: bool = False
    """Write TensorBoard events as well."""

    def __call__(self) -> int:
        config, console = self.experiment, Console()
        chosen_estimator(config)
        metric, name = config.headline
        folder = folder_for(config) if self.folder is None else self.folder
        console.print(
            f"[bold]{config.name}[/bold] {escape(config.estimator)}, seed {config.seed}, "
            f"in {escape(str(folder))}"
        )
        begun_at: int | None = None
        with progress_bar(console) as bar:
            line = bar.add_task("", total=None, visible=False)

            def watch(done: int, total: int, row: Mapping[str, Any]) -> None:
                nonlocal begun_at
                if begun_at is None and self.resume:
                    note = f"Resumes from iteration {done} of {total}."
                    _print_notes(
                        [note if done else "Nothing to resume: starts from scratch."], console
                    )
                begun_at = done if begun_at is None else begun_at
                value = row.get(metric)
                text = "running" if value is None else f"{name} {value:.5g}"
                bar.update(line, completed=done, total=total, visible=True, description=text)

            try:
                metrics = execute(
                    config,
                    folder,
                    resume=self.resume,
                    checkpoint_every=self.checkpoint_every,
                    tensorboard=self.tensorboard,
                    watch=watch,
                    notify=lambda note: _print_notes([note], console),
                )
            except KeyboardInterrupt:
                bar.stop()
                flags = f"--resume --folder {shlex.quote(str(folder))}"
                console.print(
                    f"Stopped. To continue, run the same command with [bold]{escape(flags)}[/bold]",
                    soft_wrap=True,  # so that the flags can be copied
                )
                return 130
        if begun_at is None:
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
    deadline: NotNegative | None = None
    """Stop after this many seconds; the same command continues the sweep."""
    checkpoint_every: NotNegative = 30.0
    """Seconds between checkpoints of a run."""
    output: Path | None = None
    """The CSV file for all runs of the sweep; None: <experiment>.csv in the root."""

    def __call__(self) -> int:
        configs, console = grid(self.experiment, self.grid), Console()
        output = self.root / f"{self.experiment.name}.csv" if self.output is None else self.output
        refuse_run_file(output)
        folders = [folder_for(config, self.root) for config in configs]
        console.print(
            f"{_count(len(configs), 'run')} of [bold]{self.experiment.name}[/bold], "
            f"stored in {escape(str(self.root))}"
        )
        notes: list[str] = []
        try:
            with _progress(console, folders, self.experiment.headline) as watch:
                wrong = sweep(
                    configs,
                    self.root,
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
                watch()
        except KeyboardInterrupt:
            console.print("Stopped. Run the same command again to continue.")
            return 130
        _print_notes(notes, console)
        for problem in wrong:
            console.print(escape(problem), style="red", highlight=False)
        parts = [rows for path in dict.fromkeys(folders) if (rows := records.read_run(path))]
        if parts:
            rows = [row for part in parts for row in part]
            records.write(rows, output)
            console.print(
                f"{_count(len(rows), 'row')} of {len(parts)} of {_count(len(configs), 'run')}: "
                f"{escape(str(output))}"
            )
        return 1 if wrong else 0


@contextlib.contextmanager
def _progress(
    console: Console, folders: Sequence[Path], headline: tuple[str, str]
) -> Iterator[Callable[[], None]]:
    """Show how many runs are complete, and how far those are that have begun since now.

    All is read from the files of the runs, wherever they are executed.
    """
    began, metric, name = time.time(), *headline
    waiting = dict.fromkeys(folders)
    count = len(waiting)
    with progress_bar(console) as bar:
        total = bar.add_task("runs", total=count, visible=False)
        lines: dict[Path, Any] = {}

        def watch() -> None:
            for path in list(waiting):
                folder, sessions = Folder(path), path / "sessions.jsonl"
                if folder.completed() is not None:
                    del waiting[path]
                    if path in lines:
                        bar.remove_task(lines.pop(path))
                elif sessions.exists() and sessions.stat().st_mtime >= began:
                    row, iterations = folder.last_row(), folder.sessions()[-1]["iterations"]
                    if path not in lines:
                        lines[path] = bar.add_task(path.name, total=iterations)
                    value = (row or {}).get(metric)
                    text = path.name if value is None else f"{path.name}, {name} {value:.5g}"
                    done = (row or {}).get("iteration", 0)
                    bar.update(lines[path], completed=done, description=text)
            bar.update(total, completed=count - len(waiting), visible=True)

        yield watch


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
            table = Table(title=content.caption, title_justify="left")
            for name in content.header:
                table.add_column(name, overflow="fold")
            for row in content.rows:
                table.add_row(*(escape(row[name]) for name in content.header))
            console.print(table)
        _print_notes(evidence.notes, console)
        for line in verdict_lines(evidence):
            console.print(escape(line), highlight=False)
        for path in [] if self.figures is None else write_figures(evidence, self.figures):
            console.print(escape(str(path)))
        console.print(f"Report: {escape(str(self.output.resolve()))}", soft_wrap=True)
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
        tables = {
            "experiments": (
                ("experiment", "the paper's methods", "description"),
                (
                    (name, ", ".join(cls.labels), (cls.__doc__ or "").split("\n")[0])
                    for name, cls in EXPERIMENTS.items()
                ),
            ),
            "estimators": (
                ("estimator", "unbiased", "distributions", "reference"),
                (
                    (name, "yes" if cls().unbiased else "no", _kinds(cls.supports), cls.reference)
                    for name, cls in ESTIMATORS.items()
                ),
            ),
            "problems": (("problem", "description"), problems.describe().items()),
        }
        for name, (header, rows) in tables.items():
            if self.what in (name, "all"):
                table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
                for column in header:
                    table.add_column(column, overflow="fold", no_wrap=column == header[0])
                for row in rows:
                    table.add_row(*map(escape, row))
                Console().print(table, "")
        return 0


def _kinds(supported: Iterable[str]) -> str:
    kinds = {str(kind) for kind in supported}
    independent = {"bits", "index", "one-hot", "mixed"}
    if independent <= kinds:
        return "any" if "structured" in kinds else "independent"
    return ", ".join(sorted(kinds)).replace("index", "categorical")


Command = (
    Annotated[RunCommand, tyro.conf.subcommand("run", prefix_name=False)]
    | Annotated[SweepCommand, tyro.conf.subcommand("sweep", prefix_name=False)]
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
    except (ValueError, TypeError, OSError, ImportError) as error:
        Console(stderr=True).print(escape(f"catlog: {error}"), style="red", highlight=False)
        return 2
    except KeyboardInterrupt:
        return 130


def _print_notes(notes: Sequence[str], console: Console) -> None:
    for note in notes:
        console.print(escape(note), style="yellow", highlight=False)


def _count(number: int, name: str) -> str:
    return f"{number} {name}" if number == 1 else f"{number} {name}s"
