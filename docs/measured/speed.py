"""The tables of speed.md."""

from . import RESULTS, measurements, read

MACHINES = {"cpu": "two CPU cores", "cuda": "H200"}
SECTIONS = ("ceilings", "dvae", "categorical", "addition", "scaling", "exponents", "memory")


def section(name: str) -> str:
    """Return the tables of one section, a table per machine."""
    tables = []
    for device, machine in MACHINES.items():
        file = f"speed/speed_{name}_{device}"
        rows = read(file) if (RESULTS / f"{file}.csv").exists() else []
        if name != "addition":  # elsewhere the column is constant
            rows = [{key: cell for key, cell in row.items() if key != "problem"} for row in rows]
        text = f"*{machine}*\n\n{measurements(rows)}" if rows else f"*{machine}*: not measured."
        tables.append(text)
    return "\n\n".join(tables)


def values() -> dict[str, object]:
    sections: dict[str, object] = {name: section(name) for name in SECTIONS}
    for name in ("estimator_times", "shared_machine"):
        sections[name] = measurements(read(f"speed/{name}"))
    return sections
