"""A progress bar on a terminal, if the package rich is installed."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

Advance = Callable[[str, int, int], None]  # description, steps done, steps in all


@contextmanager
def shown_progress(is_wanted: bool) -> Iterator[Advance]:
    """Show a bar while the context lasts, if it is wanted and possible."""
    try:
        from rich.console import Console
        from rich.progress import Progress
    except ImportError:
        is_wanted = False
    if not is_wanted or not (console := Console(stderr=True)).is_terminal:
        yield lambda description, done, total: None
        return
    with Progress(console=console, transient=True) as bar:
        line = bar.add_task("", total=None)
        yield lambda description, done, total: bar.update(
            line, description=f"{description:32}", completed=done, total=total
        )
