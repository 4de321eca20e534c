"""The page on programs: its tables are filled from the results, and no run is taken for another."""

from statistics import mean

from measured import programs, read


def test_every_method_of_numbers_was_run_with_three_seeds() -> None:
    """Methods with restarts at N = 100 only, where the page says after how many epochs."""
    rows = programs.last_rows(read("programs/programs"))
    for digits in programs.NUMBERS:
        for name in programs.METHODS:
            runs = programs.of_method(rows, name, digits)
            if "restarts" in name and digits != 100:
                assert not runs
                continue
            assert len({row["seed"] for row in runs}) == len(runs) == 3
            assert "restarts" in name or all(row["epoch"] == row["epochs"] for row in runs)


def test_text_of_the_page_agrees_with_its_numbers() -> None:
    """An expectation per digit beats every published sampling method at 4, 15, 100 and 200."""
    rows = programs.last_rows(read("programs/programs"))
    for position, digits in enumerate(programs.NUMBERS):
        published = [
            values[position]
            for name, values in programs.PUBLISHED_NUMBERS.items()
            if name.startswith("sampling") and values[position] is not None
        ]
        runs = programs.of_method(rows, "IndeCateR, per digit", digits)
        assert 100 * mean(row["accuracy"] for row in runs) > max(published)


def test_every_sum_and_program_was_run_to_its_end_with_three_seeds() -> None:
    rows = programs.last_rows(read("programs/programs"))
    for digits in (8, 12, 16, 64):
        runs = [row for row in rows if (row["program"], row["digits"]) == ("sum", digits)]
        assert len(runs) == (3 if digits == 64 else 12)
        assert all(row["epoch"] == row["epochs"] for row in runs)
    for program in programs.PUBLISHED_MNIST_R:
        for estimator, twice in programs.MNIST_R.values():
            if estimator == "IndeCateR-D":
                continue
            runs = programs.runs_of(rows, program, estimator, twice)
            assert len({row["seed"] for row in runs}) == len(runs) == 3


def test_what_the_page_says_of_the_second_softmax() -> None:
    """The hard programs of the published table are hard again with it, and are learned without."""
    rows = programs.last_rows(read("programs/programs"))

    def accuracy(program: str, estimator: str, twice: bool) -> float:
        runs = programs.runs_of(rows, program, estimator, twice)
        return 100 * mean(row["accuracy"] for row in runs)

    for program in ("sum-3", "sum-4", "add-sub", "less-than", "equal"):
        right = max(accuracy(program, "IndeCateR", False), accuracy(program, "RLOO", False))
        assert accuracy(program, "IndeCateR", True) < 80 < 94 < right
    assert accuracy("count-3-4", "IndeCateR", True) > 80
    assert all(
        row["accuracy"] > 0.9
        for row in rows
        if row["estimator"] == "RLOO" and row["program"] in programs.PUBLISHED_MNIST_R
    )
