"""
Discrete and continuous together: a mixture that finds every mode
=================================================================

A posterior with several modes, approximated by a mixture of Gaussians.

x picks one of 8 components, and z is Gaussian given x. The weights of the mixture need a gradient
through a categorical sample, the means and scales a pathwise one. :class:`catlog.Pathwise` gives
both: it draws the noise, and E takes the expectation over x at that noise. All components share the
noise, so that only components are compared.
"""

import os
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from torch import Tensor
from torch.distributions import Categorical, Independent, Normal

import catlog

QUICK = "CATLOG_QUICK" in os.environ
K, STEPS, REPEATS = 8, 40 if QUICK else 800, 100 if QUICK else 400


def log_target(z: Tensor) -> Tensor:
    """Return an unnormalised ring of radius 2.5, heavier on the left, with a hump in the middle."""
    radius = z.norm(dim=-1)
    ring = -((radius - 2.5) ** 2) / 0.18 + 0.7 * (-3 * z[..., 0]).sigmoid()
    return torch.logaddexp(ring, -z.square().sum(-1) / 0.3)


# %%
# The loss is KL(mixture || target) up to a constant: E[log q(z) - log p(z)] with z = mean[x] +
# scale[x] * noise.


def loss(E: catlog.Pathwise, logits: Tensor, mean: Tensor, log_scale: Tensor, batch: int) -> Tensor:
    def f(x: Tensor, noise: Tensor) -> Tensor:
        z = mean[x] + log_scale[x].exp() * noise
        parts = Independent(Normal(mean, log_scale.exp()), 1).log_prob(z.unsqueeze(-2))  # [..., K]
        return (logits.log_softmax(-1) + parts).logsumexp(-1) - log_target(z)

    q = Categorical(logits=logits.expand(batch, K))
    noise = Independent(Normal(torch.zeros(batch, 2), 1.0), 1)
    return E(f, q, noise)


def parameters() -> list[Tensor]:
    torch.manual_seed(0)
    start = torch.zeros(K), torch.randn(K, 2), torch.full((K, 2), -0.5)
    return [parameter.requires_grad_() for parameter in start]


estimators = {
    "Exact": catlog.Pathwise(catlog.Exact()),  # all 8 components
    "IndeCateR": catlog.Pathwise(catlog.IndeCateR(1)),  # all 8 too, the gradient of f from one
    "RLOO": catlog.Pathwise(catlog.RLOO(8)),
    "Reinforce": catlog.Pathwise(catlog.Reinforce(8)),
}

# %%
# The noise of the gradient at the start, with 8 evaluations of f each.

for name, E in estimators.items():
    theta = parameters()
    values = [loss(E, *theta, batch=1).sum() for _ in range(REPEATS)]
    repeats = zip(*[torch.autograd.grad(value, theta[:2]) for value in values], strict=True)
    weights, means = [torch.stack(gradients).var(0).sum() for gradients in repeats]
    print(f"{name:10} variance of the gradient: weights {weights:.3f}, means {means:.3f}")

# %%
# Training, 16 draws of the noise per step.

curves, trained = {}, {}
for name, E in estimators.items():
    trained[name] = theta = parameters()
    optimiser = torch.optim.Adam(theta, lr=0.02)
    curves[name] = []
    for step in range(STEPS + 1):
        if step % (STEPS // 20) == 0:
            with torch.no_grad():
                curves[name].append(loss(estimators["Exact"], *theta, batch=2000).mean().item())
        optimiser.zero_grad()
        loss(E, *theta, batch=16).mean().backward()
        optimiser.step()
    print(f"{name:10} loss after {STEPS} steps: {curves[name][-1]:.3f}")

# %%
side = torch.linspace(-4, 4, 160)
grid = torch.stack(torch.meshgrid(side, side, indexing="xy"), -1)
figure, axes = plt.subplots(1, 2, figsize=(7.2, 3.8), layout="constrained")
axes[0].contourf(side, side, log_target(grid).exp(), levels=12, cmap="Blues")
axes[0].set(title="the target")
logits, mean, log_scale = (parameter.detach() for parameter in trained["Exact"])
parts = Independent(Normal(mean, log_scale.exp()), 1).log_prob(grid.unsqueeze(-2))
density = (logits.log_softmax(-1) + parts).logsumexp(-1).exp()
axes[1].contourf(side, side, density, levels=12, cmap="Oranges")
axes[1].scatter(*mean.T, s=600 * logits.softmax(-1), facecolor="none", edgecolor="black")
axes[1].set(title="the mixture; circles: weights")
for ax in axes:
    ax.set(aspect="equal", xticks=[], yticks=[])
Path("demo").mkdir(exist_ok=True)
figure.savefig("demo/mixture_posterior.png", dpi=150)

# %%
figure, axes = plt.subplots(figsize=(6.5, 3.6), layout="constrained")
for name, curve in curves.items():
    axes.plot(torch.linspace(0, STEPS, len(curve)), curve, label=name)
axes.set(title="KL(mixture || target) + constant", xlabel="step")
axes.legend()
figure.savefig("demo/mixture_posterior_curves.png", dpi=150)
