"""The page on programs: its tables are filled from the results, and no run is taken for another."""

from measured import programs, read


def test_every_method_of_numbers_was_run_with_three_seeds() -> None:
    """Methods with restarts at N = 100 only, where the page says after how many epochs."""
    rows = [
        row for row in programs.last_rows(read("programs/programs")) if row["program"] == "numbers"
    ]
    for digits in programs.NUMBERS:
        for name, is_method in programs.METHODS.items():
            runs = [row for row in rows if row["digits"] == digits and is_method(row)]
            if "restarts" in name and digits != 100:
                assert not runs
                continue
            assert len({row["seed"] for row in runs}) == len(runs) == 3
            assert "restarts" in name or all(row["epoch"] == row["epochs"] for row in runs)


def test_text_of_the_page_agrees_with_its_numbers() -> None:
    """An expectation per digit beats every published sampling method at 4, 15, 100 and 200."""
    rows = [
        row
        for row in programs.last_rows(read("programs/programs"))
        if row["program"] == "numbers" and programs.METHODS["IndeCateR, per digit"](row)
    ]
    for position, digits in enumerate(programs.NUMBERS):
        published = [
            values[position]
            for name, values in programs.PUBLISHED_NUMBERS.items()
            if name.startswith("sampling") and values[position] is not None
        ]
        runs = [row["accuracy"] for row in rows if row["digits"] == digits]
        assert 100 * sum(runs) / len(runs) > max(published)
