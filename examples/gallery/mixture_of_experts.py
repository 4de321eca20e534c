"""
A router that learns from experts it did not pick
=================================================

Every token is sent to one of four experts. How does the router know that another would be better?

The usual router multiplies the output of the expert that it picked by that expert's probability,
and learns from this factor alone. Straight-Through and ReinMax ask the slope of the loss what
another expert would have done. :class:`~catlog.IndeCateR` with ``variables=2`` tries the other
experts on two tokens of each sequence and uses the results to correct the slope, so its gradient is
unbiased.
"""

# sphinx_gallery_thumbnail_number = 2

import os
import time
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from torch import Tensor, nn
from torch.distributions import Independent, OneHotCategorical

import catlog

QUICK = "CATLOG_QUICK" in os.environ
TOKENS, EXPERTS, WIDTH, OUT = 8, 4, 6, 4
BATCH, STEPS, SEEDS = 64, 40 if QUICK else 400, 1 if QUICK else 2
BONUS = 0.1  # weight of the router's entropy at the first step

# %%
# **The data.** A token has a place in the plane and a content. The place decides which of four
# matrices is applied to the content: the four sectors around a centre. The results of all tokens
# are added and squashed. No single token has a target, so the router sees the error of the whole
# sequence only.

generator = torch.Generator().manual_seed(0)
TRUE = torch.randn(EXPERTS, WIDTH, OUT, generator=generator)


def sequences(number: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return places, contents, the right experts and the targets of new sequences."""
    place, content = torch.randn(number, TOKENS, 2), torch.randn(number, TOKENS, WIDTH)
    angle = torch.atan2(place[..., 1], place[..., 0]) / torch.pi  # in [-1, 1]
    sector = ((angle + 1) * EXPERTS / 2).long().clamp(max=EXPERTS - 1)
    total = torch.einsum("btw,btwo->bo", content, TRUE[sector]) / TOKENS**0.5
    return place, content, sector, torch.tanh(total)


class Mixture(nn.Module):
    """A router on places, and one matrix per expert."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, EXPERTS))
        self.experts = nn.Parameter(torch.randn(EXPERTS, WIDTH, OUT) / WIDTH**0.5)

    def choice(self, place: Tensor) -> Independent:
        """Return the distribution of the experts of all tokens."""
        return Independent(OneHotCategorical(logits=self.router(place)), 1)

    def loss(self, x: Tensor, content: Tensor, target: Tensor) -> Tensor:
        """Return squared errors ``[n, batch]`` for one-hot ``x [n, batch, tokens, experts]``."""
        outputs = torch.einsum("btw,kwo->btko", content, self.experts)
        total = torch.einsum("...btk,btko->...bo", x, outputs) / TOKENS**0.5
        return (torch.tanh(total) - target).square().sum(-1)


# %%
# **The methods.** ``E(f, q)`` for an estimator. The usual router is written by hand: it samples x
# and multiplies the expert's output by its probability over the same, detached probability. That
# leaves the value as it is, and gives the router a gradient through the picked expert alone. RLOO
# has as many evaluations of the loss as IndeCateR: 1 + 2 * 3.

estimators: dict[str, catlog.Estimator | None] = {
    "picked expert only": None,
    "Straight-Through": catlog.StraightThrough(1),
    "ReinMax": catlog.ReinMax(1),
    "RLOO": catlog.RLOO(7),
    "IndeCateR, 2 tokens": catlog.IndeCateR(1, variables=2),
}


def objective(E: catlog.Estimator | None, model: Mixture, batch: tuple[Tensor, ...]) -> Tensor:
    place, content, _, target = batch
    q = model.choice(place)
    if E is None:
        x = q.sample((1,))
        gate = (q.base_dist.logits - q.base_dist.logits.detach()).exp()
        return model.loss(x * gate, content, target).mean(0)
    return E(lambda x: model.loss(x, content, target), q)


# %%
# **Bias.** The 65,536 ways to route the 8 tokens of a sequence can be enumerated, so the router's
# exact gradient is known: here at a model that was trained for a short while, on four sequences.


def train(
    E: catlog.Estimator | None, steps: int, bonus: float, seed: int = 0
) -> tuple[Mixture, list[tuple[float, float]]]:
    """Return a trained mixture and its curve: error and routing on new sequences."""
    torch.manual_seed(seed)
    model = Mixture()
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
    curve = [test(model)]
    for step in range(1, steps + 1):
        batch = sequences(BATCH)
        weight = bonus * (1 - step / steps)
        entropy = model.choice(batch[0]).entropy()
        optimiser.zero_grad()
        (objective(E, model, batch) - weight * entropy).mean().backward()
        optimiser.step()
        if step % 10 == 0:
            curve.append(test(model))
    return model, curve


@torch.no_grad()
def test(model: Mixture) -> tuple[float, float]:
    """Return the error of the most likely experts, and how well they match the sectors."""
    place, content, sector, target = held_out
    expert = model.router(place).argmax(-1)
    x = nn.functional.one_hot(expert, EXPERTS).float()
    pairs = (EXPERTS * sector + expert).flatten()
    counts = pairs.bincount(minlength=EXPERTS**2).view(EXPERTS, EXPERTS)
    # The share of tokens in the most frequent sector of their expert.
    return float(model.loss(x, content, target).mean()), float(counts.amax(0).sum() / counts.sum())


def router_gradient(
    E: catlog.Estimator | None, model: Mixture, batch: tuple[Tensor, ...]
) -> Tensor:
    value = objective(E, model, batch).mean()
    gradients = torch.autograd.grad(value, list(model.router.parameters()))
    return torch.cat([gradient.flatten() for gradient in gradients])


torch.manual_seed(7)
held_out = sequences(512)
four = tuple(part[:4] for part in held_out)
model, _ = train(catlog.IndeCateR(1), 20 if QUICK else 60, BONUS)
exact = router_gradient(catlog.Exact(), model, four)
repeats = 100 if QUICK else 600
bias, noise = {}, {}
for name, E in estimators.items():
    torch.manual_seed(1)
    drawn = torch.stack([router_gradient(E, model, four) for _ in range(repeats)])
    bias[name] = float((drawn.mean(0) - exact).norm() / exact.norm())
    noise[name] = float((drawn.var(0).sum().sqrt()) / exact.norm())
    print(
        f"{name:20} distance of the mean: {bias[name]:.2f} +- {noise[name] / repeats**0.5:.2f}, "
        f"noise of one gradient: {noise[name]:.2f}"
    )

# %%
# Straight-Through has the least noise, but its mean is far from the exact gradient. The usual
# router is the noisiest. ReinMax's bias is within the noise of this measurement. Trying the other
# experts on two tokens is unbiased, and less noisy than ReinMax and RLOO.

figure, axes = plt.subplots(figsize=(6.5, 3.4), layout="constrained")
place = torch.arange(len(bias))
axes.barh(place - 0.2, list(noise.values()), 0.38, label="noise of one gradient", color="C7")
axes.barh(place + 0.2, list(bias.values()), 0.38, label="distance of the mean", color="C3")
axes.axvline(1, color="grey", linestyle=":")
axes.set_yticks(place, list(bias))
axes.invert_yaxis()
axes.set(xscale="log", xlabel="relative to the norm of the router's exact gradient")
figure.legend(fontsize=8, loc="outside upper center", ncols=2)
Path("demo").mkdir(exist_ok=True)
figure.savefig("demo/mixture_of_experts_bias.png", dpi=150)

# %%
# **Training.** A router that follows its gradient soon sends everything to the experts that are
# better at the moment. The others then learn nothing and never improve. A bonus for the router's
# entropy, which shrinks to zero, keeps all experts in use for a while.

curves = {}
for bonus in (0.0, BONUS):
    for name, E in estimators.items():
        began = time.process_time()
        runs = [train(E, STEPS, bonus, seed)[1] for seed in range(SEEDS)]
        curves[name, bonus] = torch.tensor(runs)
        seconds = (time.process_time() - began) / SEEDS
        error, share = curves[name, bonus][:, -1].mean(0).tolist()
        title = f"{name}, bonus" if bonus else name
        print(f"{title:27} error {error:.3f}, right expert {share:.3f}, {seconds:.1f} s")

# %%
# Without the bonus, good gradients lead to a bad router: it soon settles on one or two experts.
# Straight-Through, whose bias keeps more of them in use, gets farther. With the bonus every
# method finds the sectors, and the three whose gradients have little bias are ahead. So keep the
# experts in use first, and then worry about the gradient.

figure, panels = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained", sharey=True)
for axes, bonus in zip(panels, (0.0, BONUS), strict=True):
    for name in estimators:
        mean = curves[name, bonus][..., 0].mean(0)
        axes.plot(torch.arange(len(mean)) * 10, mean, label=name)
    axes.set(xlabel="step", yscale="log", title="entropy bonus" if bonus else "no bonus")
panels[0].set_ylabel("squared error, most likely experts")
panels[1].legend(fontsize=8)
figure.savefig("demo/mixture_of_experts.png", dpi=150)
