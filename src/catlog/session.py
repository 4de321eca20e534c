"""Ask and tell: estimates for functions that are evaluated elsewhere, by hand, or overnight."""

from os import PathLike
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.distributions import Distribution

from .core.checks import check_is_tensor
from .core.estimator import Estimator, check_estimator


class Session:
    r"""One call of an estimator whose f is evaluated elsewhere: in a laboratory, by a simulator
    that runs overnight, by people.

    :meth:`ask` returns the points at which f is needed, ``[n, *batch, *event]``, and :meth:`tell`
    takes its values, ``[n, *batch]``. When nothing more is needed, ``ask`` returns None and
    ``estimate`` holds what ``E(f, q)`` would have returned: call ``backward`` on it.

    The call of E is repeated with the same random numbers whenever values were told, up to the
    point where it needs further ones. So any estimator that does not differentiate f can be used.
    What an estimator learns is learned once, at the end. While a session is open, q must keep its
    parameters.

    A session is saved by ``save`` at any time, and continued by ``Session.resume`` in another
    process, with an equal q.

    Args:
        E: the estimator.
        q: the distribution.
        outputs: the number of output dimensions of f, as for E.
        seed: of the random numbers; None: from torch's global generator.

    >>> from catlog import IndeCateR
    >>> logits = torch.zeros(3, requires_grad=True)
    >>> q = torch.distributions.Independent(torch.distributions.Bernoulli(logits=logits), 1)
    >>> session = Session(IndeCateR(1), q)
    >>> while (x := session.ask()) is not None:
    ...     session.tell(x.sum(-1))  # or what the laboratory says
    >>> session.estimate.backward()
    >>> logits.grad
    tensor([0.2500, 0.2500, 0.2500])
    """

    def __init__(
        self, E: Estimator[Any], q: Distribution, *, outputs: int = 0, seed: int | None = None
    ) -> None:
        check_estimator("Session: `E`", E)
        if E.differentiates_f:
            raise ValueError(
                f"Session: `E` must not need the derivative of f, as {E!r} does. Values alone are "
                "told: use RLOO, IndeCateR or another estimator of black boxes."
            )
        self.E = E
        self.q = q
        self.outputs = outputs
        self.seed = int(torch.randint(2**62, ())) if seed is None else seed
        self.points: list[Tensor] = []
        self.values: list[Tensor] = []
        self._estimate: Tensor | None = None

    def ask(self) -> Tensor | None:
        """Return the points at which f is needed next; None when the estimate is complete.

        Asking again returns the same points.
        """
        if self._estimate is not None:
            return None
        if len(self.points) > len(self.values):
            return self.points[-1].clone()
        told = iter(zip(self.points, self.values, strict=True))

        def f(x: Tensor) -> Tensor:
            known = next(told, None)
            if known is None:
                raise _Asked(x)
            if known[0].shape != x.shape or bool((known[0] != x).any()):
                raise ValueError(
                    "Session: `q` must be as it was when the session began, but it draws other "
                    "points now. Take a step of the optimiser only after the session has ended."
                )
            return known[1]

        options: dict[str, Any] = {"outputs": self.outputs} if self.outputs else {}
        device = self.points[0].device if self.points else _device(self.q)
        generator = torch.Generator(device).manual_seed(self.seed)
        try:
            self._estimate = self.E(f, self.q, generator=generator, **options)
        except _Asked as asked:
            self.points.append(asked.points.clone())
            return asked.points
        return None

    def tell(self, values: Tensor) -> None:
        """Take the values of f at the points that were asked for last."""
        if len(self.points) == len(self.values):
            raise RuntimeError("Session: values were told, but none were asked for. Call ask().")
        check_is_tensor("Session.tell", "values", values, "[n, *batch]")
        batch = self.points[-1].dim() - len(self.q.event_shape)
        if values.shape[: values.dim() - self.outputs] != self.points[-1].shape[:batch]:
            raise ValueError(
                f"Session.tell: `values` must have shape {tuple(self.points[-1].shape[:batch])} "
                f"([n, *batch]), but it is {tuple(values.shape)}."
            )
        self.values.append(values)

    @property
    def estimate(self) -> Float[Tensor, "*batch_outputs"]:
        """The estimate, with its gradient; complete once ``ask`` has returned None."""
        if self._estimate is None:
            raise RuntimeError(
                "Session: the estimate is not complete. Ask and tell until ask() returns None."
            )
        return self._estimate

    def save(self, path: str | PathLike[str]) -> None:
        """Save what was asked and told; the estimator and q are not saved."""
        told = {"seed": self.seed, "outputs": self.outputs}
        torch.save({**told, "points": self.points, "values": self.values}, path)

    @classmethod
    def resume(cls, path: str | PathLike[str], E: Estimator[Any], q: Distribution) -> "Session":
        """Continue a saved session, with an equal estimator and distribution."""
        saved = torch.load(path, weights_only=True)
        session = cls(E, q, outputs=saved["outputs"], seed=saved["seed"])
        session.points, session.values = saved["points"], saved["values"]
        return session


class _Asked(Exception):  # noqa: N818  # not an error
    """Leaves a call of an estimator where it needs values that were not told yet."""

    def __init__(self, points: Tensor) -> None:
        self.points = points


def _device(q: Distribution) -> torch.device:
    with torch.no_grad():
        return torch.device(q.sample().device)
