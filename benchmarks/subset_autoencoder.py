"""An autoencoder whose code is a subset: unbiased estimators beside SIMPLE and I-MLE.

    python -m benchmarks.subset_autoencoder            # minutes; results/subset/autoencoder.csv
    python -m benchmarks.subset_autoencoder --data mnist --seeds 0 1 2 --steps 2000 --every 250 \\
        --output results/subset/autoencoder_mnist.csv  # all of MNIST; --device cuda on a GPU
    python -m benchmarks.subset_autoencoder --quick    # seconds, writes to a given --output

The encoder (784-128-40, ReLU) gives 40 logits, the code is 10 of 40 bits, and the decoder
(40-128-784) reconstructs the pixels, as independent bits (cross-entropy, in nats per image). It
starts at the mean image; otherwise one code is best for all images at first, and is learned. The
images are the embedded digits (`catlog.data.load("mnist-5000")`, or `--data mnist`). Every
estimator has the same number of draws, so evaluations of the decoder, per image and step.
`loss_likeliest` is the mean over the test images at the likeliest code, the top k logits. `loss` is
that of a draw of the exact distribution. `seconds` is the time of training until then: CPU time, or
wall time on a GPU.

On a GPU the models of all seeds are trained in one captured step, so `seconds` is that of all
together. They share no parameters, and their gradients are those of separate runs.

The file is written at every evaluation, and the state of a run beside it (`*.pt`, removed at the
end). The same command continues where it was interrupted, or stopped by `--limit`. Finished runs
are not repeated.

I-MLE (Niepert et al., 2021) is as published: perturb-and-MAP with sum-of-Gamma noise, a step of
`--step` on the logits, and the difference of the two top-k sets. It samples approximately, so it is
no estimator of the library's contract and stands here. Its noise is smaller than that of exact
draws, so its logits stay small, and `loss` is not fair to it.
"""

import argparse
import time
from dataclasses import dataclass
from itertools import pairwise
from math import log
from pathlib import Path
from statistics import mean

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

import catlog
from catlog.data import load
from catlog.distributions import Subset
from catlog.estimator import Function

from .command_line import output_of, table_parser
from .tables import Row, Table, selected, show

TERMS = 10  # of the sum of Gamma variables, as published
BATCH = 100


def sum_of_gamma(shape: torch.Size, k: int, device: str | torch.device = "cpu") -> Tensor:
    """Return noise of which k independent ones sum up to a Gumbel, approximately."""
    rates = torch.arange(1, TERMS + 1, device=device) / k
    # Not torch.distributions.Gamma, which copies numbers to the GPU: a graph cannot capture that.
    gammas = torch._standard_gamma(torch.full((*shape, TERMS), 1 / k, device=device)) / rates
    return (gammas.sum(-1) - log(TERMS)) / k


def top_k(scores: Tensor, k: int) -> Tensor:
    return torch.zeros_like(scores).scatter(-1, scores.topk(k, -1).indices, 1.0)


@dataclass(frozen=True)
class PerturbAndMap:
    """I-MLE for a Subset: f has the derivative of the difference of two perturbed top-k sets."""

    samples: int
    step: float = 1.0

    def __call__(self, f: Function, q: Subset) -> Tensor:
        assert isinstance(q.k, int)
        shape = torch.Size([self.samples, *q.logits.shape])
        noise = sum_of_gamma(shape, q.k, q.logits.device)
        perturbed = q.logits.detach() + noise
        x = top_k(perturbed, q.k).requires_grad_()
        fx = f(x)
        (slope,) = torch.autograd.grad(fx.sum(), x, retain_graph=True)
        # As published, f's own scale is kept: the step is on the slope of one draw.
        target = top_k(perturbed - self.step * slope, q.k)
        shift = ((x.detach() - target) / self.step * q.logits).sum(-1).mean(0)
        return fx.mean(0) + shift - shift.detach()


class Linear(nn.Module):
    """A linear layer of several models: inputs ``[..., models, batch, i]``."""

    def __init__(self, layers: list[nn.Linear]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.stack([layer.weight.detach().T for layer in layers]))
        self.bias = nn.Parameter(torch.stack([layer.bias.detach() for layer in layers]))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight + self.bias.unsqueeze(-2)


def network(seeds: list[int], offset: int, *sizes: int) -> nn.Sequential:
    """Return networks with one hidden layer, the initial values of each by its own seed."""
    layers = []
    for seed in seeds:
        torch.manual_seed(2 * seed + offset)
        layers.append([nn.Linear(i, o) for i, o in pairwise(sizes)])
    first, second = zip(*layers, strict=True)
    return nn.Sequential(Linear(list(first)), nn.ReLU(), Linear(list(second)))


class Autoencoder(nn.Module):
    """One model for each seed; they share nothing."""

    def __init__(self, mean: Tensor, hidden: int, d: int, k: int, seeds: list[int]) -> None:
        super().__init__()
        self.k = k
        self.encoder = network(seeds, 0, len(mean), hidden, d)
        self.decoder = network(seeds, 1, d, hidden, len(mean))
        # The decoder starts at the mean image, so that no code is better for all.
        self.decoder[-1].bias.data.copy_(mean.clamp(0.01, 0.99).logit())

    def code(self, images: Tensor) -> Subset:
        return Subset(self.encoder(images), self.k, validate_args=False)

    def loss(self, x: Tensor, images: Tensor) -> Tensor:
        """Return the cross-entropies of codes ``[n, models, batch, d]``, in nats."""
        logits = self.decoder(x.to(images.dtype))
        target = images.expand_as(logits)
        return binary_cross_entropy_with_logits(logits, target, reduction="none").sum(-1)


def estimators(samples: int, step: float) -> dict[str, object]:
    return {
        "RLOO": catlog.RLOO(samples, validate=False),
        "CritiCateR": catlog.CritiCateR(samples, validate=False),
        "SIMPLE": catlog.SIMPLE(samples, validate=False),
        "I-MLE": PerturbAndMap(samples, step),
    }


@dataclass
class Training:
    """The models of some seeds, trained by one estimator.

    Attributes:
        name: of the estimator.
        E: the estimator.
        model: all models.
        train: training images.
        test: test images.
        lr: of Adam.
        seeds: one for each model.
        captured: whether a step on a GPU is captured in a CUDA graph.
    """

    name: str
    E: object
    model: Autoencoder
    train: Tensor
    test: Tensor
    lr: float
    seeds: list[int]
    captured: bool = True

    def __post_init__(self) -> None:
        capturable = self.train.is_cuda and self.captured
        self.optimiser = torch.optim.Adam(self.model.parameters(), self.lr, capturable=capturable)
        self.step = catlog.compiled_step(self._loss, self.optimiser, compile=False)
        self.done = 0
        self.seconds = 0.0

    def _loss(self, images: Tensor) -> Tensor:
        """Return losses ``[models, batch]`` whose mean is the sum of the models' mean losses."""
        q = self.model.code(images)
        estimate: Tensor = self.E(lambda x: self.model.loss(x, images), q)  # type: ignore[operator]
        return len(self.seeds) * estimate

    def _clock(self) -> float:
        if not self.train.is_cuda:
            return time.process_time()
        torch.cuda.synchronize()
        return time.perf_counter()

    def run(self, steps: int) -> None:
        """Make steps of 100 images for each model."""
        begin = self._clock()
        for _ in range(steps):
            shape = (len(self.seeds), BATCH)
            chosen = torch.randint(len(self.train), shape, device=self.train.device)
            self.step(self.train[chosen])
        self.done += steps
        self.seconds += self._clock() - begin

    @torch.no_grad()
    def evaluate(self) -> list[Row]:
        images = self.test.expand(len(self.seeds), *self.test.shape)
        q = self.model.code(images)
        loss = self.model.loss(q.sample((1,)), images).mean((0, 2)).tolist()
        likeliest = self.model.loss(top_k(q.logits, self.model.k)[None], images).mean((0, 2))
        return [
            {
                "estimator": self.name,
                "lr": self.lr,
                "seed": seed,
                "step": self.done,
                "loss": loss[i],
                "loss_likeliest": float(likeliest[i]),
                "seconds": self.seconds,
            }
            for i, seed in enumerate(self.seeds)
        ]

    def save(self, path: Path) -> None:
        state = {
            "model": self.model.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "random": torch.get_rng_state(),
            "done": self.done,
            "seconds": self.seconds,
        }
        new = path.with_suffix(".new")
        torch.save(state, new)
        new.replace(path)

    def resume(self, path: Path) -> None:
        state = torch.load(path, map_location=self.train.device)
        self.model.load_state_dict(state["model"])
        self.optimiser.load_state_dict(state["optimiser"])
        torch.set_rng_state(state["random"].cpu())
        self.done, self.seconds = state["done"], state["seconds"]


def train(training: Training, steps: int, every: int, table: Table, deadline: float) -> None:
    """Train for ``steps``, or until the deadline, and write a row every ``every`` steps."""
    path = None
    if table.path is not None:
        seeds = "-".join(map(str, training.seeds))
        label = f"{training.name}_{training.lr:g}_{seeds}"
        path = table.path.with_name(f"{table.path.stem}.{label}.pt")
    if path is not None and path.exists():
        training.resume(path)
        print(f"{training.name}: continues after {training.done} steps", flush=True)
    else:
        table.add(training.evaluate())
    while training.done < steps:
        training.run(min(every, steps - training.done))
        rows = training.evaluate()
        table.add(rows)
        if path is not None:
            training.save(path)
        losses = " ".join(f"{row['loss_likeliest']:.1f}" for row in rows)
        print(
            f"{training.name:12} step {training.done:5}  {losses} nats  {training.seconds:.0f} s"
            f"  {training.step.mode}",
            flush=True,
        )
        if time.perf_counter() > deadline:
            break
    if path is not None and training.done >= steps:
        path.unlink(missing_ok=True)


def parsed_arguments() -> argparse.Namespace:
    parser = table_parser(__doc__, quick="a few steps, for the tests")
    parser.add_argument("--data", default="mnist-5000", help="a name of catlog.data.load")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--names", nargs="+", default=["RLOO", "CritiCateR", "SIMPLE", "I-MLE"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--every", type=int, help="steps between evaluations; default: steps / 6")
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--step", type=float, default=1.0, help="lambda of I-MLE")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument(
        "--together",
        action=argparse.BooleanOptionalAction,
        help="train the models of all seeds in one step; default: on a GPU",
    )
    parser.add_argument("--eager", action="store_true", help="capture no step in a CUDA graph")
    parser.add_argument("--limit", type=float, default=1e9, help="seconds after which to stop")
    return parser.parse_args()


def main() -> None:
    args = parsed_arguments()
    deadline = time.perf_counter() + args.limit
    torch.set_num_threads(1)
    sizes = (16, 12, 3) if args.quick else (128, 40, 10)
    steps = 4 if args.quick else args.steps
    every = args.every or max(1, steps // 6)
    path = output_of(args, "subset", "autoencoder.csv")
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
    data = load(args.data)
    images, test = data.train.to(args.device), data.test.to(args.device)
    table = Table(path, ("estimator", "lr", "seed", "step"))
    # On a GPU a step takes as long for several models as for one.
    together = args.device != "cpu" if args.together is None else args.together
    groups = [args.seeds] if together else [[seed] for seed in args.seeds]
    for seeds in groups:
        for name in args.names:
            is_finished = all((name, args.lr, seed, steps) in table for seed in seeds)
            if is_finished or time.perf_counter() > deadline:
                continue
            E = estimators(args.samples, args.step)[name]
            model = Autoencoder(images.mean(0).cpu(), *sizes, seeds).to(args.device)
            torch.manual_seed(seeds[0])
            training = Training(name, E, model, images, test, args.lr, seeds, not args.eager)
            train(training, steps, every, table, deadline)
    last = selected(table.rows, step=steps, lr=args.lr)
    show(
        f"Loss after {steps} steps, nats per test image",
        [
            {
                "estimator": name,
                "likeliest code": mean(row["loss_likeliest"] for row in runs),
                "a draw": mean(row["loss"] for row in runs),
                "seeds": len(runs),
                "seconds": mean(row["seconds"] for row in runs),
            }
            for name in args.names
            if (runs := selected(last, estimator=name))
        ],
    )


if __name__ == "__main__":
    main()
