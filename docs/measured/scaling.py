"""The table of scaling.md."""

from . import read, table

SHOWN = {"training": "batch divided", "estimate": "`Sharded`", "mapped": "`Mapped`"}


def values() -> dict[str, object]:
    rows = [row for row in read("scaling/scaling") if row["section"] in SHOWN and row["speedup"]]
    lines = [
        [SHOWN[row["section"]], row["case"], f"{row['speedup']:.2f}"]
        for row in rows
        if row["processes"] == 2
    ]
    return {"speedups": table(("how", "what", "times as fast"), lines)}
