"""Structured laws: variance over draws at equal evaluations, and the cost of SCateR's sweep.

    python benchmarks/structured.py             # about 4 minutes on one CPU core; writes to results/*/structured_*.csv and docs/
    python benchmarks/structured.py --study     # CritiCateR's settings; results/quality/criticater_settings.csv
    python benchmarks/structured.py --quick     # some seconds; few repeats, and writes nothing unless --output is given

Variance: the gradient of E_q[f] in the law's parameters is estimated many times by every method, with as many evaluations of f
as SCateR needs for one sample, and with four times as many. Reported: the sum over parameters of the variance over repeats,
relative to RLOO's. Intervals (95 %) are from a jackknife of the logarithm that leaves out one of 20 groups of repeats. |z| is the
largest over parameters of a method's mean less RLOO's, in standard errors; beside it the limit that the largest of the whole
table exceeds with probability 5 % (Bonferroni over parameters, methods and budgets). "Rows" counts, for one estimate, each
conditional q(x_i | x_<i) that the law was asked for, once per point.

Scaling: the time of one sweep (one draw, 8 categories) over a recurrent law that carries a state, and over the same law without
one, for growing numbers of variables d; and the obvious loop over variables and categories that clamps one and draws its suffix
alone. The loop has the advantage of the base draw's stored states. Both must find the same points from the same uniforms.
"""

import argparse
import csv
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import log
from pathlib import Path
from statistics import NormalDist, median

import torch
from torch import Tensor
from torch.nn.functional import layer_norm, one_hot

import catlog
from catlog import Autoregressive, BayesianNetwork, MarkovChain, Node, Ordered
from catlog.distributions.structured import ancestral, inverse_cdf
from catlog.sampling.interventions import all_interventions, noise_shape

ROOT = Path(__file__).parent.parent
GROUPS = 20
STUDENT = 2.093  # 97.5 % quantile of Student's t with GROUPS - 1 degrees of freedom
FOLDS, RIDGES = (4, 8, 16), (0.3, 1.0, 3.0, 10.0)


def randn(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


# ---------------------------------------------------------------------------------------------------------------- the problems


@dataclass(frozen=True)
class Problem:
    """A law with parameters ``theta``, and f.

    batched: whether the law takes a batch of parameters; else repeats are a loop.
    repeats: number of estimates for the variance.
    """

    name: str
    theta: Tensor
    law: Callable[[Tensor], Ordered]
    f: Callable[[Tensor], Tensor]
    repeats: int
    batched: bool = True


def scores(x: Tensor, table: Tensor) -> Tensor:
    """The sum over variables i of ``table[i, x_i]``."""
    return table[torch.arange(x.shape[-1]), x].sum(-1)


def bigrams(x: Tensor, table: Tensor) -> Tensor:
    """The sum over neighbours of ``table[x_i, x_{i+1}]``."""
    return table[x[..., :-1], x[..., 1:]].sum(-1)


def chain(theta: Tensor) -> Ordered:
    """Five variables of four states, each step with its own table."""
    return MarkovChain(theta[..., :4], theta[..., 4:].unflatten(-1, (4, 4, 4)))


def additive_and_pairwise(x: Tensor) -> Tensor:
    return scores(x, randn(5, 4, seed=1)) + bigrams(x, randn(4, 4, seed=2))


def interactions(x: Tensor) -> Tensor:
    """A random number for every point: what is known of one point says nothing of another."""
    return randn(4**5, seed=3)[(x * 4 ** torch.arange(5)).sum(-1)]


DAG: dict[
    str, tuple[list[str], tuple[int, ...], int]
] = {  # parents, shape of the table, size of the block
    "a": ([], (3,), 1),
    "b": ([], (2,), 1),
    "c": (["a", "b"], (3, 2, 4), 1),
    "d": (["c"], (4, 2), 1),
    "e": (["c"], (4, 2, 3), 2),
    "f": (["d", "e"], (2, 3, 3, 3), 1),
    "g": (["a"], (3, 5), 1),
    "h": (["f", "g"], (3, 5, 2), 1),
}


def dag(theta: Tensor) -> Ordered:
    """Eight nodes with two to five categories; e is a block of two variables."""
    sizes = [torch.Size(shape).numel() for _, shape, _ in DAG.values()]
    tables = theta.split(sizes, -1)
    nodes = {
        name: Node(parents, table.unflatten(-1, shape), size=size)
        for (name, (parents, shape, size)), table in zip(DAG.items(), tables, strict=True)
    }
    return BayesianNetwork(nodes, theta.shape[:-1])


def nonlinear(x: Tensor) -> Tensor:
    return (
        3 * scores(x, randn(9, 5, seed=4)).mul(0.5).tanh()
        + 0.1 * scores(x, randn(9, 5, seed=5)).square()
    )


class Transformer:
    """A causal transformer over ``length`` tokens of which every weight is part of the flat ``theta``.

    All conditionals in one teacher-forced call, or token by token with a cache of keys and values.
    """

    width, heads, layers, vocabulary, length = 16, 2, 2, 8, 12
    shapes = (
        (vocabulary + 1, width),  # the last token is the start
        (length, width),
        *((width, 3 * width), (width, width), (width, 2 * width), (2 * width, width)) * layers,
        (width, vocabulary),
    )

    def __init__(self, theta: Tensor) -> None:
        parts = theta.split([a * b for a, b in self.shapes])
        each = [part.view(shape) for part, shape in zip(parts, self.shapes, strict=True)]
        self.token, self.position, self.out = each[0], each[1], each[-1]
        self.blocks = [each[2 + 4 * layer : 6 + 4 * layer] for layer in range(self.layers)]

    @classmethod
    def random(cls, seed: int) -> Tensor:
        """Embeddings of scale 1, weights that keep the scale of what they map, logits of scale 1.5."""
        scale = [1.0, 0.5, *[shape[0] ** -0.5 for shape in cls.shapes[2:-1]], 1.5 * cls.width**-0.5]
        return torch.cat(
            [
                s * randn(a * b, seed=seed + i)
                for i, (s, (a, b)) in enumerate(zip(scale, cls.shapes, strict=True))
            ]
        )

    def normal(self, h: Tensor) -> Tensor:
        return layer_norm(h, (self.width,))

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None
    ) -> Tensor:
        query, key, value = (
            t.unflatten(-1, (self.heads, -1)).transpose(-2, -3) for t in (query, key, value)
        )
        weight = query @ key.mT * (self.width / self.heads) ** -0.5
        weight = weight if mask is None else weight.masked_fill(mask, -torch.inf)
        return (weight.softmax(-1) @ value).transpose(-2, -3).flatten(-2)

    def all_logits(self, x: Tensor) -> Tensor:
        start = torch.full_like(x[..., :1], self.vocabulary)
        h = self.token[torch.cat([start, x[..., :-1]], -1)] + self.position
        mask = torch.ones(self.length, self.length, dtype=torch.bool).triu(1)
        for qkv, project, up, down in self.blocks:
            h = h + self.attend(*(self.normal(h) @ qkv).chunk(3, -1), mask) @ project
            h = h + (self.normal(h) @ up).relu() @ down
        return self.normal(h) @ self.out

    def start(self, lead: torch.Size) -> Tensor:
        return self.token.new_zeros((*lead, self.layers, 0, 2 * self.width))

    def step(self, state: Tensor, i: int, previous: Tensor | None) -> tuple[Tensor, Tensor]:
        token = (
            self.token[self.vocabulary].expand(*state.shape[:-3], -1)
            if previous is None
            else self.token[previous]
        )
        h = (token + self.position[i]).unsqueeze(-2)
        new = []
        for layer, (qkv, project, up, down) in enumerate(self.blocks):
            query, *pair = (self.normal(h) @ qkv).chunk(3, -1)
            new.append(torch.cat([state[..., layer, :, :], torch.cat(pair, -1)], -2))
            h = h + self.attend(query, *new[-1].chunk(2, -1)) @ project
            h = h + (self.normal(h) @ up).relu() @ down
        return (self.normal(h) @ self.out).squeeze(-2), torch.stack(new, -3)


def transformer(theta: Tensor) -> Ordered:
    return Autoregressive(Transformer(theta), [Transformer.vocabulary] * Transformer.length)


def sequence_score(x: Tensor) -> Tensor:
    total = scores(x, randn(12, 8, seed=6)) + 0.5 * bigrams(x, randn(8, 8, seed=7))
    return 8 * (total / 8).tanh()


# Machine replacement: states are wear 0 (new) ... 3 (broken); actions are keep and replace. A kept machine wears by 0, 1 or 2.
HORIZON, WEAR, DISCOUNT = 6, 4, 0.9
OPERATING, REPLACEMENT = torch.tensor([0.0, 0.5, 1.5, 4.0]), 2.5
KEEP = torch.tensor(
    [[0.5, 0.4, 0.1, 0.0], [0.0, 0.5, 0.4, 0.1], [0.0, 0.0, 0.5, 0.5], [0.0, 0.0, 0.0, 1.0]]
)
WEARS = torch.stack([KEEP, KEEP[:1].expand(4, 4)], 1).log()  # [state, action, next state]


def mdp(theta: Tensor) -> Ordered:
    """a_1, s_2, a_2, ..., s_7 from a new machine; one table of action logits by state serves every step."""
    policy = theta.unflatten(-1, (WEAR, 2))
    batch = theta.shape[:-1]
    nodes = {
        "a1": Node([], policy[..., 0, :]),
        "s2": Node(["a1"], WEARS[0].expand(*batch, 2, WEAR)),
    }
    for t in range(2, HORIZON + 1):
        nodes[f"a{t}"] = Node([f"s{t}"], policy)
        nodes[f"s{t + 1}"] = Node([f"s{t}", f"a{t}"], WEARS.expand(*batch, WEAR, 2, WEAR))
    return BayesianNetwork(nodes, batch)


def discounted_return(x: Tensor) -> Tensor:
    """Minus the discounted costs: each step that of replacing or else that of running in this state; at the end, of the state."""
    action, state = x[..., ::2], torch.cat([torch.zeros_like(x[..., :1]), x[..., 1::2]], -1)
    cost = torch.where(action == 1, REPLACEMENT, OPERATING[state[..., :-1]])
    cost = torch.cat([cost, OPERATING[state[..., -1:]]], -1)
    return -(cost * DISCOUNT ** torch.arange(HORIZON + 1)).sum(-1)


PROBLEMS = [
    Problem("chain", randn(68, seed=10), chain, additive_and_pairwise, 1000),
    Problem("chain, interactions", randn(68, seed=10), chain, interactions, 1000),
    Problem(
        "dag",
        randn(sum(torch.Size(s).numel() for _, s, _ in DAG.values()), seed=11),
        dag,
        nonlinear,
        1000,
    ),
    Problem(
        "transformer", Transformer.random(seed=12), transformer, sequence_score, 200, batched=False
    ),
    Problem("mdp", randn(8, seed=30), mdp, discounted_return, 1000),
]


def methods(evaluations: int, times: int) -> dict[str, catlog.Estimator]:
    """Every method at the evaluations of SCateR(times)."""
    return {
        "Reinforce": catlog.Reinforce(evaluations),
        "RLOO": catlog.RLOO(evaluations),
        "LEG": catlog.LEG(times),
        "RAM": catlog.RAM(times),
        "SCateR": catlog.SCateR(times),
        "SCateR, common": catlog.SCateR(times, suffix="common"),
        "CritiCateR": catlog.CritiCateR(evaluations),
    }


# -------------------------------------------------------------------------------------------------------------------- variance


def gradients(
    E: catlog.Estimator, problem: Problem, repeats: int, generator: torch.Generator
) -> Tensor:
    """``[repeats, parameters]``: independent estimates, many at once along a batch dimension where the law has one."""
    evaluations = E.evaluations(problem.law(problem.theta))
    at_once = max(1, 20_000 // evaluations) if problem.batched else 1
    parts = []
    for start in range(0, repeats, at_once):
        count = min(at_once, repeats - start)
        theta = problem.theta.expand(count, -1) if problem.batched else problem.theta
        theta = theta.clone().requires_grad_()
        E(problem.f, problem.law(theta), generator=generator).sum().backward()
        assert theta.grad is not None
        parts.append(theta.grad.view(count, -1))
    return torch.cat(parts).double()


def conditional_rows(E: catlog.Estimator, q: Ordered, f: Callable[[Tensor], Tensor]) -> int:
    """How many conditionals of single variables one estimate asks the law for, the check of its network left out."""
    counted = 0
    conditional, step, raw_logits = q.conditional, q.step, q.raw_logits

    def counted_conditional(x: Tensor, block: int) -> Tensor:
        nonlocal counted
        counted += len(x) * len(q.blocks[block])
        return conditional(x, block)

    def counted_step(state: object, block: int, previous: Tensor | None) -> tuple[Tensor, object]:
        nonlocal counted
        raw, state = step(state, block, previous)
        counted += len(raw)
        return raw, state

    def counted_raw_logits(x: Tensor) -> list[Tensor]:
        nonlocal counted
        counted += len(x) * len(q.cardinalities)
        return raw_logits(x)

    q.conditional, q.step = counted_conditional, counted_step  # type: ignore[method-assign]
    if hasattr(getattr(q, "network", None), "all_logits"):
        q.raw_logits = counted_raw_logits  # type: ignore[method-assign]
    replace(E, validate=False)(f, q)  # type: ignore[type-var]
    return counted


def main_effects(problem: Problem, draws: int, generator: torch.Generator) -> float:
    """The share of f's variance that the best sum of functions of single variables explains, on draws it was not fitted to."""
    law = problem.law(problem.theta)
    with torch.no_grad():
        u = torch.rand(2 * draws, len(law.cardinalities), generator=generator)
        x = ancestral(law, u)
        fx = problem.f(x).double()
    points = torch.cat(
        [one_hot(x, max(law.cardinalities)).flatten(1), torch.ones(2 * draws, 1)], 1
    ).double()
    gram = points[:draws].mT @ points[:draws] + torch.eye(points.shape[1])
    predicted = points[draws:] @ torch.linalg.solve(gram, points[:draws].mT @ fx[:draws])
    return 1 - ((fx[draws:] - predicted).square().mean() / fx[draws:].var()).item()


def log_ratio(ours: Tensor, theirs: Tensor) -> tuple[float, float]:
    """Of total variances over repeats, and the half-width of its 95 % interval."""

    def statistic(a: Tensor, b: Tensor) -> Tensor:
        return (a.var(0).sum() / b.var(0).sum()).log()

    group = torch.arange(len(ours)) % GROUPS
    without = torch.stack([statistic(ours[group != g], theirs[group != g]) for g in range(GROUPS)])
    return statistic(ours, theirs).item(), STUDENT * (
        without.var(correction=0) * (GROUPS - 1)
    ).sqrt().item()


def largest_z(ours: Tensor, theirs: Tensor, comparisons: int) -> tuple[float, float]:
    """The largest |z| between two means, over parameters that vary, and its limit where so many comparisons are made."""
    error = (ours.var(0) / len(ours) + theirs.var(0) / len(theirs)).sqrt()
    some = error > 1e-9 * error.max()
    z = (ours.mean(0) - theirs.mean(0))[some] / error[some]
    return z.abs().max().item(), NormalDist().inv_cdf(1 - 0.05 / (2 * len(z) * comparisons))


def variances(repeats: int | None, budgets: tuple[int, ...], draws: int) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    generator = torch.Generator().manual_seed(0)
    print(
        f"{'problem':21}{'method':16}{'evaluations':>12}{'rows':>7}{'variance':>11}{'/ RLOO':>8}  {'95 %':15}{'|z|':>6}"
        f"{'limit':>7}{'repeats':>9}{'seconds':>9}"
    )
    for problem in PROBLEMS:
        q = problem.law(problem.theta)
        share = main_effects(problem, draws, generator)
        count = min(repeats or problem.repeats, problem.repeats)
        for times in budgets:
            evaluations = catlog.SCateR(times).evaluations(q)
            samples, seconds = {}, {}
            for name, E in methods(evaluations, times).items():
                assert E.evaluations(q) == evaluations
                start = time.perf_counter()
                samples[name] = gradients(E, problem, count, generator)
                seconds[name] = time.perf_counter() - start
            for name, E in methods(evaluations, times).items():
                ratio, width = log_ratio(samples[name], samples["RLOO"])
                z, limit = largest_z(
                    samples[name],
                    samples["RLOO"],
                    len(PROBLEMS) * len(budgets) * (len(samples) - 1),
                )
                row: dict[str, object] = {
                    "problem": problem.name,
                    "method": name,
                    "budget": times,
                    "evaluations": evaluations,
                    "conditional_rows": conditional_rows(E, problem.law(problem.theta), problem.f),
                    "variance": f"{samples[name].var(0).sum().item():.4g}",
                    "relative_to_rloo": f"{torch.tensor(ratio).exp().item():.4g}",
                    "low_95": f"{torch.tensor(ratio - width).exp().item():.4g}",
                    "high_95": f"{torch.tensor(ratio + width).exp().item():.4g}",
                    "largest_z": f"{z:.2f}",
                    "z_limit": f"{limit:.2f}",
                    "repeats": count,
                    "variables": len(q.cardinalities),
                    "parameters": len(problem.theta),
                    "main_effects": f"{share:.3f}",
                    "seconds": f"{seconds[name]:.2f}",
                }
                rows.append(row)
                interval = f"[{float(str(row['low_95'])):.2f}, {float(str(row['high_95'])):.2f}]"
                print(
                    f"{problem.name:21}{name:16}{evaluations:>12}{row['conditional_rows']:>7}{row['variance']:>11}"
                    f"{float(str(row['relative_to_rloo'])):>8.2f}  {interval:15}{row['largest_z']:>6}{row['z_limit']:>7}"
                    f"{count:>9}{row['seconds']:>9}",
                    flush=True,
                )
        print(f"{problem.name}: main effects are {share:.1%} of f's variance")
    return rows


def number(row: dict[str, object], key: str) -> float:
    return float(str(row[key]))


def conclusion(rows: list[dict[str, object]]) -> str:
    """On how many problems CritiCateR has less variance than RLOO."""
    lines = []
    for times in sorted({number(row, "budget") for row in rows}):
        ours = [row for row in rows if row["method"] == "CritiCateR" and row["budget"] == times]
        won = [str(row["problem"]) for row in ours if number(row, "high_95") < 1]
        names = "; ".join(won) or "none"
        lines.append(
            f"budget {times:.0f}x: CritiCateR below RLOO on {len(won)} of {len(ours)} problems: {names}"
        )
    return "\n".join(lines)


def picture(rows: list[dict[str, object]], path: Path) -> None:
    import matplotlib.pyplot as plt
    from matplotlib.colors import LogNorm

    columns = list(
        dict.fromkeys(
            (str(row["problem"]), int(str(row["budget"])), row["evaluations"]) for row in rows
        )
    )
    names = [name for name in dict.fromkeys(str(row["method"]) for row in rows) if name != "RLOO"]
    found = {(row["method"], row["problem"], row["budget"]): row for row in rows}
    table = [
        [number(found[name, problem, times], "relative_to_rloo") for problem, times, _ in columns]
        for name in names
    ]
    figure, axes = plt.subplots(figsize=(11, 4.4), layout="constrained")
    limit = 10
    image = axes.imshow(table, cmap="RdBu_r", norm=LogNorm(1 / limit, limit), aspect="auto")
    for i, name in enumerate(names):
        for j, (problem, times, _) in enumerate(columns):
            row = found[name, problem, times]
            value, low, high = (
                number(row, key) for key in ("relative_to_rloo", "low_95", "high_95")
            )
            ink = "white" if abs(log(value)) > 0.6 * log(limit) else "black"
            text = f"{value:.0f}" if value >= 10 else f"{value:.2f}"
            digits = 0 if high >= 10 else 2
            axes.text(j, i - 0.1, text, ha="center", va="center", color=ink, weight="bold")
            axes.text(
                j,
                i + 0.25,
                f"{low:.{digits}f} to {high:.{digits}f}",
                ha="center",
                va="center",
                color=ink,
                size=7,
            )
    each = len({times for _, times, _ in columns})
    axes.set_xticks(range(len(columns)), [f"{evaluations}" for _, _, evaluations in columns])
    axes.set_yticks(range(len(names)), names)
    axes.set_xlabel("evaluations of f per estimate")
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    top = axes.secondary_xaxis("top")
    problems = list(dict.fromkeys(problem for problem, _, _ in columns))
    top.set_xticks([each * i + (each - 1) / 2 for i in range(len(problems))], problems)
    top.tick_params(length=0)
    top.spines[:].set_visible(False)
    for i in range(1, len(problems)):
        axes.axvline(each * i - 0.5, color="white", linewidth=6)
    for i in range(1, len(names)):
        axes.axhline(i - 0.5, color="white", linewidth=1)
    bar = figure.colorbar(image, ax=axes, pad=0.01, extend="max")
    ticks = [0.1, 0.2, 0.5, 1, 2, 5, 10]
    bar.set_ticks(ticks, labels=[f"{tick:g}" for tick in ticks])
    bar.ax.minorticks_off()
    bar.outline.set_visible(False)
    bar.set_label("variance over draws / RLOO's")
    figure.suptitle(
        "Variance of the gradient relative to RLOO's at equal evaluations, with 95 % intervals (blue: less)"
    )
    figure.savefig(path, dpi=150)


# --------------------------------------------------------------------------------------------------------------------- scaling


class Recurrent:
    """A gated recurrent network as a law over d variables with k categories."""

    def __init__(self, k: int, width: int, seed: int) -> None:
        self.k = k
        self.cell = torch.nn.GRUCell(k, width).double()
        self.out = torch.nn.Linear(width, k).double()
        generator = torch.Generator().manual_seed(seed)
        for parameter in [*self.cell.parameters(), *self.out.parameters()]:
            parameter.data.normal_(0, 2 * width**-0.5, generator=generator)

    def start(self, lead: torch.Size) -> Tensor:
        return torch.zeros(*lead, self.cell.hidden_size, dtype=torch.float64)

    def step(self, state: Tensor, i: int, previous: Tensor | None) -> tuple[Tensor, Tensor]:
        if previous is not None:
            state = self.cell(one_hot(previous, self.k).double(), state)
        return self.out(state), state


def recurrent_law(d: int, k: int, incremental: bool, seed: int = 0) -> Autoregressive:
    """The same law with a state that is carried along, and as a function of the whole prefix."""
    network = Recurrent(k, 32, seed)

    def of_prefix(x: Tensor, i: int) -> Tensor:
        logits, state = network.step(network.start(x.shape[:-1]), 0, None)
        for j in range(i):
            logits, state = network.step(state, j + 1, x[..., j])
        return logits

    return Autoregressive(network if incremental else of_prefix, [k] * d, dtype=torch.float64)


def loop(q: Ordered, noise: Tensor) -> tuple[Tensor, Tensor]:
    """What ``sweep`` finds, by the obvious loop: ``[1, d]`` the base draw, ``[moves, 1, d]`` one clamp at a time."""

    def suffix(x: Tensor, state: object, first: int, u: Tensor) -> Tensor:
        """x with the variables from ``first`` on drawn; the state is the one before x[first - 1] was known."""
        for j in range(first, len(q.cardinalities)):
            if q.incremental:
                logits, state = q.step(state, j, x[:, j - 1])
            else:
                logits = q.conditional(x, j).squeeze(-2)
            x[:, j] = inverse_cdf(logits.log_softmax(-1).exp(), u[:, j])
        return x

    d = len(q.cardinalities)
    x = torch.zeros(1, d, dtype=torch.int64)
    state = q.start(torch.Size([1])) if q.incremental else None
    states = []
    for j in range(d):
        if q.incremental:
            logits, state = q.step(state, j, x[:, j - 1] if j else None)
        else:
            logits = q.conditional(x, j).squeeze(-2)
        states.append(state)
        x[:, j] = inverse_cdf(logits.log_softmax(-1).exp(), noise[0, :, j])
    moved = []
    for i in range(d):
        for offset in range(1, q.cardinalities[i]):
            y = x.clone()
            y[:, i] = (x[:, i] + offset) % q.cardinalities[i]
            own = noise[len(moved) + 1] if len(noise) > 1 else noise[0]
            moved.append(suffix(y, states[i], i + 1, own))
    return x, torch.stack(moved)


def exponent(ds: list[int], values: list[float]) -> float:
    """The slope of log(values) over log(d), by least squares."""
    x, y = (torch.tensor(each, dtype=torch.float64).log() for each in (ds, values))
    return (((x - x.mean()) * (y - y.mean())).sum() / (x - x.mean()).square().sum()).item()


def scaling(ds: list[int], loop_d: int, rounds: int, k: int = 8) -> list[dict[str, object]]:
    generator = torch.Generator().manual_seed(0)
    laws = {
        (kind, d): recurrent_law(d, k, kind == "with a state")
        for kind in ("with a state", "without")
        for d in ds
    }
    noises = {
        d: torch.rand(
            noise_shape(laws["without", d], 1, "independent", None, d * (k - 1)),
            dtype=torch.float64,
        )
        for d in ds
    }

    def equal(q: Ordered, noise: Tensor, suffix: str) -> bool:
        found = all_interventions(q, noise, suffix=suffix)  # type: ignore[arg-type]
        x, moved = loop(q, noise)
        return torch.equal(found.x, x) and torch.equal(found.moved, moved)

    def f(x: Tensor) -> Tensor:
        return x.double().mean(-1)

    jobs: dict[tuple[str, str, int], Callable[[], object]] = {}
    for (kind, d), q in laws.items():
        jobs["sweep", kind, d] = lambda q=q, d=d: all_interventions(q, noises[d])
        if kind == "with a state":
            jobs["estimate", kind, d] = lambda q=q: catlog.SCateR(1)(f, q, generator=generator)
        if d == loop_d:
            jobs["loop", kind, d] = lambda q=q, d=d: loop(q, noises[d])
    times: dict[tuple[str, str, int], list[float]] = {key: [] for key in jobs}
    with torch.no_grad():
        same = all(
            equal(laws[kind, loop_d], noise, suffix)
            for kind in ("with a state", "without")
            for suffix, noise in (("independent", noises[loop_d]), ("common", noises[loop_d][:1]))
        )
        assert same, "the loop and the sweep found different points from the same uniforms"
        for key, job in jobs.items():
            if key[0] != "loop":
                job()
        for _ in range(rounds):
            for key, job in jobs.items():
                start = time.perf_counter()
                job()
                times[key].append(time.perf_counter() - start)
    rows: list[dict[str, object]] = []
    for (what, kind, d), each in times.items():
        q = recurrent_law(d, k, kind == "with a state")
        # The differentiable pass at the base draw is the estimate's, not the sweep's.
        base = d if what == "sweep" else 0
        counted = "" if what == "loop" else conditional_rows(catlog.SCateR(1), q, f) - base
        rows.append(
            {
                "what": what,
                "law": kind,
                "d": d,
                "k": k,
                "points": 1 + d * (k - 1),
                "conditional_rows": counted,
                "milliseconds": f"{1000 * median(each):.3f}",
                "fastest": f"{1000 * min(each):.3f}",
                "slowest": f"{1000 * max(each):.3f}",
                "rounds": rounds,
            }
        )
    return rows


def print_scaling(rows: list[dict[str, object]]) -> None:
    print(
        f"{'what':10}{'law':14}{'d':>4}{'points':>8}{'rows':>8}{'ms':>10}{'fastest':>10}{'slowest':>10}"
    )
    for row in rows:
        print(
            f"{row['what']:10}{row['law']:14}{row['d']:>4}{row['points']:>8}{row['conditional_rows']:>8}{row['milliseconds']:>10}"
            f"{row['fastest']:>10}{row['slowest']:>10}"
        )
    for what, kind in dict.fromkeys(
        (row["what"], row["law"]) for row in rows if row["what"] != "loop"
    ):
        each = [row for row in rows if (row["what"], row["law"]) == (what, kind)]
        ds = [int(str(row["d"])) for row in each]
        in_time, in_rows = (
            exponent(ds, [number(row, key) for row in each])
            for key in ("milliseconds", "conditional_rows")
        )
        last = exponent(ds[-2:], [number(row, "milliseconds") for row in each[-2:]])
        print(
            f"{what}, {kind}: time grows as d^{in_time:.2f} (last doubling: {last:.2f}), conditional rows as d^{in_rows:.2f}"
        )
    for row in rows:
        if row["what"] == "loop":
            ours = next(
                r for r in rows if (r["what"], r["law"], r["d"]) == ("sweep", row["law"], row["d"])
            )
            ratio = number(row, "milliseconds") / number(ours, "milliseconds")
            print(
                f"d={row['d']}, k={row['k']}, {row['law']}: the sweep is {ratio:.1f} times faster than the loop, same points"
            )


# ----------------------------------------------------------------------------------------------------------------------- study


def study(repeats: int | None, budgets: tuple[int, ...]) -> list[dict[str, object]]:
    """CritiCateR's total variance relative to RLOO's under every setting, on the same draws for all of them."""
    rows: list[dict[str, object]] = []
    for problem in PROBLEMS:
        for times in budgets:
            evaluations = catlog.SCateR(times).evaluations(problem.law(problem.theta))
            count = repeats or (400 if problem.batched else 100 // times)
            settings = {
                f"{folds}, {ridge}": catlog.CritiCateR(evaluations, folds=folds, ridge=ridge)
                for folds in FOLDS
                for ridge in RIDGES
            }
            settings["RLOO"] = catlog.RLOO(evaluations)
            samples = {
                key: gradients(E, problem, count, torch.Generator().manual_seed(1))
                for key, E in settings.items()
            }
            for folds in FOLDS:
                for ridge in RIDGES:
                    ratio, width = log_ratio(samples[f"{folds}, {ridge}"], samples["RLOO"])
                    rows.append(
                        {
                            "problem": problem.name,
                            "budget": times,
                            "evaluations": evaluations,
                            "folds": folds,
                            "ridge": ridge,
                            "relative_to_rloo": f"{torch.tensor(ratio).exp().item():.4g}",
                            "low_95": f"{torch.tensor(ratio - width).exp().item():.4g}",
                            "high_95": f"{torch.tensor(ratio + width).exp().item():.4g}",
                            "repeats": count,
                        }
                    )
            print(f"studied {problem.name}, {evaluations} evaluations, {count} repeats", flush=True)
    return rows


def print_study(rows: list[dict[str, object]]) -> None:
    columns = list(dict.fromkeys((row["problem"], row["evaluations"]) for row in rows))
    print("CritiCateR's variance relative to RLOO's; the mean is geometric")
    print(
        f"{'folds':>6}{'ridge':>7}"
        + "".join(f"{f'{str(p)[:13]} {e}':>18}" for p, e in columns)
        + f"{'mean':>8}"
    )
    means = {}
    for folds in FOLDS:
        for ridge in RIDGES:
            each = [
                number(row, "relative_to_rloo")
                for row in rows
                if (row["folds"], row["ridge"]) == (folds, ridge)
            ]
            means[folds, ridge] = torch.tensor(each).log().mean().exp().item()
            print(
                f"{folds:>6}{ridge:>7}"
                + "".join(f"{value:>18.3f}" for value in each)
                + f"{means[folds, ridge]:>8.3f}"
            )
    folds, ridge = min(means, key=lambda key: means[key])
    default = catlog.CritiCateR()
    print(
        f"best over all: folds={folds}, ridge={ridge} ({means[folds, ridge]:.3f}); "
        f"the default, folds={default.folds}, ridge={default.ridge}: {means.get((default.folds, default.ridge), torch.nan):.3f}"
    )


def write(rows: list[dict[str, object]], path: Path) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, rows[0].keys())
        writer.writeheader()
        writer.writerows(rows)
    print(f"written to {path}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--repeats", type=int, default=None, help="at most this many estimates per method"
    )
    parser.add_argument(
        "--quick", action="store_true", help="few repeats, small d and no files, for the tests"
    )
    parser.add_argument("--study", action="store_true", help="CritiCateR's settings instead")
    parser.add_argument(
        "--output", type=Path, default=None, help="folder for the tables and the plot"
    )
    args = parser.parse_args()
    repeats = args.repeats or (2 * GROUPS if args.quick else None)
    if repeats is not None and repeats < GROUPS + 2:
        parser.error(
            f"--repeats must be at least {GROUPS + 2}: the jackknife needs {GROUPS} groups."
        )
    torch.set_num_threads(1)  # small problems: threads cost more than they give
    torch.manual_seed(0)
    save = not args.quick or args.output is not None
    tables = args.output or ROOT / "results" / "quality"
    budgets = (1,) if args.quick else (1, 4)
    if args.study:
        found = study(repeats, budgets)
        print_study(found)
        if save:
            write(found, tables / "criticater_settings.csv")
        return
    rows = variances(repeats, budgets, 2000 if args.quick else 20_000)
    print(conclusion(rows))
    costs = scaling([4, 8, 16], 8, 5) if args.quick else scaling([8, 16, 32, 64], 32, 7)
    print_scaling(costs)
    if save:
        write(rows, tables / "structured_variance.csv")
        write(costs, tables / "structured_scaling.csv")
        figure = (args.output or ROOT / "docs") / "structured_variance.png"
        picture(rows, figure)
        print(f"written to {figure}")


if __name__ == "__main__":
    main()
