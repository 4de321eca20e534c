"""Ask and tell: a session returns what a call returns, for every estimator of black boxes."""

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributions import Distribution
from torch.testing import assert_close

import catlog
from catlog.testing.settings import estimators, home


def f(x: Tensor) -> Tensor:
    x = x.double().reshape(*x.shape[:2], -1)
    return (x * torch.arange(1.0, x.shape[-1] + 1)).sum(-1).sin()


def finished(session: catlog.Session) -> Tensor:
    """Return the estimate of a session, in which every question is asked twice."""
    while (x := session.ask()) is not None:
        again = session.ask()
        assert again is not None
        assert torch.equal(x, again)
        session.tell(f(x))
    return session.estimate


def parameters_and_q(E: catlog.Estimator[Any]) -> tuple[Tensor, Distribution]:
    case = home(E)
    theta = case.theta.expand(2, *case.theta.shape).clone().requires_grad_()
    return theta, case.distribution(theta)


def gradients(E: catlog.Estimator[Any], estimate: Tensor, theta: Tensor) -> list[Tensor]:
    """Return the gradients in theta and in what the estimator learns by ``backward``."""
    learned = list(E.parameters()) if isinstance(E, torch.nn.Module) else []
    options: dict[str, bool] = {"retain_graph": True, "materialize_grads": True}
    return list(torch.autograd.grad(estimate.sum(), [theta, *learned], **options))


@pytest.mark.parametrize("E", estimators(differentiates_f=False))
def test_a_session_is_a_call(E: Any) -> None:
    """In value, in gradient and in what the estimator learned."""
    E, called = deepcopy(E), deepcopy(E)
    for _ in range(2):  # one that learns has a state at its second call
        theta, q = parameters_and_q(E)
        session = catlog.Session(E, q, seed=3)
        told = finished(session)
        wanted = called(f, q, generator=torch.Generator().manual_seed(3))
        assert_close(told, wanted, rtol=0, atol=1e-12)
        found = gradients(E, told, theta)
        for one, other in zip(found, gradients(called, wanted, theta), strict=True):
            assert_close(one, other, rtol=0, atol=1e-12)
        if isinstance(E, torch.nn.Module):
            for name, state in called.state_dict().items():
                assert_close(E.state_dict()[name], state, rtol=0, atol=1e-12)


def test_outputs() -> None:
    _, q = parameters_and_q(catlog.RLOO(3))
    session = catlog.Session(catlog.RLOO(3), q, outputs=1, seed=0)
    x = session.ask()
    assert x is not None
    session.tell(torch.stack([f(x), -f(x)], -1))
    assert session.ask() is None
    assert_close(session.estimate[:, 0], -session.estimate[:, 1])
    wanted = catlog.RLOO(3)(f, q, generator=torch.Generator().manual_seed(0))
    assert_close(session.estimate[:, 0], wanted)


def test_another_process_continues(tmp_path: Path) -> None:
    """With an equal estimator and an equal q, wherever it was saved."""
    E = catlog.IndeCateR(2, chunk_size=4)
    _, q = parameters_and_q(E)
    session = catlog.Session(E, q, seed=1)
    questions = 0
    while (x := session.ask()) is not None:
        session.save(tmp_path / "session.pt")
        session = catlog.Session.resume(
            tmp_path / "session.pt", catlog.IndeCateR(2, chunk_size=4), parameters_and_q(E)[1]
        )
        session.tell(f(x))
        questions += 1
    assert questions > 2
    assert_close(session.estimate, E(f, q, generator=torch.Generator().manual_seed(1)))


def test_errors_name_the_way_out() -> None:
    logits = torch.zeros(2, 3)
    q = torch.distributions.Independent(torch.distributions.Bernoulli(logits=logits), 1)
    with pytest.raises(TypeError, match=r"`E` must be an estimator such as RLOO\(4\)"):
        catlog.Session(catlog.RLOO, q)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"must not need the derivative of f.*use RLOO"):
        catlog.Session(catlog.ReinMax(1), q)
    session = catlog.Session(catlog.RLOO(2), q)
    with pytest.raises(RuntimeError, match=r"not complete.*until ask\(\) returns None"):
        session.estimate  # noqa: B018
    with pytest.raises(RuntimeError, match=r"none were asked for\. Call ask\(\)"):
        session.tell(torch.zeros(2, 2))
    session.ask()
    with pytest.raises(ValueError, match=r"`values` must have shape \(2, 2\).*but it is \(2,\)"):
        session.tell(torch.zeros(2))
    session.tell(torch.zeros(2, 2))


def test_a_step_of_q_during_a_session_is_named() -> None:
    logits = torch.zeros(2, 30)
    q = torch.distributions.Independent(torch.distributions.Bernoulli(logits=logits), 1)
    session = catlog.Session(catlog.IndeCateR(1), q)
    x = session.ask()
    assert x is not None
    session.tell(f(x))
    logits += 3.0
    with pytest.raises(ValueError, match=r"`q` must be as it was.*after the session has ended"):
        session.ask()
