"""The progress bar of comparisons and of the command line; rich is only needed if it is shown."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

Advance = Callable[[str, int, int], None]  # description, steps done, steps in all


def progress_bar(console: "Console", transient: bool = False) -> "Progress":
    """Return a bar with description, count, elapsed and remaining time."""
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("elapsed"),
        TimeRemainingColumn(),
        TextColumn("left"),
        console=console,
        refresh_per_second=4,
        transient=transient,
        disable=transient and not console.is_terminal,
    )


@contextmanager
def shown_progress(is_wanted: bool) -> Iterator[Advance]:
    """Show a bar on a terminal while the context lasts, if it is wanted and rich is installed."""
    try:
        from rich.console import Console
    except ImportError:
        is_wanted = False
    if not is_wanted:
        yield lambda description, done, total: None
        return
    with progress_bar(Console(stderr=True), transient=True) as bar:
        line = bar.add_task("", total=None)
        yield lambda description, done, total: bar.update(
            line, description=f"{description:32}", completed=done, total=total
        )
