"""Programs over digits: their definitions, their functions, and training on their results."""

from typing import Any

import pytest
import torch
from torch.distributions import Categorical, Independent

from catlog import Exact
from catlog_experiments import Programs
from catlog_experiments.programs import PROGRAMS, shifted

EXAMPLES = {
    "numbers": ([9, 9, 0, 1], [1, 0, 0]),
    "sum": ([9, 9, 0, 1], [19]),
    "sum-2": ([9, 4], [13]),
    "sum-3": ([9, 4, 1], [14]),
    "sum-4": ([9, 4, 1, 1], [15]),
    "mult-2": ([9, 4], [36]),
    "mod-2": ([9, 4], [4]),  # 9 mod (4 + 1)
    "add-mod-3": ([9, 4], [1]),
    "add-sub": ([9, 4, 8], [5]),
    "less-than": ([4, 9], [1]),
    "equal": ([4, 9], [0]),
    "not-3-or-4": ([4], [0]),
    "count-3-4": ([3, 4, 4, 0, 1, 2, 9, 3], [4]),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_program_computes(name: str) -> None:
    digits, results = EXAMPLES[name]
    assert PROGRAMS[name][1](torch.tensor(digits)).tolist() == results


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("whole", [False, True])
def test_function_says_which_results_are_right(name: str, whole: bool) -> None:
    task = Programs(program=name, digits=2, sequences=20, whole=whole).task()
    f, outputs = task.function(task.results)
    is_right = f(task.train.labels.unsqueeze(0))
    assert is_right.dim() == 2 + outputs
    assert bool(is_right.all())
    changed = task.train.labels.unsqueeze(0).clone()
    changed[..., 0] = (changed[..., 0] + 1) % 10
    assert not bool(f(changed).all())


@pytest.mark.parametrize("double_softmax", [False, True])
@pytest.mark.parametrize("program", ["numbers", "sum"])
def test_the_exact_mean_is_that_of_all_points(program: Any, double_softmax: bool) -> None:
    settings: Any = {"program": program, "estimator": "Exact", "double_softmax": double_softmax}
    task, index = Programs(digits=2, sequences=20, **settings).task(), torch.arange(5)
    logits = task.logits(task.train.batch(index))
    f, outputs = task.function(task.results[index])
    q = Independent(Categorical(logits=logits.softmax(-1) if double_softmax else logits), 1)
    expected = -(Exact()(lambda x: f(x), q, outputs=outputs) + 1e-8).log()
    expected = expected.sum(-1) if outputs else expected
    torch.testing.assert_close(task.loss(index), expected)
    # A hundred digits, whose points nobody can enumerate.
    Programs(digits=50, sequences=10, **settings).task().loss(torch.arange(2)).sum().backward()


def test_a_network_learns_from_sums_of_numbers() -> None:
    """One digit each, 800 steps; a constant guess reads every tenth digit right."""
    config = Programs(digits=1, samples=4, epochs=2, batch=5, value_samples=100)
    torch.manual_seed(0)
    task = config.task()
    for i in range(task.iterations):
        task.step(i)
    metrics = task.measure(task.iterations)
    assert metrics["digit_accuracy"] ** 2 > 0.5
    assert metrics["accuracy"] == pytest.approx(metrics["digit_accuracy"] ** 2, abs=0.1)
    assert float(task.optimiser.param_groups[0]["lr"]) < 1e-5  # it fell to zero


def test_images_are_used_again_where_sequences_ask_for_more() -> None:
    task = Programs(digits=4, sequences=1000).task()  # 8,000 of 4,000 images
    assert len(task.train) == 1000
    counts = task.train.index.flatten().bincount()
    assert counts.min() == counts.max() == 2


def test_images_are_shifted_by_whole_pixels() -> None:
    image = torch.zeros(2000, 28, 28)
    image[:, 10, 14] = 1.0
    pixels = shifted(image, 2).nonzero()
    assert len(pixels) == len(image)
    moves, counts = (pixels[:, 1:] - torch.tensor([10, 14])).unique(dim=0, return_counts=True)
    assert moves.tolist() == [[row, column] for row in range(-2, 3) for column in range(-2, 3)]
    assert ((counts - 80).abs() < 6 * 80**0.5).all()


@pytest.mark.parametrize(("loss", "is_kept"), [(0.4, True), (0.6, False)])
def test_a_run_that_learns_nothing_starts_again(
    loss: float, is_kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = Programs(program="sum-2", sequences=20, batch=10, restart=1, network="deep").task()
    task.step(0)
    task.recent_loss = loss
    trained = [parameter.clone() for parameter in task.model.parameters()]
    monkeypatch.setattr(task, "compiled", lambda index: torch.zeros(()))
    for i, is_same in ((1, True), (2, is_kept)):  # within an epoch, and after it
        task.step(i)
        pairs = zip(trained, task.model.parameters(), strict=True)
        assert all(torch.equal(*pair) for pair in pairs) == is_same
    moments = [value for state in task.optimiser.state.values() for value in state.values()]
    averages = [value for name, value in task.model.named_buffers() if "running_mean" in name]
    assert len(averages) == 6
    assert any(bool(value.any()) for value in [*moments, *averages]) == is_kept
