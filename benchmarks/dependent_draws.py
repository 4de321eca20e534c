"""How much noise do antithetic and Latin draws remove from straight-through estimators?

    python -m benchmarks.dependent_draws            # minutes; results/quality/dependent_draws.csv
    python -m benchmarks.dependent_draws --quick    # seconds; writes only to a given --output

The model is the paper's autoencoder on MNIST-5000, with 200 bits or with 20 one-hot variables of 10
categories, trained for some epochs with ReinMax(4). For the reconstruction term of one batch of 100
images, `variance` is that of the gradient in the logits of q, and `decoder_variance` that in the
parameters of the decoder (`catlog.compare`). `gain` and `decoder_gain` say how many times less they
are than with independent draws. `ms` is the time of one estimate and its gradients.
"""

import torch
from torch import Tensor
from torch.distributions import Bernoulli, Distribution, Independent, OneHotCategorical

import catlog
from catlog import Estimator
from catlog_experiments import DVAE
from catlog_experiments.dvae import DVAETask

from .command_line import opened, table_parser
from .tables import Row, selected

MODELS = {"bits": (2, 200), "one-hot": (10, 20)}  # categories, variables
NAMES = ("ReinMax", "StraightThrough", "GappedStraightThrough", "GumbelRao", "GumbelSoftmax")
SAMPLES = (2, 4, 8)


def make_q(logits: Tensor, *decoder: Tensor) -> Distribution:
    return Independent(
        Bernoulli(logits=logits) if logits.dim() == 2 else OneHotCategorical(logits=logits), 1
    )


def estimators(samples: int) -> list[tuple[str, str, Estimator]]:
    """Return name, scheme of draws and estimator."""
    made = []
    for name in NAMES:
        for draws in ("independent", "antithetic", "latin"):
            options = {"hard": True} if name == "GumbelSoftmax" else {}
            E = getattr(catlog, name)(samples, sampling=draws, **options)
            made.append((name, draws, E))
    return made


def measure(model: str, epochs: int, repeats: int, sizes: tuple[int, ...]) -> list[Row]:
    categories, variables = MODELS[model]
    torch.manual_seed(0)
    settings = {"data": "mnist-5000", "device": "cpu", "gradient_repeats": 0}
    task = DVAETask(
        DVAE(estimator="ReinMax", samples=4, categories=categories, variables=variables, **settings)
    )
    for step in range(epochs * task.training.per_epoch):
        task.step(step)
    images = task.train[task.training.index(0)]
    logits = task.distribution(task.encoder(images), relaxed=True).base_dist.logits.detach()
    logits = logits.clone().requires_grad_()
    f = task.reconstruction(images, relaxed=True)
    decoder = list(task.decoder.parameters())
    rows: list[Row] = []
    for samples in sizes:
        schemes = estimators(samples)
        chosen = [E for _, _, E in schemes]
        comparison = catlog.compare(f, make_q, chosen, [logits, *decoder], repeats=repeats)
        measured = {row.name: row for row in comparison.rows}
        for name, draws, E in schemes:
            row = measured[repr(E)]
            codes, weights = row.variances.split(
                [logits.numel(), row.variances.numel() - logits.numel()]
            )
            key = {"model": model, "estimator": name, "samples": samples, "draws": draws}
            variances = {"variance": float(codes.sum()), "decoder_variance": float(weights.sum())}
            rows.append({**key, **variances, "ms": 1000 * row.seconds})
    for row in rows:
        same = {name: row[name] for name in ("estimator", "samples")}
        (independent,) = selected(rows, sampling="independent", **same)
        row["gain"] = independent["variance"] / row["variance"]
        row["decoder_gain"] = independent["decoder_variance"] / row["decoder_variance"]
    return rows


def main() -> None:
    key = ("model", "estimator", "samples", "draws")
    args, table = opened(table_parser(__doc__), "quality/dependent_draws.csv", *key)
    for model in MODELS:
        table.add(measure(model, *((1, 4, (2,)) if args.quick else (30, 60, SAMPLES))), model)


if __name__ == "__main__":
    main()
