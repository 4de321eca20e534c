"""Text in the cells of a CSV file that no spreadsheet takes for a formula."""

import re

FORMULA = re.compile(r"'*[=+\-@\t\r]")  # how a cell begins that a spreadsheet would calculate


def guarded(text: str) -> str:
    """The text behind an apostrophe where it begins like a formula: with = + - @, a tab or a carriage return.

    >>> guarded("=1+1"), guarded("RLOO")
    ("'=1+1", 'RLOO')
    """
    return f"'{text}" if FORMULA.match(text) else text


def unguarded(cell: str) -> str:
    """The inverse of :func:`guarded`."""
    return cell[1:] if cell.startswith("'") and FORMULA.match(cell) else cell
