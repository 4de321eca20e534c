"""What fast_functions.md concludes from results/."""

from statistics import mean

from measured import fast_functions, read, selected


def test_a_thousand_digits_take_milliseconds_and_are_exact() -> None:
    (row,) = selected(read("speed/known_means"), digits=1000, method="Exact")
    assert row["ms"] < 100
    assert row["gradient_error"] < 1e-12


def test_a_known_part_lowers_the_variance_and_keeps_the_mean() -> None:
    rows = read("quality/known_part")
    assert {row["problem"] for row in rows} == {"spins", "digits"}
    assert all(row["ratio"] + 5 * row["ratio_error"] < 0.5 for row in rows)
    assert all(row["gap_over_noise"] < 3 for row in rows)


def test_the_exact_mean_learns_soonest() -> None:
    last = [row for row in read("programs/exact_addition") if row["epoch"] == row["epochs"]]
    accuracy = {
        name: mean(row["accuracy"] for row in last if row["estimator"] == name)
        for name in ("Exact", "IndeCateR", "IndeCateR-D")
    }
    assert accuracy["Exact"] > 0.5
    assert max(accuracy["IndeCateR"], accuracy["IndeCateR-D"]) < 0.1
    assert int(fast_functions.after_100_epochs(read("paper/addition"))) > 80
