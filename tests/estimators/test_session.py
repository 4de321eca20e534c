"""Ask and tell. A session is a call: tests/contract/test_circumstances.py."""

from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

import catlog
from catlog.testing.cases import normals, seeded
from support.laws import bits


def f(x: Tensor) -> Tensor:
    return (x * torch.arange(1.0, x.shape[-1] + 1)).sum(-1).sin()


def test_outputs() -> None:
    q = bits(normals(2, 3))
    session = catlog.Session(catlog.RLOO(3), q, outputs=1, seed=0)
    x = session.ask()
    assert x is not None
    session.tell(torch.stack([f(x), -f(x)], -1))
    assert session.ask() is None
    assert_close(session.estimate[:, 0], -session.estimate[:, 1])
    assert_close(session.estimate[:, 0], catlog.RLOO(3)(f, q, generator=seeded()))


def test_another_process_continues(tmp_path: Path) -> None:
    """With an equal estimator and an equal q, wherever it was saved."""
    E, theta = catlog.IndeCateR(2, chunk_size=4), normals(2, 3)
    session = catlog.Session(E, bits(theta), seed=1)
    questions = 0
    while (x := session.ask()) is not None:
        session.save(tmp_path / "session.pt")
        again = catlog.IndeCateR(2, chunk_size=4)
        session = catlog.Session.resume(tmp_path / "session.pt", again, bits(theta))
        session.tell(f(x))
        questions += 1
    assert questions > 2
    assert_close(session.estimate, E(f, bits(theta), generator=seeded(1)))


def test_a_step_of_q_during_a_session_is_named() -> None:
    logits = torch.zeros(2, 30)
    session = catlog.Session(catlog.IndeCateR(1), bits(logits))
    x = session.ask()
    assert x is not None
    session.tell(f(x))
    logits += 3.0
    with pytest.raises(ValueError, match=r"`q` must be as it was.*after the session has ended"):
        session.ask()
