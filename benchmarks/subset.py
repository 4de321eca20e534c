"""Time and rounding error of `catlog.distributions.Subset`, beside a plain loop and Gumbel top-k.

    python -m benchmarks.subset             # a minute; writes results/subset/speed_cpu.csv
                                            # and results/subset/stability.csv
    python -m benchmarks.subset --quick     # tiny sizes, for the tests; writes to a given --output

100 distributions of 50 of 1,000 items. The plain loop is the textbook's recursion of the normaliser
over items, one `logaddexp` per item, differentiated by autograd. Its marginals are the derivative
of the normaliser, and it draws item by item from its table. Gumbel top-k is one `topk` of perturbed
logits. It draws from another distribution (Plackett-Luce) and has no marginals, so only draws are
compared. All sides run in turn, in one thread; `ms` is the median of the CPU time, `ratio` the
median over rounds of the time beside Subset's.

The rounding error compares float32 with float64: the largest absolute error of a draw's
log-probability, divided by k, and of the marginals; the relative error, in norm, of the gradient of
a weighted sum of the marginals.
"""

import time
from collections.abc import Callable
from statistics import median

import torch
from torch import Tensor
from torch.nn.functional import pad

import catlog
from catlog.distributions import gumbel_top_k

from .command_line import output_of, table_parser
from .tables import Row, Table
from .turns import median_ratio, seconds_in_turns

IMPOSSIBLE = -1e30


def plain_table(logits: Tensor, k: int) -> list[Tensor]:
    """Return the log-normalisers of the first i items, ``[batch, k + 1]`` for i = 0 ... d."""
    row = torch.full((len(logits), k + 1), IMPOSSIBLE, dtype=logits.dtype)
    row[:, 0] = 0
    rows = [row]
    for logit in logits.unbind(-1):
        row = torch.logaddexp(row, pad(row[:, :-1], (1, 0), value=IMPOSSIBLE) + logit[:, None])
        rows.append(row)
    return rows


def plain_log_prob(logits: Tensor, k: int, x: Tensor) -> Tensor:
    return (logits * x).sum(-1) - plain_table(logits, k)[-1][:, k]


def plain_marginals(logits: Tensor, k: int) -> Tensor:
    with torch.enable_grad():
        leaf = logits if logits.requires_grad else logits.clone().requires_grad_()
        total = plain_table(leaf, k)[-1][:, k].sum()
        return torch.autograd.grad(total, leaf, create_graph=logits.requires_grad)[0]


@torch.no_grad()
def plain_draw(logits: Tensor, k: int) -> Tensor:
    rows = plain_table(logits, k)
    remaining = torch.full((len(logits), 1), k)
    x = torch.zeros_like(logits, dtype=torch.int64)
    for i in range(logits.shape[-1] - 1, -1, -1):
        without = rows[i].gather(1, remaining)
        total = rows[i + 1].gather(1, remaining)
        bit = torch.rand(len(logits), 1) >= (without - total).exp()
        x[:, i] = bit[:, 0]
        remaining = remaining - bit.long()
    return x


def speed(d: int, k: int, batch: int, repeats: int) -> list[Row]:
    torch.manual_seed(0)
    logits = torch.randn(batch, d, requires_grad=True)
    fixed = logits.detach()
    weights = torch.randn(d)
    x = catlog.distributions.Subset(fixed, k).sample()
    work: dict[str, dict[str, Callable[[], object]]] = {
        "log-probability, forward": {
            "Subset": lambda: catlog.distributions.Subset(fixed, k).log_prob(x),
            "plain loop": lambda: plain_log_prob(fixed, k, x),
        },
        "log-probability, forward and backward": {
            "Subset": lambda: catlog.distributions.Subset(logits, k).log_prob(x).sum().backward(),
            "plain loop": lambda: plain_log_prob(logits, k, x).sum().backward(),
        },
        "marginals, forward": {
            "Subset": lambda: catlog.distributions.Subset(fixed, k).mean,
            "plain loop": lambda: plain_marginals(fixed, k),
        },
        "marginals, forward and backward": {
            "Subset": lambda: (catlog.distributions.Subset(logits, k).mean * weights).sum().backward(),
            "plain loop": lambda: (plain_marginals(logits, k) * weights).sum().backward(),
        },
        "one draw": {
            "Subset": lambda: catlog.distributions.Subset(fixed, k).sample(),
            "plain loop": lambda: plain_draw(fixed, k),
            "Gumbel top-k": lambda: gumbel_top_k(fixed, k),
        },
        "16 draws": {
            "Subset": lambda: catlog.distributions.Subset(fixed, k).sample((16,)),
            "Gumbel top-k": lambda: gumbel_top_k(fixed.expand(16, batch, d), k),
        },
    }
    rows = []
    for what, calls in work.items():
        times = seconds_in_turns(calls, repeats, clock=time.process_time)
        for name, measured in times.items():
            row: Row = {"what": what, "how": name, "d": d, "k": k, "batch": batch}
            row["ms"] = 1000 * median(measured)
            row["ratio"] = median_ratio(measured, times["Subset"])
            rows.append({**row, "repeats": repeats})
    return rows


def stability(d: int, k: int, batch: int) -> list[Row]:
    rows = []
    for scale in (1.0, 5.0, 20.0, 80.0):
        torch.manual_seed(0)
        logits = (scale * torch.randn(batch, d, dtype=torch.float64).clamp(-1, 1)).float().double()
        weights = torch.randn(d, dtype=torch.float64)
        x = catlog.distributions.Subset(logits, k).sample()
        results: dict[str, list[Tensor]] = {}
        for name, dtype in (("exact", torch.float64), ("Subset", torch.float32)):
            leaf = logits.to(dtype).requires_grad_()
            q = catlog.distributions.Subset(leaf, k)
            mean = q.mean
            (gradient,) = torch.autograd.grad((mean * weights).sum(), leaf, retain_graph=True)
            results[name] = [q.log_prob(x).detach(), mean.detach(), gradient]
        leaf = logits.float().requires_grad_()
        mean = plain_marginals(leaf, k)
        (gradient,) = torch.autograd.grad((mean * weights).sum(), leaf)
        results["plain loop"] = [plain_log_prob(leaf, k, x).detach(), mean.detach(), gradient]
        exact = results.pop("exact")
        for name, numbers in results.items():
            errors = [got.double() - wanted for got, wanted in zip(numbers, exact, strict=True)]
            rows.append(
                {
                    "how": name,
                    "logits": f"within {scale:g}",
                    "d": d,
                    "k": k,
                    "log_prob_per_item": float(errors[0].abs().max() / k),
                    "marginals": float(errors[1].abs().max()),
                    "gradient": float(errors[2].norm() / exact[2].norm()),
                }
            )
    return rows


def main() -> None:
    parser = table_parser(__doc__, repeats=11)
    args = parser.parse_args()
    torch.set_num_threads(1)
    sizes = (30, 5, 4) if args.quick else (1000, 50, 100)
    folder = output_of(args, "subset")
    times = Table(folder and folder / "speed_cpu.csv", ("what", "how"))
    times.add(speed(*sizes, repeats=2 if args.quick else args.repeats), "Milliseconds")
    errors = Table(folder and folder / "stability.csv", ("how", "logits"))
    errors.add(stability(*sizes), "Rounding error of float32")


if __name__ == "__main__":
    main()
