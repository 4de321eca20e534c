"""How figures and tables look: colours and markers of methods, names of metrics and data sets."""

from collections.abc import Iterable
from typing import Any

from .runs import estimator_of

# Colour and marker of each method. The hues are the paper's where it has them. Colour-blind readers
# can distinguish all of them.
LOOKS: dict[str, tuple[str, str]] = {
    "IndeCateR": ("#0173b2", "o"),
    "IndeCateR-D": ("#029e73", "s"),
    "IndeCateR-Latin": ("#56b4e9", "^"),
    "IndeCateR-D-Latin": ("#44aa99", "v"),
    "IndeCateR-Taylor": ("#332288", "D"),
    "REINFORCE": ("#7f7f7f", "X"),
    "RLOO": ("#8c510a", "P"),
    "RLOO-F": ("#8c510a", "P"),
    "RLOO-S": ("#e69f00", "h"),
    "GS": ("#cc78bc", "*"),
    "GS-F": ("#cc78bc", "*"),
    "GS-S": ("#d55e00", "p"),
}
COLOURS = ("#117733", "#999933", "#661100", "#6699cc", "#aa4499", "#000000", "#ddaa33")
FURTHER_LOOKS = tuple(zip(COLOURS, "<>d8H12", strict=True))
BROKEN_LINES: list[Any] = ["-.", ":", (0, (1, 1)), (0, (6, 2)), (0, (3, 1, 1, 1, 1, 1))]
PUBLISHED: dict[str, Any] = {"linestyle": (0, (4, 2)), "linewidth": 1, "fillstyle": "none"}

DATA = {
    "mnist": "MNIST",
    "fashion-mnist": "Fashion-MNIST",
    "omniglot": "Omniglot",
    "mnist-5000": "MNIST, 5,000 images",
}
METRICS = {
    "value": "expected value",
    "train": "negated train ELBO, nats",
    "test": "negated test ELBO, nats",
    "gradient_variance": "gradient variance over draws",
    "gradient_spread": "the paper's “variance”",
    "accuracy": "test accuracy",
    "cosine_distance": "mean (1 - cosine)",
    "cosine_variance": "variance of the cosine",
    "relative_bias": "relative bias",
    "relative_variance": "relative variance",
}
AXES = {"iteration": "iterations", "seconds": "seconds", "epoch": "epochs"}
STYLE: Any = {  # of all figures, for matplotlib.rc_context
    **dict.fromkeys(("font.size", "axes.titlesize", "axes.labelsize", "legend.fontsize"), 10),
    "axes.grid": True,
    "grid.alpha": 0.25,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "lines.linewidth": 1.6,
    "lines.markersize": 4.5,
}


def look(method: str, methods: Iterable[str] = ()) -> dict[str, Any]:
    """Return how a method is drawn among ``methods``.

    An estimator that is not the paper's gets a further colour, by its rank among such estimators. A
    method with changed settings keeps its estimator's colour and gets a broken line.

    >>> look("RLOO-F"), look("RLOO-F samples=20")["linestyle"]
    ({'color': '#8c510a', 'marker': 'P', 'linestyle': '-'}, '-.')
    >>> look("Mine", methods=["IndeCateR", "Mine"])["color"]
    '#117733'
    """
    estimator = estimator_of(method)
    further = sorted({estimator_of(name) for name in methods} - set(LOOKS))
    i = further.index(estimator) if estimator in further else 0
    colour, marker = LOOKS.get(estimator, FURTHER_LOOKS[i % len(FURTHER_LOOKS)])
    variants = sorted(
        name for name in {*methods, method} if estimator_of(name) == estimator != name
    )
    line = "-"
    if method != estimator:
        line = BROKEN_LINES[variants.index(method) % len(BROKEN_LINES)]
    return {"color": colour, "marker": marker, "linestyle": line}
