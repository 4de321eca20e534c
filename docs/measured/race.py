"""The numbers of race.md."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import exp, inf
from statistics import mean, median

from catlog.estimators import ESTIMATORS

from . import Row, grouped, read, selected, table

# isort: split
from benchmarks.race import TARGET, seconds_to

Curve = list[Row]
TITLES = {
    "bits": "Autoencoder with 200 bits",
    "one-hot": "Autoencoder with 20 one-hot variables of 10 categories",
    "attention": "Hard attention: two glimpses of 16 patches",
}
MEASURES = dict.fromkeys(("bits", "one-hot"), "negated train bound")
MEASURES["attention"] = "train accuracy"
FRESH_SEEDS = {521, 522, 523}  # of the runs in turn
EARLIER_SEEDS = {421, 422, 423}  # with more versions, before ReinMax's step became cheaper


RACE = "H200"  # its name among the races


@dataclass(frozen=True)
class Standing:
    """An estimator in a race.

    Attributes:
        method: its label.
        seconds: median over seeds of the seconds to the target, infinite if most did not reach it.
        at_least: a lower limit of that median: runs that did not reach the target count with the
            seconds that they were trained for.
        seeds: how many seeds were run.
    """

    method: str
    seconds: float
    at_least: float
    seeds: int

    @property
    def is_biased(self) -> bool:
        return not is_unbiased(self.method)


def is_unbiased(method: str) -> bool:
    """Return whether the estimator of a label such as RLOO(4) is unbiased."""
    return bool(ESTIMATORS[method.partition("(")[0]]().unbiased)


def standings(runs: Iterable[Row]) -> dict[str, list[Standing]]:
    """Return the estimators of every race, the fastest first."""
    ranking: dict[str, list[Standing]] = {}
    for race, rows_of_race in grouped(runs, "race").items():
        entries = []
        for method, rows in grouped(rows_of_race, "method").items():
            reached = [row["seconds"] for row in rows if row["seconds"] is not None]
            trained = [row["trained"] for row in rows if row["seconds"] is None]
            seconds = median([*reached, *(inf for _ in trained)])
            entries.append(Standing(method, seconds, median([*reached, *trained]), len(rows)))
        ranking[race] = sorted(entries, key=lambda entry: (entry.seconds, entry.at_least))
    return ranking


def value_after(curve: Sequence[Row], seconds: float, name: str = "value") -> float:
    """Return the value at a time, linear between two measurements; the last one after the end."""
    for before, after in pairwise(curve):
        if after["seconds"] >= seconds:
            share = (seconds - before["seconds"]) / (after["seconds"] - before["seconds"])
            return float(before[name] + share * (after[name] - before[name]))
    return float(curve[-1][name])


def curves(rows: list[Row]) -> dict[str, dict[int, list[Row]]]:
    """Return the curves by method and seed."""
    return {method: grouped(runs, "seed") for method, runs in grouped(rows, "method").items()}


def reached(
    curve: list[Row], target: float = TARGET, *, unit: str = "seconds", bound: str = "train"
) -> float | None:
    """Return the seconds, or steps, until a bound is at the target, linear between measurements."""
    return seconds_to(curve, target, unit=unit, name=bound)


def summaries(rows: list[Row]) -> list[Row]:
    """Return a row per run, as the races on a CPU have them."""
    return [
        {
            "race": RACE,
            "method": name,
            "seed": seed,
            "target": TARGET,
            "seconds": reached(curve),
            "trained": curve[-1]["seconds"],
        }
        for name, runs in curves(rows).items()
        for seed, curve in runs.items()
    ]


def mean_time(runs: dict[int, Curve]) -> float:
    """Return the mean seconds to the target, infinite if a seed did not reach it."""
    times = [reached(curve) for curve in runs.values()]
    return mean(inf if time is None else time for time in times)


def class_of(method: str) -> str:
    return method.partition("(")[0]


def best_settings(entries: list[Standing]) -> list[Standing]:
    """Return every estimator with its best settings, the fastest first."""
    best: dict[str, Standing] = {}
    for entry in entries:
        best.setdefault(class_of(entry.method), entry)
    return list(best.values())


def marked(entry: Standing) -> str:
    return f"`{entry.method}`" + (" (biased)" if entry.is_biased else "")


def race_table(entries: list[Standing]) -> str:
    """Return a table of every estimator with its best settings."""
    lines = []
    for entry in best_settings(entries):
        is_late = entry.seconds == inf
        seconds = f"over {entry.at_least:.0f}" if is_late else f"{entry.seconds:.1f}"
        ratio = "" if is_late else f"{entry.seconds / entries[0].seconds:.2f}"
        lines.append((marked(entry), seconds, ratio, entry.seeds))
    return table(("estimator, at its best number of draws", "CPU seconds", "ratio", "seeds"), lines)


def cpu_section(runs: list[Row]) -> str:
    """Return a section per race: its target, and the table."""
    parts = []
    for race, entries in standings(runs).items():
        target = next(row["target"] for row in runs if row["race"] == race)
        parts += [
            f"### {TITLES[race]}",
            f"Target: a {MEASURES[race]} of {target:g}.",
            race_table(entries),
        ]
    return "\n\n".join(parts)


def common_time(methods: dict[str, dict[int, Curve]]) -> float:
    """Return the whole seconds that all runs have reached."""
    ends = [curve[-1]["seconds"] for runs in methods.values() for curve in runs.values()]
    return float(int(min(ends)))


def ranking(methods: dict[str, dict[int, Curve]]) -> str:
    seconds = common_time(methods)
    head = ("method", "seconds to 100, by seed", "mean", "mean to 97", "steps to 100")
    head += ("ms per step", f"bound after {seconds:.0f} s")
    lines = []
    for name, runs in sorted(methods.items(), key=lambda item: mean_time(item[1])):
        times = [reached(curve) for curve in runs.values()]
        last = [curve[-1] for curve in runs.values()]
        average = f"not in {min(row['seconds'] for row in last):.0f}"
        if None not in times:
            average = f"**{mean_time(runs):.2f}**"
        further = [reached(curve, 97.0) for curve in runs.values()]
        further = [time for time in further if time is not None]
        steps = [
            next((row["step"] for row in c if row["train"] <= TARGET), inf) for c in runs.values()
        ]
        bound = mean(value_after(curve, seconds, "train") for curve in runs.values())
        lines.append(
            (
                with_bias(name),
                ", ".join("-" if time is None else f"{time:.2f}" for time in times),
                average,
                f"{mean(further):.2f}" if further else "",
                "" if inf in steps else f"{mean(steps):,.0f}",
                f"{step_ms(runs.values()):.3f}",
                f"{bound:.2f}",
            )
        )
    return table(head, lines)


def step_ms(runs: Iterable[Curve]) -> float:
    """Return the mean milliseconds of a step."""
    return mean(1000 * curve[-1]["seconds"] / curve[-1]["step"] for curve in runs)


def with_bias(name: str) -> str:
    return name + ("" if is_unbiased(name) else " (biased)")


def steps_to(curve: Curve, target: float) -> float | None:
    """Return the steps until the target."""
    return reached(curve, target, unit="step")


def mean_or_blank(values: list[float | None], digits: int) -> str:
    known = [value for value in values if value is not None]
    return f"{mean(known):,.{digits}f}" if len(known) == len(values) else ""


def in_turn(methods: dict[str, dict[int, Curve]], seeds: set[int]) -> str:
    """Return a table of the methods that ran with all of the seeds, the first to 97 on top."""
    lines = []
    for name, runs in methods.items():
        chosen = [curve for seed, curve in runs.items() if seed in seeds]
        if len(chosen) < len(seeds):
            continue
        times = [[reached(curve, target) for curve in chosen] for target in (TARGET, 97.0)]
        steps = mean_or_blank([steps_to(curve, 97.0) for curve in chosen], 0)
        seconds = [mean_or_blank(values, 2) for values in times]
        lines.append((with_bias(name), *seconds, steps, f"{step_ms(chosen):.3f}"))
    head = ("method", "seconds to 100", "seconds to 97", "steps to 97", "ms per step")
    return table(head, sorted(lines, key=lambda line: float(line[2] or "inf")))


def many_draws(rows: list[Row]) -> str:
    """Return a table of the steps that estimators with many draws need."""
    lines = []
    for name, runs in curves(rows).items():
        chosen = list(runs.values())
        steps = [[steps_to(curve, target) for curve in chosen] for target in (TARGET, 97.0)]
        lines.append((name, *(mean_or_blank(counts, 0) for counts in steps), len(chosen)))
    return table(("method", "steps to 100", "steps to 97", "seeds"), lines)


def kernels() -> str:
    """Return a table of what the kernels of a step do."""
    times = {row["method"]: row["ms"] for row in read("speed/captured_steps_cuda")}
    rows = read("speed/captured_kernels_cuda")
    lines = []
    for method, ms in times.items():
        own = selected(rows, method=method)
        products = [row for row in own if "gemm" in row["name"] or "splitK" in row["name"]]
        update = [row for row in own if row["name"].startswith("triton_for")]
        products_us, update_us = (sum(row["us"] for row in part) for part in (products, update))
        rest_us = sum(row["us"] for row in own) - products_us - update_us
        parts = [f"{us:.0f}" for us in (products_us, rest_us, update_us)]
        ratio = f"{ms / next(iter(times.values())):.2f}"
        lines.append((method, f"{ms:.3f}", ratio, len(own), *parts))
    head = ("method", "ms per step", "ratio", "kernels", "matrix products, us", "others, us")
    return table((*head, "Adam, us"), lines)


def extra_kernels() -> int:
    """Return by how many kernels SlopeCateR's step with 6 corrections exceeds ReinMax's."""
    names = [row["method"] for row in read("speed/captured_kernels_cuda")]
    return names.count("SlopeCateR(8)") - names.count("ReinMax(8)")


def mean_steps(runs: dict[int, Curve]) -> str:
    """Return the mean steps to 97 over the fresh seeds."""
    return mean_or_blank([steps_to(runs[seed], 97.0) for seed in FRESH_SEEDS], 0)


def limit(methods: dict[str, dict[int, Curve]], rows: list[Row]) -> dict[str, str]:
    """Return how soon the exact gradient would reach 97, by the run with the most draws."""
    exact = curves(rows)["SlopeCateR(256, corrections=128)"][421]
    steps = steps_to(exact, 97.0) or inf
    eight, sixteen = methods["ReinMax(8)"], methods["ReinMax(16)"]
    costs = {
        name: step_ms(methods[name][seed] for seed in FRESH_SEEDS) / 1000
        for name in ("ReinMax(8)", "SlopeCateR(8)")
    }
    return {
        "exact_steps": f"{steps:,.0f}",
        "exact_at_reinmax": f"{steps * costs['ReinMax(8)']:.1f}",
        "exact_at_slope": f"{steps * costs['SlopeCateR(8)']:.1f}",
        "reinmax_8_steps": f"{steps_to(eight[421], 97.0) or inf:,.0f}",
        "reinmax_16_steps": f"{steps_to(sixteen[421], 97.0) or inf:,.0f}",
        "reinmax_8_seconds": mean_or_blank([reached(eight[seed], 97.0) for seed in FRESH_SEEDS], 1),
    }


def addition_runs(rows: list[Row]) -> list[Curve]:
    return list(grouped(rows, "samples", "seed").values())


def versions(rows: list[Row]) -> str:
    """Return the median steps and CPU seconds to the target, a row per estimator."""
    races, lines = ("bits", "one-hot", "attention"), []
    for method in sorted({row["method"] for row in rows}, key=by_estimator):
        line = [f"`{method}`" + ("" if is_unbiased(method) else " (biased)")]
        for race in races:
            runs = selected(rows, race=race, method=method)
            if not runs:
                line += ["", ""]
                continue
            seconds = median(row["seconds"] or inf for row in runs)
            line += [f"{median(row['steps'] for row in runs):,.0f}", f"{seconds:.1f}"]
        lines.append(line)
    head = [f"{race}: {measure}" for race in races for measure in ("steps", "CPU s")]
    return table(["estimator", *head], lines)


def by_estimator(method: str) -> tuple[str, int, str]:
    """Return what sorts labels: the class, the number of draws, and the other settings."""
    name, _, settings = method.partition("(")
    return name, int(settings.split(",")[0].rstrip(")")), settings


def values() -> dict[str, object]:
    rows, addition = read("speed/race_cuda"), read("paper/addition_64")
    methods, runs = curves(rows), addition_runs(addition)
    last = [run[-1] for run in runs]
    losses = [mean(row["train"] for row in run[-10:]) for run in runs]  # an epoch has 93 steps
    accuracies = [row["accuracy"] for row in last]
    digits = [row["digit_accuracy"] for row in last]
    runs_on_cpu, many = read("speed/cpu_races"), read("speed/race_steps_cuda")
    processors = sorted({row["cpu"] for row in runs_on_cpu})
    return {
        "device": rows[0]["device"].replace("NVIDIA ", ""),
        "ranking": ranking(methods),
        "in_turn": in_turn(methods, FRESH_SEEDS),
        "earlier": in_turn(methods, EARLIER_SEEDS),
        "kernels": kernels(),
        "many_draws": many_draws(many),
        "extra_kernels": extra_kernels(),
        **limit(methods, many),
        "slope_steps": mean_steps(methods["SlopeCateR(8)"]),
        "reinmax_steps": mean_steps(methods["ReinMax(16)"]),
        "processor": ", ".join(processors),
        "target_seconds": f"{read('speed/cpu_race_targets')[0]['seconds']:g}",
        "cpu_races": cpu_section(runs_on_cpu),
        "versions": versions(read("speed/cpu_race_versions")),
        "seldom": versions(read("speed/cpu_race_seldom")),
        "accuracy": f"{min(accuracies):.0%} to {max(accuracies):.0%}",
        "best_accuracy": f"{max(row['accuracy'] for row in addition):.0%}",
        "digit_accuracy": f"{min(digits):.0%} to {max(digits):.0%}",
        "loss": f"{min(losses):.2f} to {max(losses):.2f}",
        "probability": f"{exp(-max(losses)):.0%}",
    }
