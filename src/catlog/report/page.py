"""One self-contained HTML page: the paper's claims, our figures and numbers, the published numbers beside them, the verdicts."""

import base64
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from .. import __version__
from ..experiments.records import Row
from ..experiments.run_folder import refuse_run_file
from ..files.atomic import write_atomically
from . import figures as plots
from . import published
from .claims import (
    Claim,
    Times,
    Verdict,
    compare,
    covered,
    enough,
    estimate_time,
    solved,
    steps_to,
    verdicts,
    work,
)
from .figures import DATA
from .runs import (
    Run,
    at,
    by_method,
    collect,
    end,
    final,
    late,
    milliseconds,
    pick,
    section_of,
    statistic,
    text,
    values,
)

PAPER = "De Smet et al., Differentiable Sampling of Categorical Distributions Using the CatLog-Derivative Trick, 2023"


Cells = dict[str, str]  # a row of a table, by its columns


@dataclass(frozen=True)
class Table:
    """Numbers with a caption; columns that are empty throughout are not shown."""

    caption: str
    rows: list[Cells]

    @property
    def header(self) -> list[str]:
        return [name for name in self.rows[0] if any(row.get(name) for row in self.rows)]


@dataclass(frozen=True)
class Section:
    """An experiment: what it is, its figures (by file name, with what they show) and its tables."""

    key: str
    title: str
    about: str
    figures: Callable[[list[Row], Sequence[Run], Times], list[tuple[str, Figure]]]
    tables: Callable[[Sequence[Run], Times], list[Table]]


def report(
    rows: Iterable[Row],
    path: Path | str,
    step_times: Mapping[str, float] | None = None,
    provenance: Mapping[str, str] | None = None,
) -> Path:
    """Write the page and return where it is.

    Args:
        rows: of any experiments, as :func:`catlog.experiments.records.read` gives them; missing ones are said to be missing.
        path: of the HTML file.
        step_times: milliseconds per step, measured apart; see :func:`catlog.report.runs.step_times`.
        provenance: what to say about where the runs come from: names and values.
    """
    refuse_run_file(path)
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, page(list(rows), step_times, provenance))
    return path


def summary(rows: Iterable[Row]) -> list[dict[str, str]]:
    """The outcome of every method in every setting, for a short table."""
    runs = collect(rows)
    listed = []
    for experiment, (name, metric, sizes) in HEADLINES.items():
        for size in values(pick(runs, experiment), *sizes):
            for method, its in by_method(
                pick(runs, experiment, **dict(zip(sizes, size, strict=True)))
            ).items():
                setting = " ".join(map(str, (experiment, *size)))
                result = f"{name} {final(its, metric)}"
                listed.append(
                    {
                        "experiment": setting,
                        "method": method,
                        "seeds": str(len(its)),
                        "result": result,
                    }
                )
    return listed


# experiment -> what its result is called, the metric, and the settings that tell runs apart
HEADLINES: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "gradients": ("variance", "relative_variance", ("variables", "categories", "function")),
    "optimisation": ("value", "value", ("variables", "update")),
    "dvae": ("test ELBO", "test", ("data", "variables", "categories")),
    "addition": ("accuracy", "accuracy", ("data", "digits")),
}


# --- tables


def gradients_tables(runs: Sequence[Run], times: Times) -> list[Table]:
    tables = []
    for function, d, k in sorted(
        values(runs, "function", "variables", "categories"), key=lambda size: (size[0], -size[1])
    ):
        bars = published.GRADIENTS.get((d, k), {}) if function == "additive" else {}
        methods = by_method(pick(runs, "gradients", function=function, variables=d, categories=k))
        rows = [_gradients_row(method, its, bars.get(method)) for method, its in methods.items()]
        tables.append(Table(f"D = {d}, K = {k}, {function} f", rows))
    return tables


def _gradients_row(method: str, its: Sequence[Run], bar: published.Bar | None) -> Cells:
    return {
        "method": method,
        "problems": str(len(its)),
        "estimates": f"{final(its, 'estimates').mean:.0f}",
        "evaluations": f"{final(its, 'evaluations').mean:.0f}",
        "mean (1 - cos)": str(final(its, "cosine_distance")),
        "published mean": text(bar.cosine_distance) if bar else "",
        "var (cos)": str(final(its, "cosine_variance")),
        "published var": text(bar.cosine_variance) if bar else "",
        "relative bias": str(final(its, "relative_bias")),
        "relative variance": str(final(its, "relative_variance")),
        "variance x evaluations": str(work(its)),
        "ms per estimate": text(estimate_time(its).mean, digits=3),
        "published ms": text(bar.milliseconds) if bar else "",
    }


def optimisation_tables(runs: Sequence[Run], times: Times) -> list[Table]:
    told = {
        "own": "each variable by its own gradient",
        "published": "all by the first variable's gradient, as published",
    }
    tables = []
    for d, update in values(runs, "variables", "update"):
        methods = by_method(pick(runs, "optimisation", variables=d, update=update))
        rows = [_optimisation_row(method, its, times) for method, its in methods.items()]
        tables.append(Table(f"{d} bits, moved {told[update]}", rows))
    return tables


def _optimisation_row(method: str, its: Sequence[Run], times: Times) -> Cells:
    value = final(its, "value")
    return {
        "method": method,
        "seeds": str(len(its)),
        "iterations": _span(its),
        "value at the end": text(value.mean, value.error, digits=7),
        "of the way": f"{100 * statistic(float(covered(run)[-1]) for run in its).mean:.1f} %",
        "iterations to 90\u00a0%": str(statistic(steps_to(run) for run in its)),
        "variance over draws": str(
            statistic(float(np.nanmean(run.column("gradient_variance"))) for run in its)
        ),
        "the paper's “variance” at the end": str(late(its, "gradient_spread")),
        "ms per step": text(milliseconds(its, times).mean, digits=3),
    }


def dvae_tables(runs: Sequence[Run], times: Times) -> list[Table]:
    found = []
    for data, d, k in sorted(
        values(runs, "data", "variables", "categories"), key=lambda size: list(DATA).index(size[0])
    ):
        methods = by_method(pick(runs, "dvae", data=data, variables=d, categories=k))
        name = f"{DATA[data]}, {d} variables of {k} categories"
        theirs = published.DVAE_MS.get((data, k), {}) if d == 200 else {}
        rows = [
            _dvae_row(method, its, times, theirs.get(method)) for method, its in methods.items()
        ]
        found += [Table(f"{name}: where each method ended", rows), _equals(name, methods, times)]
        if d == 200 and (data, k, "train") in published.DVAE:
            found.append(_beside(name, methods, data, k))
    return [table for table in found if table.rows]


def _dvae_row(method: str, its: Sequence[Run], times: Times, theirs: float | None) -> Cells:
    return {
        "method": method,
        "seeds": str(len(its)),
        "epochs": text(end(its, "epoch")),
        "iterations": _span(its),
        "negated train ELBO": str(final(its, "train")),
        "negated test ELBO": str(final(its, "test")),
        "lowest test": str(statistic(float(np.nanmin(run.column("test"))) for run in its)),
        "variance over draws": str(late(its, "gradient_variance")),
        "the paper's “variance”": str(late(its, "gradient_spread")),
        "ms per step": text(milliseconds(its, times).mean, digits=3),
        "published ms": "" if theirs is None else text(theirs),
    }


def _equals(name: str, methods: Mapping[str, list[Run]], times: Times) -> Table:
    """All methods at the last iteration, and at the last second, that all of them reached."""
    rows: dict[str, Cells] = {method: {"method": method} for method in methods}
    for x, unit, digits in (("iteration", "iterations", 7), ("seconds", "s", 3)):
        for metric in ("train", "test"):
            where, stats = compare(methods, metric, x, times)
            for method in methods if stats else ():
                rows[method][f"{metric} after {text(where, digits=digits)} {unit}"] = str(
                    stats.get(method, "-")
                )
    listed = list(rows.values()) if len(methods) > 1 else []
    return Table(f"{name}: at equal iterations, and at equal time", listed)


def _beside(name: str, methods: Mapping[str, list[Run]], data: str, k: int) -> Table:
    """Ours and theirs, at the first and the last iteration for which there is a published number within reach."""
    rows = []
    for method, its in methods.items():
        known = published.DVAE[data, k, "train"].get(method)
        reached = [x for x in known.x if x <= end(its, "iteration")] if known else []
        for x in dict.fromkeys([*reached[:1], *reached[-1:]]):
            row = {"method": method, "iteration": f"{x:.0f}"}
            for metric in ("train", "test"):
                ours, theirs = at(its, metric, x), published.DVAE[data, k, metric][method].at(x)
                row[metric] = str(ours)
                row[f"published {metric}"] = "" if theirs is None else text(theirs)
                row[f"{metric}: ours less theirs"] = (
                    "" if theirs is None else f"{ours.mean - theirs:+.1f}"
                )
            rows.append(row)
    return Table(f"{name}: beside the published curves (5 runs, read off a picture)", rows)


def addition_tables(runs: Sequence[Run], times: Times) -> list[Table]:
    tables = []
    for data, digits in values(runs, "data", "digits"):
        curves = published.ADDITION.get(digits, {}) if data == "mnist" else {}
        methods = by_method(pick(runs, "addition", data=data, digits=digits))
        rows = [
            _addition_row(method, its, digits, times, curves.get(method))
            for method, its in methods.items()
        ]
        caption = f"{digits} digits of {DATA[data]}: 0.99^{digits} is {0.99**digits:.3f}, solved from {enough(digits):.3f}"
        tables.append(Table(caption, rows))
    return tables


def _addition_row(
    method: str, its: Sequence[Run], digits: int, times: Times, curve: published.Curve | None
) -> Cells:
    theirs = curve.at(min(end(its, "epoch"), 100.0)) if curve else None
    good, n = solved(its, digits)
    return {
        "method": method,
        "seeds": str(len(its)),
        "epochs": text(end(its, "epoch")),
        "iterations": _span(its),
        "test accuracy": str(final(its, "accuracy")),
        "published there": "" if theirs is None else text(theirs, digits=3),
        "best in the run": str(statistic(float(np.nanmax(run.column("accuracy"))) for run in its)),
        "digits read": str(final(its, "digit_accuracy")),
        "runs that solved it": f"{good} of {n}",
        "ms per step": text(milliseconds(its, times).mean, digits=3),
    }


def _span(runs: Sequence[Run]) -> str:
    """Iterations, or their range where the runs differ."""
    lengths = sorted({run.length for run in runs})
    return f"{lengths[0]}" if len(lengths) == 1 else f"{lengths[0]} to {lengths[-1]}"


# --- figures


def gradients_figures(
    rows: list[Row], runs: Sequence[Run], times: Times
) -> list[tuple[str, Figure]]:
    told = {"additive": "the paper's additive f", "pairwise": "f with interactions"}
    return [
        (
            f"Synthetic gradients, {told[function]}: bias and variance of each estimator.",
            plots.gradients_figure(rows, function),
        )
        for (function,) in values(pick(runs, "gradients"), "function")
    ]


def optimisation_figures(
    rows: list[Row], runs: Sequence[Run], times: Times
) -> list[tuple[str, Figure]]:
    told = {"own": "", "published": " with the published code's mistaken update"}
    return [
        (
            f"Synthetic optimisation{told[update]}: value by iterations and by time, and two kinds of variance.",
            plots.optimisation_figure(rows, times, update),
        )
        for (update,) in values(pick(runs, "optimisation"), "update")
    ]


def dvae_figures(
    categorical: bool,
) -> Callable[[list[Row], Sequence[Run], Times], list[tuple[str, Figure]]]:
    def figures(rows: list[Row], runs: Sequence[Run], times: Times) -> list[tuple[str, Figure]]:
        what = "Autoencoder with categorical variables" if categorical else "Discrete autoencoder"
        categories = None if categorical else 2
        return [
            (
                f"{what}: negated train and test ELBO and variance by iterations.",
                plots.dvae_figure(rows, "iteration", None, categories),
            ),
            (f"{what}: the same by time.", plots.dvae_figure(rows, "seconds", times, categories)),
        ]

    return figures


def addition_figures(
    rows: list[Row], runs: Sequence[Run], times: Times
) -> list[tuple[str, Figure]]:
    return [
        (
            "MNIST addition: test accuracy of the sum by epochs, one panel per number of digits.",
            plots.addition_figure(rows),
        )
    ]


def image(figure: Figure, alt: str) -> str:
    """The figure as an SVG inside the page."""
    buffer = io.BytesIO()
    with mpl.rc_context({"svg.hashsalt": "catlog"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    wide = ' class="wide"' if figure.get_figwidth() > 9 else ""
    data = base64.b64encode(buffer.getvalue()).decode()
    drawn = f'<img src="data:image/svg+xml;base64,{data}" alt="{escape(alt)}">'
    return f"<figure{wide}><div>{drawn}</div><figcaption>{escape(alt)}</figcaption></figure>"


SECTIONS = (
    Section(
        "gradients",
        "Synthetic gradients",
        "Many estimates at fixed logits, compared with the exact gradient. The paper's “bias” is the mean cosine distance of "
        "single estimates and its “variance” that of the cosine; the true bias and variance, relative to the gradient's norm, "
        "stand below. Its f is a sum over variables, on which IndeCateR is exact with any one draw; f with interactions is the "
        "fair test.",
        gradients_figures,
        gradients_tables,
    ),
    Section(
        "optimisation",
        "Synthetic optimisation",
        "The mean of (x - 0.499)² over 200 bits, maximised with RMSProp at the paper's learning rates. The function is a sum "
        "over variables, so IndeCateR's gradient is exact. What the published code logs as variance is mostly the squared "
        "gradient.",
        optimisation_figures,
        optimisation_tables,
    ),
    Section(
        "dvae",
        "Discrete autoencoder",
        "200 bits between an encoder and a decoder; IndeCateR, RLOO-S and GS-S have 2 draws, RLOO-F and GS-F 800. The variance "
        "over draws is that of the encoder's gradient for one fixed minibatch; the published “variance” is the spread of the "
        "entries of one gradient.",
        dvae_figures(categorical=False),
        dvae_tables,
    ),
    Section(
        "categorical",
        "Discrete autoencoder with categorical variables",
        "More than two categories for each latent variable. In the paper's repository, not in the paper.",
        dvae_figures(categorical=True),
        dvae_tables,
    ),
    Section(
        "addition",
        "MNIST addition",
        "A LeNet learns to read digits from the sum of several alone. IndeCateR has 10 draws, IndeCateR-D 10 for every digit, "
        "RLOO-S 10, RLOO-F 100 for every digit. The grey line is a reader of single digits with 99 %.",
        addition_figures,
        addition_tables,
    ),
)


# --- the page


def page(rows: list[Row], times: Times = None, provenance: Mapping[str, str] | None = None) -> str:
    """The whole page as text."""
    runs = collect(rows)
    judged = verdicts(runs, times)
    body = "\n".join(
        [
            _header(runs, times),
            _glance(judged),
            *(_section(section, rows, runs, times, judged) for section in SECTIONS),
            _footer(provenance),
        ]
    )
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>catlog: the paper's experiments, run again</title>
<link rel="icon" href="data:,">
<style>{STYLE}</style>
</head>
<body>
{body}
</body>
</html>
"""


def _header(runs: Sequence[Run], times: Times) -> str:
    links = " ".join(
        f'<a href="#{section.key}">{escape(section.title)}</a>' for section in SECTIONS
    )
    clock = (
        "Time axes are iterations times the step time of each method, measured apart in one run."
        if times
        else "Time axes are the runs' own clocks, which compare methods fairly only if every run had the machine to itself."
    )
    return f"""<header>
<h1>The paper's experiments, run again</h1>
<p>{escape(PAPER)}, section 6 and appendix. This page is made from {len(runs)} runs of the library <b>catlog</b>. Every
claim stands with the rule that decides it, and the rule is applied to the runs by the program that made this page. Numbers are
means over seeds ± their standard error; “published” numbers were read off the pictures in the paper's repository
({escape(published.SOURCE)}), where there are any. {escape(clock)}</p>
<nav aria-label="experiments">{links}</nav>
</header>
<main>"""


def _glance(judged: Sequence[tuple[Claim, Verdict]]) -> str:
    rows = "\n".join(
        f'<tr><td><a href="#{claim.key}-claim">{escape(claim.says)}</a></td><td>{escape(claim.where)}</td>'
        f"<td>{_badge(verdict)}</td></tr>"
        for claim, verdict in judged
    )
    return f"""<section aria-labelledby="glance"><h2 id="glance">Verdicts</h2>
<div class="scroll" role="region" aria-labelledby="glance" tabindex="0"><table class="glance">
<thead><tr><th scope="col">claim</th><th scope="col">where</th><th scope="col">verdict</th></tr></thead>
<tbody>
{rows}
</tbody></table></div></section>"""


def _badge(verdict: Verdict) -> str:
    return f'<span class="badge {verdict.outcome.replace(" ", "-")}">{verdict.outcome}</span>'


def _section(
    section: Section,
    rows: list[Row],
    runs: Sequence[Run],
    times: Times,
    judged: Sequence[tuple[Claim, Verdict]],
) -> str:
    here = [run for run in runs if section_of(run) == section.key]
    parts = [
        f'<section aria-labelledby="{section.key}"><h2 id="{section.key}">{escape(section.title)}</h2>'
    ]
    parts.append(f"<p>{escape(section.about)}</p>")
    if here:
        parts += [image(figure, alt) for alt, figure in section.figures(rows, here, times)]
    else:
        parts.append(
            f'<p class="missing">Not run. <code>catlog sweep {_command(section)}</code> does.</p>'
        )
    parts += [
        _claim(claim, verdict) for claim, verdict in judged if claim.experiment == section.key
    ]
    if here:
        tables = section.tables(here, times)
        parts.append("<details open><summary>Numbers</summary>")
        parts += [_table(table, f"{section.key}-{i}") for i, table in enumerate(tables)]
        parts.append("</details>")
    return "\n".join([*parts, "</section>"])


def _command(section: Section) -> str:
    return "dvae --categories 10" if section.key == "categorical" else section.key


def _claim(claim: Claim, verdict: Verdict) -> str:
    lines = verdict.why.split("\n")
    why = (
        escape(lines[0])
        if len(lines) == 1
        else "<ul>" + "".join(f"<li>{escape(line)}</li>" for line in lines) + "</ul>"
    )
    return f"""<article class="claim {verdict.outcome.replace(" ", "-")}" id="{claim.key}-claim">
<h3>{escape(claim.says)}</h3>
<p class="where">{escape(claim.where)}</p>
<p><b>Rule.</b> {escape(claim.rule)}</p>
<div class="why">{_badge(verdict)} {why}</div>
</article>"""


def _table(table: Table, key: str) -> str:
    first, *others = table.header
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in table.header)
    body = "\n".join(
        f'<tr><th scope="row">{escape(row[first])}</th>'
        + "".join(f"<td>{escape(row.get(name, ''))}</td>" for name in others)
        + "</tr>"
        for row in table.rows
    )
    return f"""<div class="scroll" role="region" aria-labelledby="{key}" tabindex="0"><table>
<caption id="{key}">{escape(table.caption)}</caption>
<thead><tr>{head}</tr></thead>
<tbody>
{body}
</tbody></table></div>"""


def _footer(provenance: Mapping[str, str] | None) -> str:
    given = dict(provenance) if provenance else {"catlog": __version__}
    given["page made"] = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    items = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>"
        for name, value in given.items()
    )
    return f"""</main>
<footer><h2>Provenance</h2><dl>{items}</dl>
<p>docs/reproduction.md says how each experiment differs from the published code, and how to run it again.</p></footer>"""


STYLE = """
:root { --ink: #1c2430; --soft: #566071; --line: #d8dde5; --link: #0b5a8f; }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 84rem; padding: 1.5rem clamp(1rem, 4vw, 3rem) 3rem; color: var(--ink); background: #fff;
  font: 1rem/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
h1 { font-size: 1.9rem; line-height: 1.2; margin: .5rem 0 .75rem; }
h2 { font-size: 1.4rem; margin: 2.75rem 0 .5rem; padding-top: .75rem; border-top: 2px solid var(--ink); }
h3 { font-size: 1.02rem; line-height: 1.4; margin: 0 0 .2rem; }
p { max-width: 56rem; margin: .4rem 0; }
a { color: var(--link); }
nav { display: flex; flex-wrap: wrap; gap: .3rem 1.2rem; margin-top: .75rem; }
figure { margin: 1.2rem 0; }
figure > div, .scroll { overflow-x: auto; }
figure img { display: block; max-width: 100%; height: auto; margin: 0 auto; }
figcaption { color: var(--soft); font-size: .9rem; margin-top: .25rem; }
.claim { border: 1px solid var(--line); border-left: .4rem solid #8a8f98; border-radius: .3rem; padding: .7rem 1rem;
  margin: .8rem 0; }
.claim.holds { border-left-color: #1b7f4d; }
.claim.does-not-hold { border-left-color: #b3261e; }
.claim p { margin: .2rem 0; font-size: .95rem; }
.claim .where { color: var(--soft); font-size: .88rem; }
.why { margin-top: .4rem; font-size: .95rem; }
.why ul { margin: .3rem 0 0; padding-left: 1.2rem; }
.badge { display: inline-block; padding: 0 .55rem; border-radius: 1rem; font-size: .88rem; font-weight: 600; white-space: nowrap;
  background: #eceef1; color: #3d4653; border: 1px solid #b9bfc8; margin-right: .3rem; }
.badge.holds { background: #e2f4e9; color: #0d5c34; border-color: #8fcfac; }
.badge.does-not-hold { background: #fdeae8; color: #8f1d16; border-color: #eaa9a4; }
.missing { color: var(--soft); }
table { border-collapse: collapse; font-size: .84rem; font-variant-numeric: tabular-nums; margin: .3rem 0 1.1rem; }
caption { text-align: left; font-weight: 600; padding: .5rem 0 .3rem; }
th, td { padding: .26rem .45rem; border-bottom: 1px solid var(--line); text-align: right; vertical-align: top; }
td { white-space: nowrap; }
thead th { border-bottom: 2px solid var(--soft); vertical-align: bottom; font-weight: 600; }
th[scope="row"], thead th:first-child, table.glance th, table.glance td { text-align: left; }
th[scope="row"] { white-space: nowrap; font-weight: 500; }
tbody tr:hover { background: #f5f7fa; }
table.glance td { white-space: normal; font-size: .93rem; }
table.glance td:last-child { white-space: nowrap; }
summary { cursor: pointer; font-weight: 600; margin: 1rem 0 .3rem; }
dl div { display: flex; gap: .6rem; } dt { font-weight: 600; } dd { margin: 0; overflow-wrap: anywhere; }
code { background: #f1f3f6; padding: .05rem .3rem; border-radius: .2rem; }
@media (max-width: 50rem) { figure.wide img { max-width: none; width: 56rem; } }
@media (max-width: 40rem) { table.glance th:nth-child(2), table.glance td:nth-child(2) { display: none; } }
@media print { body { max-width: none; padding: 0; font-size: 9pt; } nav { display: none; } .scroll { overflow: visible; }
  .claim, figure, table { break-inside: avoid; } table { font-size: 7pt; } th, td { padding: .15rem .3rem; } }
"""
