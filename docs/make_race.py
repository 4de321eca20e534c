"""Write docs/race.md and docs/race.png from results/speed/race_cuda.csv and results/paper/addition_64.csv.

python docs/make_race.py
"""

import sys
from itertools import pairwise
from math import exp
from pathlib import Path
from statistics import mean

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from catlog.experiments import records
from catlog.report.figures import styled

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))

from race import Row, curves, reached, step_ms  # noqa: E402

TARGET = 100.0
# method: colour and line; the unbiased ones are solid
LOOKS = {
    "SlopeCateR-8": ("#b91c1c", "-"),
    "SlopeCateR-4": ("#f59e0b", "-"),
    "SlopeCateR-8, sizes": ("#ec4899", "-"),
    "GS-S": ("#0f766e", "--"),
    "IndeCateR-Latin": ("#60a5fa", "-"),
    "IndeCateR": ("#1d4ed8", "-"),
    "IndeCateR-Taylor": ("#7c3aed", "-"),
    "RLOO-S": ("#6b7280", "-"),
    "RLOO-F": ("#111827", "-"),
    "GS-F": ("#65a30d", "--"),
}

PAGE = """\
# In wall time

<!-- made by docs/make_race.py from results/speed/race_cuda.csv and results/paper/addition_64.csv: do not edit -->

A gradient with less noise is worth what it saves in time. `benchmarks/race.py` trains the paper's discrete autoencoder
(MNIST, 200 bits, batch 100, Adam) with every method alone on one {device}, the whole step compiled and captured in a CUDA
graph, until the negated evidence bound of all training images, with one draw each, is 100 or less. The clock runs for
training steps only.

![The negated train bound over seconds of training, and the addition of 64 digits over epochs](race.png)

| method | seconds to 100, by seed | mean | steps | ms per step | bound after {common:.0f} s |
|---|---|---|---|---|---|
{table}

**SlopeCateR is first with every seed**, also before GS-S, the straight-through Gumbel-Softmax estimator with two draws, whose
steps are among the cheapest and whose gradient is biased: it takes {slower:.2f} times as long. Plain IndeCateR takes
{indecater:.2f} times as long, and RLOO-S, RLOO-F and GS-F had not reached 100 when they were stopped. SlopeCateR-8 has 8
draws and corrects 6 variables, SlopeCateR-4 has 4 and 3; here they keep no sizes of slopes (`slope_entries=0`), which the default
does and was not raced. More draws cost little on a GPU, since most of a step is the time to launch small kernels, and they
also make the decoder's gradient less noisy. Seeds 0 and 1 are from one run of the benchmark, seed 2 from another.

A profile of the step showed torch's fused Adam to be its longest kernel (it deals 65,536 numbers to each block of a GPU, and
this model has a million), and a kernel per parameter that adds gradients to zeros. So `compiled_step` compiles the update as
well, and lets go of old gradients: for all methods alike.

## Addition of 64 digits

IndeCateR-D with 200 or with 100 draws, gradients with a norm of at most 1, 300 epochs, 3 seeds each. At the end
{accuracy_low:.0%} to {accuracy_high:.0%} of the test sums are right ({best:.0%} at best), where guessing the likeliest sum
would give about 2 %; of single digits, which were never labelled, {digit_low:.0%} to {digit_high:.0%}. It is not for want of
a gradient: the training loss falls to {loss_low:.2f} to {loss_high:.2f}, a geometric mean probability of the right sum above
{likely:.0%}. But 60,000 images make only 937 sums of 64 digits, and the network learns these by heart.
"""


def in_order(rows: list[Row]) -> dict[str, dict[int, list[Row]]]:
    return dict(sorted(curves(rows).items(), key=lambda item: list(LOOKS).index(item[0])))


def after(curve: list[Row], seconds: float) -> float:
    """The bound so many seconds into the training, by a straight line between two measurements."""
    for one, two in pairwise(curve):
        if two["seconds"] >= seconds:
            share = (seconds - one["seconds"]) / (two["seconds"] - one["seconds"])
            return float(one["train"] + share * (two["train"] - one["train"]))
    return float("nan")


def common_time(by_method: dict[str, dict[int, list[Row]]]) -> float:
    """Whole seconds that all runs have reached."""
    return float(
        int(min(curve[-1]["seconds"] for each in by_method.values() for curve in each.values()))
    )


def table(by_method: dict[str, dict[int, list[Row]]]) -> str:
    lines, common = [], common_time(by_method)
    for name, each in by_method.items():
        times = [reached(curve, TARGET) for curve in each.values()]
        known = [time for time in times if time is not None]
        last = [curve[-1] for curve in each.values()]
        cells = ", ".join("-" if time is None else f"{time:.2f}" for time in times)
        text = (
            f"**{mean(known):.2f}**"
            if len(known) == len(times)
            else f"not in {min(row['seconds'] for row in last):.0f}"
        )
        bound = mean(after(curve, common) for curve in each.values())
        biased = " (biased)" if name.startswith("GS") else ""
        steps = mean(row["step"] for row in last)
        lines.append(
            f"| {name}{biased} | {cells} | {text} | {steps:,.0f} | {step_ms(each):.3f} | {bound:.2f} |"
        )
    return "\n".join(lines)


def mean_time(each: dict[int, list[Row]]) -> float:
    return mean(time for curve in each.values() if (time := reached(curve, TARGET)) is not None)


def by_run(rows: list[Row]) -> list[list[Row]]:
    found: dict[tuple[int, int], list[Row]] = {}
    for row in rows:
        found.setdefault((row["samples"], row["seed"]), []).append(row)
    return list(found.values())


def page(race: list[Row], addition: list[Row]) -> str:
    by_method, runs = in_order(race), by_run(addition)
    last = [run[-1] for run in runs]
    loss = [mean(row["train"] for row in run[-10:]) for run in runs]  # an epoch has 93 steps
    return PAGE.format(
        device=race[0]["device"].replace("NVIDIA ", ""),
        common=common_time(by_method),
        table=table(by_method),
        slower=mean_time(by_method["GS-S"]) / mean_time(by_method["SlopeCateR-8"]),
        indecater=mean_time(by_method["IndeCateR"]) / mean_time(by_method["SlopeCateR-8"]),
        accuracy_low=min(row["accuracy"] for row in last),
        accuracy_high=max(row["accuracy"] for row in last),
        best=max(row["accuracy"] for row in addition),
        digit_low=min(row["digit_accuracy"] for row in last),
        digit_high=max(row["digit_accuracy"] for row in last),
        loss_low=min(loss),
        loss_high=max(loss),
        likely=exp(-max(loss)),
    )


@styled
def figure(race: list[Row], addition: list[Row]) -> Figure:
    drawn, (left, right) = plt.subplots(1, 2, figsize=(11, 4.4), width_ratios=(1.6, 1))
    for name, each in in_order(race).items():
        colour, line = LOOKS[name]
        for number, curve in enumerate(each.values()):
            shown = [row for row in curve if row["seconds"] > 0]
            label = name if number == 0 else None
            left.plot(
                [r["seconds"] for r in shown],
                [r["train"] for r in shown],
                line,
                color=colour,
                lw=1.2,
                label=label,
            )
    left.axhline(TARGET, color="#9ca3af", lw=0.8, ls=":")
    left.set(
        ylim=(99, 130), xlim=(0, 18), xlabel="seconds of training", ylabel="negated train bound"
    )
    left.set_title("MNIST autoencoder, one H200")
    left.legend(fontsize=8, ncols=5, loc="upper center", bbox_to_anchor=(0.5, -0.14), frameon=False)
    for run in by_run(addition):
        colour = "#b91c1c" if run[0]["samples"] == 200 else "#1d4ed8"
        first = run[0]["seed"] == 0
        epochs = [row["epoch"] for row in run]
        some = slice(None, None, 5)
        draws = f"{run[0]['samples']} draws"
        right.plot(epochs[some], [row["digit_accuracy"] for row in run][some], color=colour, lw=1.2,
                   label=f"digits, {draws}" if first else None)  # fmt: skip
        right.plot(epochs[some], [row["accuracy"] for row in run][some], ":", color=colour, lw=1.2,
                   label=f"sums, {draws}" if first else None)  # fmt: skip
    right.set(xlabel="epoch", ylabel="test accuracy", ylim=(0, 1))
    right.set_title("addition of 64 digits, IndeCateR-D")
    right.legend(
        fontsize=8, ncols=2, loc="upper center", bbox_to_anchor=(0.5, -0.14), frameon=False
    )
    drawn.tight_layout()
    return drawn


def main() -> None:
    rows = [
        records.read(ROOT / "results" / f"{name}.csv")
        for name in ("speed/race_cuda", "paper/addition_64")
    ]
    (ROOT / "docs" / "race.md").write_text(page(*rows), encoding="utf-8")
    figure(*rows).savefig(ROOT / "docs" / "race.png", dpi=130)
    print("docs/race.md, docs/race.png")


if __name__ == "__main__":
    main()
