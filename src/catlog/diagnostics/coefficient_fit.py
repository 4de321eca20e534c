"""Coefficients of an estimator that give its gradient the least variance."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..estimator import Estimator
from .gradient_samples import GradientSampler


def fit_coefficients(
    E: Estimator,
    names: Sequence[str],
    task: GradientSampler,
    repeats: int,
    generator: torch.Generator,
) -> Float[Tensor, "repeats parameters"]:
    r"""Set coefficients c of :math:`g_0 + \sum_i c_i g_i` to those of the least variance.

    Return the estimates with these coefficients. All estimates have the same draws.
    """
    assert isinstance(E, nn.Module)
    coefficients: list[nn.Parameter] = [getattr(E, name) for name in names]
    state = generator.get_state()

    def assign(values: Sequence[float]) -> None:
        with torch.no_grad():
            for coefficient, value in zip(coefficients, values, strict=True):
                coefficient.fill_(value)

    def gradients(values: Sequence[float]) -> Tensor:
        generator.set_state(state)
        assign(values)
        return task.gradients(E, repeats, generator)[0].double()

    base = gradients([0.0] * len(names))
    unit_vectors = torch.eye(len(names)).tolist()
    parts = torch.stack([gradients(values) - base for values in unit_vectors])
    centred, noise = parts - parts.mean(1, keepdim=True), base - base.mean(0)
    gram = torch.einsum("irp,jrp->ij", centred, centred)
    right = -torch.einsum("irp,rp->i", centred, noise)
    solution = torch.linalg.lstsq(gram, right.unsqueeze(-1)).solution.squeeze(-1)
    assign(solution.tolist())
    return base + torch.einsum("i,irp->rp", solution, parts)
