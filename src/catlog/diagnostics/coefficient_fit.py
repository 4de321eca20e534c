"""Coefficients of an estimator that give its gradient the least variance."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ..diagnostics import pilot_settings as settings
from .pilot import Pilot
from .trials import Trial


def fit_coefficients(pilot: Pilot, trial: Trial, repeats: int) -> None:
    r"""Set coefficients c of :math:`g_0 + \sum_i c_i g_i` to those of the least variance.

    The estimates with these coefficients are added to the trial. All of them have the same draws.
    """
    names, start = trial.candidate.coefficients, pilot.task.clock()
    coefficients: list[Tensor] = [getattr(trial.estimator, name) for name in names]
    state = pilot.generator.get_state()

    def assign(values: Sequence[float]) -> None:
        with torch.no_grad():
            for coefficient, value in zip(coefficients, values, strict=True):
                coefficient.fill_(value)

    def gradients(values: Sequence[float]) -> Tensor:
        pilot.generator.set_state(state)
        assign(values)
        return pilot.task.gradients(trial.estimator, repeats, pilot.generator)[0].double()

    base = gradients([0.0] * len(names))
    unit_vectors = torch.eye(len(names)).tolist()
    parts = torch.stack([gradients(values) - base for values in unit_vectors])
    centred, noise = parts - parts.mean(1, keepdim=True), base - base.mean(0)
    gram = torch.einsum("irp,jrp->ij", centred, centred)
    right = -torch.einsum("irp,rp->i", centred, noise)
    solution = torch.linalg.lstsq(gram, right.unsqueeze(-1)).solution.squeeze(-1)
    assign(solution.tolist())
    trial.seconds_per_repeat = (pilot.task.clock() - start) / (repeats * (1 + len(names)))
    if repeats < settings.REPEATS_FOR_SPREAD:  # few draws fit too well: draw again
        pilot.run_steps(trial, 2)
    else:
        pilot.add(trial, base + torch.einsum("i,irp->rp", solution, parts))
