"""Where runs come from: sources, seeds, machines, versions and commands."""

import sys
from collections.abc import Iterable
from pathlib import Path

from catlog import __version__

from ..records import Row
from ..run_folder import Folder

# The name on the page -> the entry of a run's sessions.jsonl.
ENTRIES = {
    "machine": "host",
    "system": "platform",
    "device": "device",
    "threads": "threads",
    "catlog of the runs": "catlog",
    "commit": "commit",
    "torch": "torch",
    "python": "python",
    "commands of the runs": "command",
}
SHOWN = 8  # different values of an entry; a sweep has few, and the page stays readable


def provenance(sources: Iterable[Path], rows: Iterable[Row]) -> dict[str, str]:
    """Return names and values that say where these runs come from; a CSV file does not say it."""
    sources = list(sources)
    paths = [path for source in sources for path in sorted(source.rglob("sessions.jsonl"))]
    starts = [session for path in paths for session in Folder(path.parent).sessions()[:1]]
    lines = {
        "sources": _joined(map(str, sources)),
        "seeds": _joined(sorted({row["seed"] for row in rows if row.get("seed") is not None})),
    }
    for name, key in ENTRIES.items():
        lines[name] = _joined(start[key] for start in starts if start.get(key))
    lines["catlog of this page"] = __version__
    lines["command of this page"] = " ".join(["catlog", *sys.argv[1:]])
    return {name: value for name, value in lines.items() if value}


def _joined(values: Iterable[object]) -> str:
    different = list(dict.fromkeys(map(str, values)))
    more = f", and {len(different) - SHOWN} more" if len(different) > SHOWN else ""
    return ", ".join(different[:SHOWN]) + more
