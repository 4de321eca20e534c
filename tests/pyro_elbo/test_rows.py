"""catlog.pyro.rows calls a network for all rows and plates at once, as a loop over them would."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import grid_sample

import catlog.pyro
from catlog.testing.cases import normals


def test_a_module_with_tuples_is_a_loop_over_rows() -> None:
    """An input without rows is the same in all of them."""
    cell = nn.LSTMCell(3, 2)
    x, h, c = normals(4, 3, seed=0), normals(5, 1, 2, seed=1), normals(4, 2, seed=2)
    found = catlog.pyro.rows(cell)(x, (h, c))
    for row in range(5):
        for one, other in zip(found, cell(x, (h[row].expand(4, 2), c)), strict=True):
            torch.testing.assert_close(one[row], other)


@pytest.mark.parametrize("batch", [(), (4,), (2, 3, 4), (0, 4)], ids=str)
def test_events_of_several_dimensions(batch: tuple[int, ...]) -> None:
    conv = nn.Conv2d(1, 2, 3)
    images = normals(*batch, 1, 5, 5, seed=3)
    found = catlog.pyro.rows(conv, event_dims=3)(images)
    assert found.shape == (*batch, 2, 3, 3)
    one_by_one = [conv(image[None])[0] for image in images.reshape(-1, 1, 5, 5)]
    for one, other in zip(found.reshape(-1, 2, 3, 3), one_by_one, strict=True):
        torch.testing.assert_close(one, other)


def test_keywords_and_events_per_argument() -> None:
    def weighted(image: Tensor, grid: Tensor, weight: Tensor, mode: str) -> dict[str, Any]:
        return {"image": grid_sample(image, grid, mode, align_corners=False), "weight": weight}

    images, grid = normals(4, 1, 3, 3, seed=4), normals(2, 4, 2, 2, 2, seed=5)
    call = catlog.pyro.rows(weighted, event_dims=(3, 3, 0))
    found = call(images, grid, torch.ones(()), mode="nearest")
    assert found["weight"].shape == (2, 4)
    for row in range(2):
        wanted = grid_sample(images, grid[row], "nearest", align_corners=False)
        torch.testing.assert_close(found["image"][row], wanted)


@pytest.mark.parametrize(
    ("event_dims", "words"),
    [(3, r"an argument has shape \(4, 2\).*event_dims=2"), ((1,), r"has 1 numbers.* 2 positional")],
)
def test_errors_name_the_argument(event_dims: Any, words: str) -> None:
    call = catlog.pyro.rows(lambda *values: values[0], event_dims=event_dims)
    with pytest.raises(ValueError, match=words):
        call(torch.zeros(4, 2, 2), torch.zeros(4, 2))
