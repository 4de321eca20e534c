"""Cases for tests of single estimators: more categories, and impossible ones."""

import torch
from torch.distributions import Categorical
from torch.nn.functional import one_hot

from catlog.testing.cases import CASES, POSSIBLE, Case, grid, normals
from support.laws import integers

MORE_CATEGORIES = {
    case.name: case
    for case in (
        Case(
            "one integer of five",
            torch.tensor([0.3, -1.2, 0.8, 0.1, -0.4], dtype=torch.float64),
            lambda logits: Categorical(logits=logits),
            torch.arange(5),
            lambda x: one_hot(x, 6).double(),
        ),
        Case(
            "integers of four",
            torch.tensor([[0.3, -1.2, 0.8, 0.1], [1.5, -0.5, 0.0, 0.6]], dtype=torch.float64),
            integers,
            grid(4, 4),
            lambda x: one_hot(x, 4).flatten(-2).double() @ normals(8, 6, seed=3),
        ),
    )
}
MASKED_ONE_HOT = Case(
    "one-hot, masked",
    torch.tensor([[0.3, -0.8, -torch.inf], [-torch.inf, 0.5, 0.1]], dtype=torch.float64),
    CASES["one-hot"].distribution,
    torch.eye(3).double()[POSSIBLE],
    CASES["one-hot"].features,
)
