"""Where runs come from: sources, seeds, machines, versions and commands."""

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from catlog import __version__

from ..records import Row
from ..run_folder import read_json

# The name on the page -> the entry of a run's provenance.json.
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
    """Return names and values that say where these runs come from.

    A CSV file holds the seeds, but no machine and no command: these are read from folders of runs.
    """
    sources = list(sources)
    files = [path for source in sources for path in sorted(source.rglob("provenance.json"))]
    records = [record for path in files if (record := read_json(path))]
    lines = {
        "sources": _joined(map(str, sources)),
        "seeds": _joined(sorted({row["seed"] for row in rows if row.get("seed") is not None})),
    }
    for name, key in ENTRIES.items():
        lines[name] = _joined(record[key] for record in records if record.get(key))
    tables = [source for source in sources if source.suffix == ".csv"]
    if tables:
        lines["not recorded"] = f"machine and command of the runs in {_joined(map(str, tables))}"
    lines["catlog of this page"] = __version__
    lines["command of this page"] = " ".join(["catlog", *sys.argv[1:]])
    return {name: value for name, value in lines.items() if value}


def _joined(values: Iterable[object]) -> str:
    different: Sequence[str] = list(dict.fromkeys(map(str, values)))
    more = f", and {len(different) - SHOWN} more" if len(different) > SHOWN else ""
    return ", ".join(different[:SHOWN]) + more
