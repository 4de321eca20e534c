"""The numbers of race.md."""

from collections.abc import Iterable
from dataclasses import dataclass
from math import exp, inf
from statistics import mean, median

from catlog.estimators import ESTIMATORS

from . import Row, grouped, read, selected, table

# isort: split
from benchmarks.race import seconds_to

Curve = list[Row]
TITLES = {
    "bits": "Autoencoder with 200 bits",
    "one-hot": "Autoencoder with 20 one-hot variables of 10 categories",
    "attention": "Hard attention: two glimpses of 16 patches",
}
MEASURES = dict.fromkeys(("bits", "one-hot"), "negated train bound")
MEASURES["attention"] = "train accuracy"
TARGETS = (100.0, 97.0)  # of the race on a GPU


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


def curves(rows: list[Row]) -> dict[str, dict[int, list[Row]]]:
    """Return the curves by method and seed."""
    return {method: grouped(runs, "seed") for method, runs in grouped(rows, "method").items()}


def mean_to(runs: dict[int, Curve], target: float = TARGETS[-1], unit: str = "seconds") -> float:
    """Return the mean seconds or steps to the target, infinite if a seed did not reach it."""
    times = [seconds_to(curve, target, unit=unit, name="train") for curve in runs.values()]
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


def step_ms(runs: Iterable[Curve]) -> float:
    """Return the mean milliseconds of a step."""
    return mean(1000 * curve[-1]["seconds"] / curve[-1]["step"] for curve in runs)


def with_bias(name: str) -> str:
    return name + ("" if is_unbiased(name.strip("`")) else " (biased)")


def number(value: float, digits: int) -> str:
    return "" if value == inf else f"{value:,.{digits}f}"


def ranking(methods: dict[str, dict[int, Curve]]) -> str:
    """Return a table of the race on a GPU, the first to the last target on top."""
    first, last = TARGETS
    lines = [
        (
            with_bias(f"`{name}`"),
            *(number(mean_to(runs, target), 2) for target in TARGETS),
            number(mean_to(runs, last, "step"), 0),
            f"{step_ms(runs.values()):.3f}",
            len(runs),
        )
        for name, runs in sorted(methods.items(), key=lambda item: mean_to(item[1]))
    ]
    head = ("method", f"seconds to {first:g}", f"seconds to {last:g}", f"steps to {last:g}")
    return table((*head, "ms per step", "seeds"), lines)


def many_draws(rows: list[Row]) -> str:
    """Return a table of the steps that estimators with many draws need."""
    lines = [
        (f"`{name}`", *(number(mean_to(runs, target, "step"), 0) for target in TARGETS), len(runs))
        for name, runs in curves(rows).items()
    ]
    return table(("method", *(f"steps to {target:g}" for target in TARGETS), "seeds"), lines)


def ratios(methods: dict[str, dict[int, Curve]], rows: list[Row]) -> dict[str, str]:
    """Return who wins the race on a GPU, by how much, and how many steps the exact gradient
    needs."""
    times = {name: mean_to(runs) for name, runs in methods.items()}
    order = sorted(times, key=times.__getitem__)
    unbiased = next(name for name in order if is_unbiased(name))
    plain = next(name for name in order if "ReinMax" in name and "latin" not in name)
    rloo = next(name for name in order if "RLOO" in name)
    exact = {421: curves(rows)["SlopeCateR(256, corrections=128)"][421]}
    return {
        "fastest": f"`{order[0]}`",
        "plain": f"`{plain}`",
        "over_plain": f"{times[order[0]] / times[plain]:.2f}",
        "unbiased": f"`{unbiased}`",
        "rloo": f"`{rloo}`",
        "over_rloo": f"{times[unbiased] / times[rloo]:.2f}",
        "exact_steps": number(mean_to(exact, unit="step"), 0),
        "fewest_steps": number(min(mean_to(runs, unit="step") for runs in methods.values()), 0),
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
        "many_draws": many_draws(many),
        **ratios(methods, many),
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
