"""Bias and variance of every estimator on problems small enough to be solved exactly.

    python examples/bias_variance.py          # some seconds on a CPU; writes demo/bias_variance.png

f is a nonlinear function of a Potts energy of 6 variables with 4 categories: 4,096 points, so
`catlog.Exact` gives the true gradient. The others get equal numbers of evaluations of f, and many
repeats run at once, along the batch dimension of the distribution. The couplings between variables
have two strengths, because the best unbiased estimator depends on how far f is from additive.
"""

import argparse
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from torch import Tensor
from torch.distributions import Independent, OneHotCategorical
from torch.nn.functional import softplus

import catlog
from catlog.functions import Potts

D, K, N = 6, 4, 2  # variables, categories, draws of IndeCateR
EVALUATIONS = N * (D * (K - 1) + 1)
COUPLINGS = {"weak": 0.25, "strong": 1.0}
ESTIMATORS: dict[str, catlog.Estimator] = {
    "Reinforce": catlog.Reinforce(EVALUATIONS),
    "RLOO": catlog.RLOO(EVALUATIONS),
    "IndeCateR": catlog.IndeCateR(N),
    "IndeCateR, Latin draws": catlog.IndeCateR(N, sampling="latin"),
    "StraightThrough": catlog.StraightThrough(EVALUATIONS),
    "GumbelSoftmax, soft": catlog.GumbelSoftmax(EVALUATIONS, temperature=0.5),
    "GumbelSoftmax, hard": catlog.GumbelSoftmax(EVALUATIONS, temperature=0.5, hard=True),
}


def gradients(E: catlog.Estimator, energy: Potts, logits: Tensor, repeats: int) -> Tensor:
    """``[repeats, d, k]``: independent estimates of the gradient of E[softplus(energy)]."""
    copies = logits.expand(repeats, D, K).clone().requires_grad_()
    q = Independent(OneHotCategorical(logits=copies), 1)
    return torch.autograd.grad(E(lambda x: softplus(energy(x)), q).sum(), copies)[0]


def picture(measured: dict[str, list[tuple[float, float, float]]]) -> plt.Figure:
    """Bias with its standard error, and variance: one line per estimator."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), sharey=True, layout="constrained")
    names = [f"{name} ({'unbiased' if E.unbiased else 'biased'})" for name, E in ESTIMATORS.items()]
    for strength, mark in zip(COUPLINGS, ("ob", "sr"), strict=True):
        bias, error, variance = zip(*measured[strength], strict=True)
        left.errorbar(bias, names, xerr=error, fmt=mark, capsize=3, label=f"{strength} couplings")
        right.plot(variance, names, mark)
    left.set(title="bias", xlabel="‖mean - gradient‖ / ‖gradient‖ (± s.e.)")
    right.set(title="variance", xlabel="variance over draws / ‖gradient‖²", xscale="log")
    for axes in (left, right):
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    left.invert_yaxis()
    left.legend(loc="upper right")
    figure.suptitle(f"{EVALUATIONS} evaluations of f per estimate, {D} variables of {K} categories")
    return figure


def main(repeats: int, output: Path) -> None:
    torch.manual_seed(0)
    logits, fields, couplings = torch.randn(D, K), torch.randn(D, K), torch.randn(D, D)
    measured: dict[str, list[tuple[float, float, float]]] = {strength: [] for strength in COUPLINGS}
    print(f"Relative to the exact gradient, at {EVALUATIONS} evaluations of f:")
    for strength, scale in COUPLINGS.items():
        energy = Potts(scale * couplings, fields, one_hot=True)
        exact = gradients(catlog.Exact(), energy, logits, repeats=1)[0]
        print(f"\n{strength + ' couplings':24}{'bias':>10}{'+- s.e.':>10}{'variance':>12}")
        for name, E in ESTIMATORS.items():
            estimates = gradients(E, energy, logits, repeats)
            variance = float(estimates.var(0).sum() / exact.square().sum())
            bias = float((estimates.mean(0) - exact).norm() / exact.norm())
            error = (variance / repeats) ** 0.5
            measured[strength].append((bias, error, variance))
            print(f"{name:24}{bias:>10.4f}{error:>10.4f}{variance:>12.4f}")
    print("\nThe bias of an unbiased estimator is noise: about as large as its standard error.")
    output.mkdir(parents=True, exist_ok=True)
    picture(measured).savefig(output / "bias_variance.png", dpi=150)
    print(f"written to {output / 'bias_variance.png'}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=10_000)
    parser.add_argument("--output", type=Path, default=Path("demo"))
    main(**vars(parser.parse_args()))
