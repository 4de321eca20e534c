"""Points at which a pilot would be misled because all categories are equally likely."""

import torch
from torch import Tensor
from torch.distributions import Bernoulli, Distribution

from ..core.factors import Factors
from ..distributions.categoricals import Categoricals
from .gradient_samples import DistributionLike, GradientSampler
from .gradients import normal_like
from .rebuilding import parameter_of, rebuilt, with_parameter

NEARLY_UNIFORM = 0.05  # standard deviation of the logits of a variable; a few steps change them


def is_degenerate(task: GradientSampler) -> bool:
    """Return whether all categories are about equally likely, in every variable.

    Symmetries can then cancel the noise of an estimator, until the first step.
    """
    law = task.view
    if not isinstance(law, Factors):
        return task.rebuilds_q and all(
            bool(parameter.max() == parameter.min()) for parameter in task.parameters
        )
    if len(set(law.cardinalities)) > 1 or law.k < 2:
        return False
    return float(law.log_probs.detach().std(-1).max()) < NEARLY_UNIFORM


def moved(task: GradientSampler, q: DistributionLike, seed: int) -> DistributionLike:
    """Return q with standard normal noise added to its logits, the same for the whole batch.

    The noise of a structured distribution is added to its parameters.
    """
    generator = task.generator(seed)
    if isinstance(q, Distribution):
        return _with_noise(task.q, _noise(task.q, generator))
    make_q = q
    if not isinstance(task.view, Factors):
        shifts = [
            normal_like(parameter, parameter.shape, generator) for parameter in task.parameters
        ]
        return lambda *parameters: make_q(
            *(value + shift for value, shift in zip(parameters, shifts, strict=True))
        )
    noise = _noise(task.q, generator)
    return lambda *parameters: _with_noise(make_q(*parameters), noise)


def _noise(q: Distribution, generator: torch.Generator) -> Tensor:
    parameter = parameter_of(q)
    event_shape = parameter.shape[len(q.batch_shape) :]
    return normal_like(parameter, event_shape, generator)


def _with_noise(q: Distribution, noise: Tensor) -> Distribution:
    parameter, inner = parameter_of(q), with_parameter(q)
    if parameter is not getattr(inner, "probs", None) or isinstance(inner, Categoricals):
        return rebuilt(q, parameter + noise)
    if isinstance(inner, Bernoulli):
        return rebuilt(q, (parameter.logit() + noise).sigmoid())
    return rebuilt(q, (parameter.log() + noise).softmax(-1))
