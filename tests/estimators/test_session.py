"""`Session`: f is evaluated by somebody else, and the estimate is that of one call."""

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Distribution

import catlog
from catlog import Session
from catlog.distributions import MarkovChain
from catlog.testing.cases import normals, seeded
from catlog.testing.settings import estimators, supports
from support.gradients import with_gradients
from support.laws import KINDS, bits


def f(x: Tensor) -> Tensor:
    return x.double().flatten(2).cumsum(-1).sin().sum(-1)


def law(E: catlog.Estimator) -> Callable[[Tensor], Distribution]:
    kind = next(kind for kind in ("one-hot", "bits") if supports(E, kind))
    return KINDS[kind]


def finished(session: Session, f: Callable[[Tensor], Tensor] = f) -> Tensor:
    """Return the estimate, after as many rounds as it takes."""
    while (x := session.ask()) is not None:
        session.tell(f(x))
    return session.estimate


@pytest.mark.parametrize("E", estimators(differentiates_f=False))
def test_it_is_one_call(E: catlog.Estimator) -> None:
    """The same value, gradient and learned state as a call with the session's seed."""
    logits = normals(2, 3, 3).requires_grad_()
    q, alone, asked = law(E)(logits), deepcopy(E), deepcopy(E)
    expected = with_gradients(alone(f, q, generator=seeded(5)), logits)
    got = with_gradients(finished(Session(asked, q, seed=5)), logits)
    torch.testing.assert_close(got, expected, rtol=0, atol=0)
    if isinstance(alone, nn.Module):
        torch.testing.assert_close(asked.state_dict(), alone.state_dict(), rtol=0, atol=0)


def test_outputs_and_dependent_variables() -> None:
    start = normals(3).requires_grad_()
    q = MarkovChain(start, normals(3, 3, seed=1), length=3)

    def f(x: Tensor) -> Tensor:
        return torch.stack([x.double().sum(-1), x.double().prod(-1)], -1)

    expected = catlog.SCateR(2)(f, q, outputs=1, generator=seeded(5))
    got = finished(Session(catlog.SCateR(2), q, outputs=1, seed=5), f)
    assert got.shape == (2,)
    torch.testing.assert_close(with_gradients(got, start), with_gradients(expected, start))


def test_a_saved_session_is_continued(tmp_path: Path) -> None:
    """Asked and told, asked and not told: another process gets the same points and estimate."""
    logits = normals(2, 3).requires_grad_()
    q, E = bits(logits), catlog.IndeCateR(2)
    session = Session(E, q, seed=5)
    session.save(tmp_path / "new")
    x = session.ask()
    session.save(tmp_path / "asked")
    assert torch.equal(session.ask(), x)
    session.tell(f(x))
    session.save(tmp_path / "told")
    expected = with_gradients(finished(session), logits)
    for name in ("new", "asked", "told"):
        resumed = Session.resume(tmp_path / name, E, bits(logits))
        torch.testing.assert_close(with_gradients(finished(resumed), logits), expected)


def test_points_that_the_user_writes_into_are_kept() -> None:
    session = Session(catlog.IndeCateR(2), bits(torch.zeros(2, 3)), seed=5)
    x = session.ask()
    before = x.clone()
    x.zero_()
    assert torch.equal(session.ask(), before)


def test_the_same_random_numbers_without_a_seed() -> None:
    logits = torch.zeros(2, 3, requires_grad=True)
    torch.manual_seed(3)
    first = finished(Session(catlog.RLOO(2), bits(logits)))
    torch.manual_seed(3)
    assert torch.equal(finished(Session(catlog.RLOO(2), bits(logits))), first)


@pytest.mark.parametrize("E", estimators(differentiates_f=True))
def test_estimators_that_differentiate_f_are_refused(E: catlog.Estimator) -> None:
    with pytest.raises(ValueError, match="Session: `E` must not need the derivative of f, as"):
        Session(E, bits(torch.zeros(3)))


def test_a_changed_q_is_refused() -> None:
    logits = torch.full((2, 3), -4.0)
    session = Session(catlog.IndeCateR(2), bits(logits), seed=5)
    x = session.ask()
    session.tell(f(x))
    session.q = bits(logits + 8)
    with pytest.raises(ValueError, match="Session: `q` must be as it was when the session began"):
        session.ask()


def test_wrong_uses_are_named() -> None:
    q = bits(torch.zeros(2, 3))
    for wrong in (catlog.RLOO, 3, f):
        with pytest.raises(TypeError, match="Session: `E` must be an estimator such as"):
            Session(wrong, q)
    session = Session(catlog.RLOO(2), q)
    with pytest.raises(RuntimeError, match=r"none were asked for. Call ask\(\)"):
        session.tell(torch.zeros(2, 2))
    with pytest.raises(RuntimeError, match="Session: the estimate is not complete"):
        session.estimate  # noqa: B018
    x = session.ask()
    with pytest.raises(TypeError, match="Session.tell: `values` must be a tensor"):
        session.tell([0.0])
    with pytest.raises(ValueError, match=r"`values` must have shape \(2, 2\) .* but it is \(2,\)"):
        session.tell(torch.zeros(2))
    session.tell(f(x) * torch.nan)
    with pytest.raises(ValueError, match="f must return finite numbers"):
        session.ask()
