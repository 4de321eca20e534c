"""When to replace a machine: policy gradients in a small Markov decision process, compared with
dynamic programming.

    python examples/machine_replacement.py    # a minute; writes demo/machine_replacement.png

A machine wears from condition 0 (new) to 3 (broken). Every day you keep it, at a cost that grows
with wear, or replace it. The distribution q over x = (a_0, s_1, a_1, ..., s_T) is a Bayesian
network: actions come from a softmax policy theta[state, action], the same on all days, and
conditions from fixed tables. f(x) is the discounted reward, and the exact gradient of E[f] is known
by dynamic programming. All estimators get equal evaluations of f, and many repeats run at once,
along the batch dimension of q. Then the estimator with the lowest variance trains policies, next to
the exact gradient and REINFORCE.
"""

import argparse
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from torch import Tensor
from torch.nn.functional import pad

import catlog
from catlog.distributions import Node

K, T, DISCOUNT = 4, 6, 0.9  # conditions, days
REWARD = -torch.tensor([[0, 6], [1, 6], [4, 6], [10, 8]]).double() / 2  # of [keep, replace]
KEEP = torch.tensor([[5, 4, 1, 0], [0, 5, 4, 1], [0, 0, 5, 5], [0, 0, 0, 10]])
REPLACE = torch.tensor([9, 1, 0, 0]).expand(K, K)
P = torch.stack([KEEP, REPLACE], 1).double() / 10  # [state, action, next state]


def action_values(V: Tensor) -> Tensor:
    """Q(state, action) where V ``[*batch, K]`` is the worth of the next state."""
    return REWARD + DISCOUNT * torch.einsum("sat,...t->...sa", P, V)


V = torch.zeros(K).double()
# Value iteration. V* is the best return without end, and the price of the machine on the last day.
for _ in range(500):
    V = action_values(V).amax(-1)


def expected_return(theta: Tensor) -> Tensor:
    """E[f] from a new machine under policies theta ``[*batch, K, 2]``; at best V*(0)."""
    worth = V
    for _ in range(T):
        worth = (theta.softmax(-1) * action_values(worth)).sum(-1)
    return worth[..., 0]


def trajectories(theta: Tensor) -> catlog.distributions.BayesianNetwork:
    """q(a_0, s_1, a_1, ..., s_T): a node for every action and for the condition that follows it."""
    wear = P.log().expand(*theta.shape[:-2], K, 2, K)  # impossible changes have logit -inf
    nodes = {"a0": Node([], theta[..., 0, :]), "s1": Node(["a0"], wear[..., 0, :, :])}
    for t in range(1, T):
        nodes[f"a{t}"] = Node([f"s{t}"], theta)
        nodes[f"s{t + 1}"] = Node([f"s{t}", f"a{t}"], wear)
    return catlog.distributions.BayesianNetwork(nodes, theta.shape[:-2])


def f(x: Tensor) -> Tensor:
    """The discounted reward of histories ``[n, *batch, 2 T]``."""
    before, actions = pad(x[..., 1:-1:2], (1, 0)), x[..., 0::2]
    rewards = REWARD[before, actions] * DISCOUNT ** torch.arange(T).double()
    return rewards.sum(-1) + DISCOUNT**T * V[x[..., -1]]


def gradients(E: catlog.Estimator, theta: Tensor, repeats: int) -> Tensor:
    """``[repeats, K, 2]``: independent estimates of the gradient of E[f]."""
    copies = theta.expand(repeats, K, 2).clone().requires_grad_()
    return torch.autograd.grad(E(f, trajectories(copies)).sum(), copies)[0]


def train(E: catlog.Estimator | None, steps: int, policies: int = 16) -> Tensor:
    """``[steps + 1, policies]``: the exact E[f] along gradient ascent by E, or exact if None."""
    theta = torch.zeros(policies, K, 2).double().requires_grad_()
    optimiser = torch.optim.Adam([theta], lr=0.1)
    curve = []
    for _ in range(steps + 1):
        curve.append(expected_return(theta))
        value = curve[-1] if E is None else E(f, trajectories(theta))
        optimiser.zero_grad()
        (-value.sum()).backward()
        optimiser.step()
    return torch.stack(curve).detach()


def picture(
    measured: dict[str, tuple[float, float, float]], curves: dict[str, Tensor], n: int
) -> plt.Figure:
    plt.rcParams.update(
        {"axes.grid": True, "grid.alpha": 0.3, "axes.spines.top": False, "axes.spines.right": False}
    )
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
    names, (bias, error, variance) = list(measured), zip(*measured.values(), strict=True)
    left.plot([value**0.5 for value in variance], names, "o", label="√variance")
    left.plot(bias, names, "x", color="tab:red", label="bias")
    left.plot(error, names, "|", color="tab:red", markersize=12, label="s.e. of bias")
    left.set(title=f"gradients, {n} evaluations of f each", xlabel="relative to ‖gradient‖")
    left.set(xscale="log", ylim=(6.5, -1.2))
    left.legend(loc="upper center", ncols=3, columnspacing=1, handletextpad=0.2)
    for name, returns in curves.items():
        mean, error = returns.mean(1), returns.std(1) / returns.shape[1] ** 0.5
        right.plot(mean, label=name)
        steps = range(len(mean))
        right.fill_between(steps, mean - error, mean + error, alpha=0.2, linewidth=0)
    right.axhline(float(V[0]), color="grey", linestyle=":", label="optimum by value iteration")
    right.set(xlabel="step", ylabel="expected return E[f]")
    right.set(title=f"training, mean ± s.e. of {returns.shape[1]} policies")
    right.legend(loc="lower right")
    return figure


def main(steps: int, repeats: int, output: Path) -> None:
    torch.manual_seed(0)
    theta = torch.zeros(K, 2).double().requires_grad_()  # the policy that tosses a coin
    (exact,) = torch.autograd.grad(expected_return(theta), theta)
    difference = (gradients(catlog.Exact(), theta, 1)[0] - exact).abs().max()
    points = (2 * K) ** T
    print(f"Dynamic programming and catlog.Exact ({points} points) agree to {difference:.0e}.")
    n = catlog.SCateR(1).evaluations(trajectories(theta))
    estimators = {
        "Reinforce": catlog.Reinforce(n),
        "RLOO": catlog.RLOO(n),
        "LEG": catlog.estimators.LEG(1),
        "RAM": catlog.estimators.RAM(1),
        "CritiCateR": catlog.CritiCateR(n),
        "SCateR": catlog.SCateR(1),
        "SCateR, common": catlog.SCateR(1, suffix="common"),
    }
    print(f"\nRelative to the exact gradient, at {n} evaluations of f:")
    print(f"{'':16}{'bias':>10}{'+- s.e.':>10}{'variance':>12}")
    measured, curves = {}, {}
    for name, E in estimators.items():
        estimates = gradients(E, theta, repeats)
        variance = float(estimates.var(0).sum() / exact.square().sum())
        bias = float((estimates.mean(0) - exact).norm() / exact.norm())
        error = (variance / repeats) ** 0.5
        measured[name] = bias, error, variance
        print(f"{name:16}{bias:>10.4f}{error:>10.4f}{variance:>12.4f}")
    print(f"\nExpected return, optimum {V[0]:.3f}:\n{'':16}{'before':>10}{'after':>10}")
    for name in ("exact gradient", min(measured, key=lambda name: measured[name][-1]), "Reinforce"):
        curves[name] = train(estimators.get(name), steps)
        print(f"{name:16}{curves[name][0].mean():>10.3f}{curves[name][-1].mean():>10.3f}")
    output.mkdir(parents=True, exist_ok=True)
    picture(measured, curves, n).savefig(output / "machine_replacement.png", dpi=150)
    print(f"\nwritten to {output / 'machine_replacement.png'}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=2000)
    parser.add_argument("--output", type=Path, default=Path("demo"))
    main(**vars(parser.parse_args()))
