"""The sentences of from_pyro.md, from the file that it cites."""

import pytest
from measured import grouped, read, selected

BASELINE = "TraceGraph_ELBO, decaying average"


def ratios(problem: str, steps: int) -> dict[str, float]:
    """Return the variance over that of TraceGraph_ELBO, by method."""
    return {
        row["method"].removeprefix("catlog.pyro.ELBO"): float(row["ratio"])
        for row in read("quality/pyro_variance")
        if (row["problem"], row["steps"]) == (problem, steps)
    }


def lowest(variances: dict[str, float]) -> str:
    return min(variances, key=lambda method: variances[method])


def test_who_has_the_lowest_variance() -> None:
    assert ratios("mixture", 100)["(IndeCateR(1))"] < 1e-10
    assert lowest(ratios("autoencoder", 5)) == "(IndeCateR(1))"
    late = ratios("autoencoder", 100)
    assert late["(RLOO(31))"] < late["(IndeCateR(1))"]
    assert late[BASELINE] == pytest.approx(late["(RLOO(31))"], rel=0.05)
    assert lowest(ratios("chain", 100)) == "(SCateR(1))"


def bounds(method: str, noise: str | None, rate: float, steps: int) -> dict[int, float]:
    """Return the bounds of a loss of the autoencoder with a label, by seed."""
    cells = {"section": "training", "method": method, "noise": noise, "rate": rate, "steps": steps}
    return {row["seed"]: float(row["bound"]) for row in selected(read("pyro/ss_vae"), **cells)}


@pytest.mark.parametrize(
    ("noise", "rate", "steps"),
    [("shared", 0.003, 1000), ("shared", 0.003, 4000), ("stratified", 0.001, 1000)],
)
def test_who_is_below_traceenum_on_every_seed(noise: str, rate: float, steps: int) -> None:
    theirs = bounds("TraceEnum_ELBO, parallel", None, rate, steps)
    ours = bounds("Exact()", noise, rate, steps)
    assert ours.keys() == theirs.keys() == {21, 22, 23}
    assert all(ours[seed] < theirs[seed] for seed in theirs)


def test_shared_noise_is_behind_in_the_shortest_training() -> None:
    theirs = bounds("TraceEnum_ELBO, parallel", None, 0.001, 1000)
    ours = bounds("Exact()", "shared", 0.001, 1000)
    assert all(ours[seed] > theirs[seed] for seed in theirs)


@pytest.mark.parametrize("rate", [0.001, 0.003])
def test_exact_is_better_than_indecater_for_one_label(rate: float) -> None:
    exact, other = (bounds(name, "shared", rate, 1000) for name in ("Exact()", "IndeCateR(1)"))
    assert all(exact[seed] < other[seed] for seed in other)


def test_noise_moves_variance_from_the_style_to_the_label() -> None:
    rows = selected(read("pyro/ss_vae"), section="gradient", method="Exact()")
    for shared, stratified in grouped(rows, "steps").values():
        assert (shared["noise"], stratified["noise"]) == ("shared", "stratified")
        assert shared["encoder_y"] < 0.2 * stratified["encoder_y"]
        assert stratified["encoder_z"] < 0.1 * shared["encoder_z"]


def test_air() -> None:
    rows = read("pyro/air")
    stages = grouped(selected(rows, section="gradient"), "steps")
    assert list(stages) == [0, 100, 200]
    for reference, *own in stages.values():
        assert reference["method"] == "TraceGraph_ELBO"
        cost = reference["presence"] * reference["ms"]
        ratios = {row["method"]: row["presence"] * row["ms"] / cost for row in own}
        assert all(ratio < 1 for ratio in ratios.values())
        assert max(ratios["ELBO(SCateR(1))"], ratios["ELBO(Exact())"]) < 0.03
    trained = grouped(selected(rows, section="training"), "method")
    theirs = trained.pop("TraceGraph_ELBO")
    ahead = [
        method
        for method, own in trained.items()
        if all(a["bound"] < b["bound"] for a, b in zip(own, theirs, strict=True))
    ]
    assert ahead == ["ELBO(RLOO(2))"]
    reference, *own = stages[200]
    assert all(row["guide"] == pytest.approx(reference["guide"], rel=0.25) for row in own)
