"""The tables of speed.md."""

from . import keyed, read, short, table

METHODS = {
    "IndeCateR, literal formula": "the paper's formula, literally",
    "IndeCateR, black-box f": "`IndeCateR(2)`, a black-box f",
    "IndeCateR, first-layer-linear": "`IndeCateR(2)`, `FirstLayerLinear`",
    "RLOO-S": "`RLOO(2)`",
    "RLOO-F": "`RLOO(800)`",
    "storchastic, score function, n=800": "storchastic, score function, 800 draws",
}
COLUMNS = (("cpu", "eager"), ("cuda", "eager"), ("cuda", "compiled, captured"))


def autoencoder() -> str:
    """Return the milliseconds of a step by method, machine and mode."""
    rows = [
        row | {"device": device}
        for device in ("cpu", "cuda")
        for row in read(f"speed/speed_dvae_{device}")
    ]
    cells = keyed(rows, "method", "device", "mode")
    lines = []
    for method, title in METHODS.items():
        found = [cells.get((method, *column)) for column in COLUMNS]
        evaluations = next(row["evaluations"] for row in found if row)
        lines.append([title, evaluations, *(short(row["ms"]) if row else "" for row in found)])
    head = ("", "evaluations", "two CPU cores, ms", "H200, ms", "H200, compiled, ms")
    return table(head, lines)


def by_hand() -> str:
    """Return the time of a call by method and size, relative to code by hand."""
    cells = keyed(read("speed/overhead"), "method", "batch", "d")
    sizes = list(dict.fromkeys(key[1:] for key in cells))
    lines = [
        [f"`{method}`", *(short(cells[method, *size]["ratio"]) for size in sizes)]
        for method in dict.fromkeys(key[0] for key in cells)
    ]
    return table(("", *(f"batch {batch}, {d} bits" for batch, d in sizes)), lines)


def values() -> dict[str, object]:
    return {"dvae": autoencoder(), "by_hand": by_hand()}
