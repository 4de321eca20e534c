"""
Several actions at once: MultiDiscrete in Gymnasium
===================================================

Four decisions at every step, of 3, 5, 3 and 5 choices, and a critic that sums all of them out.

A policy over Gymnasium's ``MultiDiscrete([3, 5, 3, 5])`` is
:class:`~catlog.distributions.Categoricals`: one distribution per decision, each with its own number
of choices. The critic Q(s, a) is learned from past steps. The policy maximises E[Q(s, a)] over its
own actions. So Q is f, and it can be evaluated at actions that nobody took: the gradient need not
come from the sampled action alone. This example needs the extra ``gallery``.
"""

# sphinx_gallery_thumbnail_number = 2

import os
import time
from copy import deepcopy
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

import catlog

try:
    import gymnasium
except ImportError:
    raise SystemExit("This example needs Gymnasium: pip install gymnasium") from None

QUICK = "CATLOG_QUICK" in os.environ
EPISODES, LENGTH, ENVIRONMENTS = 1 if QUICK else 10, 100 if QUICK else 200, 8
BATCH, DISCOUNT, ENTROPY, WIDTH = 128, 0.95, 0.02, 64

# %%
# **The environment.** Two of Gymnasium's pendulums are swung up at once. Each needs a direction
# (left, off, right) and a strength in five steps. Neither means anything without the other, so Q
# is not a sum over decisions. There are 225 joint actions.


class Pendulums(gymnasium.Env):
    """Two pendulums with a direction and a strength each; the reward is the mean of the two."""

    def __init__(self) -> None:
        self.parts = [gymnasium.make("Pendulum-v1", disable_env_checker=True) for _ in range(2)]
        self.action_space = gymnasium.spaces.MultiDiscrete([3, 5, 3, 5])
        self.observation_space = gymnasium.spaces.Box(-8, 8, (6,))

    def reset(self, *, seed: int | None = None, options: dict | None = None):
        super().reset(seed=seed)
        seeds = [None, None] if seed is None else [2 * seed, 2 * seed + 1]
        starts = [part.reset(seed=n)[0] for part, n in zip(self.parts, seeds, strict=True)]
        return self.scaled(starts), {}

    def step(self, action: np.ndarray):
        torques = (action[0::2] - 1) * (action[1::2] + 1) * 0.4  # up to 2, the pendulum's limit
        steps = [
            part.step(np.array([torque], dtype=np.float32))
            for part, torque in zip(self.parts, torques, strict=True)
        ]
        reward = float(np.mean([step[1] for step in steps]))
        return self.scaled([step[0] for step in steps]), reward, False, steps[0][3], {}

    def scaled(self, states: list[np.ndarray]) -> np.ndarray:
        return (np.stack(states) / [1, 1, 8]).ravel().astype(np.float32)


SIZES = tuple(int(size) for size in Pendulums().action_space.nvec)

# %%
# **Policy and critic.** The policy's network returns the logits of all decisions side by side. The
# critic reads states ``[batch, 6]`` and any number of actions per state, ``[n, batch, 4]``.


def network(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(inputs, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(),
        nn.Linear(WIDTH, outputs),
    )  # fmt: skip


class Policy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.network = network(6, sum(SIZES))

    def forward(self, state: Tensor) -> catlog.distributions.Categoricals:
        return catlog.distributions.Categoricals(self.network(state).split(SIZES, -1))


class Critic(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.network = network(6 + sum(SIZES), 1)

    def forward(self, state: Tensor, action: Tensor) -> Tensor:
        """State ``[batch, 6]`` and action ``[*n, batch, 4]`` to ``[*n, batch]``."""
        decisions = [one_hot(action[..., i], size) for i, size in enumerate(SIZES)]
        state = state.expand(*action.shape[:-1], -1)
        return self.network(torch.cat([state, *decisions], -1)).squeeze(-1)


# %%
# **Training.** The policy's objective is one expression, ``E(lambda a: critic(state, a), q)``. The
# same expression, without a gradient, is the value of the next state in the critic's target. An
# entropy bonus keeps the policy from settling too early. Pendulums never end, so there is always a
# next state.


def train(E: catlog.Estimator, seed: int) -> tuple[Policy, Critic, Tensor, list[float]]:
    """Return policy, critic, the states that were seen and the mean return of every episode."""
    torch.manual_seed(seed)
    policy, critic = Policy(), Critic()
    target = deepcopy(critic).requires_grad_(False)
    policy_optimiser = torch.optim.Adam(policy.parameters(), lr=3e-3)
    critic_optimiser = torch.optim.Adam(critic.parameters(), lr=3e-3)
    environments = [Pendulums() for _ in range(ENVIRONMENTS)]
    memory: list[tuple[Tensor, ...]] = []
    returns = []
    for episode in range(EPISODES):
        first = seed * 1000 + episode * ENVIRONMENTS
        starts = [part.reset(seed=first + n)[0] for n, part in enumerate(environments)]
        state = torch.tensor(np.stack(starts))
        total = 0.0
        for _ in range(LENGTH):
            with torch.no_grad():
                action = policy(state).sample()
            pairs = zip(environments, action.numpy(), strict=True)
            results = [environment.step(choice) for environment, choice in pairs]
            after = torch.tensor(np.stack([result[0] for result in results]))
            reward = torch.tensor([result[1] for result in results])
            memory.append((state, action, reward / 10, after))
            total += float(reward.mean())
            state = after
            rows = torch.randint(len(memory), (BATCH // ENVIRONMENTS,)).tolist()
            s, a, r, s2 = map(torch.cat, zip(*(memory[row] for row in rows), strict=True))
            update(E, policy, critic, target, (policy_optimiser, critic_optimiser), s, a, r, s2)
        returns.append(total)
    return policy, critic, torch.cat([entry[0] for entry in memory]), returns


def update(E, policy, critic, target, optimisers, state, action, reward, after) -> None:
    """One step of the critic, one of the policy."""
    policy_optimiser, critic_optimiser = optimisers
    with torch.no_grad():
        q = policy(after)
        value = E(lambda a: target(after, a), q) + ENTROPY * q.entropy()
    critic_optimiser.zero_grad()
    (critic(state, action) - reward - DISCOUNT * value).square().mean().backward()
    critic_optimiser.step()
    with torch.no_grad():
        for old, new in zip(target.parameters(), critic.parameters(), strict=True):
            old.lerp_(new, 0.05)
    critic.requires_grad_(False)
    q = policy(state)
    policy_optimiser.zero_grad()
    (-E(lambda a: critic(state, a), q) - ENTROPY * q.entropy()).mean().backward()
    policy_optimiser.step()
    critic.requires_grad_(True)


# %%
# IndeCateR sums out one decision at a time, given a sample of the others: 1 + 2 + 4 + 2 + 4 = 13
# evaluations of the critic per state. RLOO gets 13 sampled actions.

estimators = {"IndeCateR": catlog.IndeCateR(1), "RLOO": catlog.RLOO(13)}
curves = {}
for name, E in estimators.items():
    began = time.process_time()
    policy, critic, states, curves[name] = train(E, seed=0)
    evaluations = E.evaluations(policy(states[:1]))
    print(
        f"{name:10} {evaluations} evaluations, return of the first episode {curves[name][0]:.1f}, "
        f"of the last {curves[name][-1]:.1f}, {time.process_time() - began:.1f} s of CPU time"
    )

# %%
figure, axes = plt.subplots(figsize=(6.5, 3.4), layout="constrained")
for name, curve in curves.items():
    axes.plot(range(1, len(curve) + 1), curve, marker="o", label=name)
axes.set(xlabel="episode (8 environments)", ylabel="mean return of both pendulums")
axes.legend()
Path("demo").mkdir(exist_ok=True)
figure.savefig("demo/multidiscrete_policy.png", dpi=150)

# %%
# The returns hardly differ: with a critic that must be learned at the same time, the noise of the
# policy's gradient is not what holds training back. The noise itself differs. All 225 actions of 64
# states can be enumerated, so the exact gradient of the last policy is known.

at = states[torch.randperm(len(states), generator=torch.Generator().manual_seed(0))[:64]]
critic.requires_grad_(False)


def gradient(E: catlog.Estimator) -> Tensor:
    value = E(lambda a: critic(at, a), policy(at)).mean()
    parts = torch.autograd.grad(value, list(policy.parameters()))
    return torch.cat([part.flatten() for part in parts])


exact = gradient(catlog.Exact())
variance = {}
for name, E in (estimators | {"CritiCateR": catlog.CritiCateR(13)}).items():
    torch.manual_seed(1)
    errors = torch.stack([gradient(E) - exact for _ in range(20 if QUICK else 200)])
    variance[name] = float(errors.square().sum(-1).mean() / exact.square().sum())
    print(f"{name:10} variance / |gradient|^2: {variance[name]:.3f}")

# %%
figure, axes = plt.subplots(figsize=(6.5, 2.8), layout="constrained")
bars = axes.barh(list(variance), list(variance.values()), color=["C0", "C1", "C2"])
axes.bar_label(bars, fmt="%.3g", padding=3)
axes.invert_yaxis()
axes.set(xlabel="variance / ‖gradient‖², 13 evaluations of the critic")
axes.set_xlim(right=1.15 * max(variance.values()))
figure.savefig("demo/multidiscrete_policy_variance.png", dpi=150)
