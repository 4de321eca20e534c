"""Write measured tables and numbers into the pages, and draw their figures, from results/.

    python docs/render.py              # writes all pages, and draws all figures
    python docs/render.py race         # writes the page race.md, and draws its figures
    python docs/render.py --run        # also runs the code of pages, and writes what it prints

A page has every measured value between two comments that its readers do not see,
`<!-- measured: NAME -->` and `<!-- end -->`. A function of the page's module in measured/ computes
it: `values()`, or `printed()` where it is what the page's code prints. checks/test_written.py says
which page is not up to date.
"""

import argparse
import re
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from types import ModuleType

import matplotlib.pyplot as plt
import measured
import reference
from measured import ROOT
from PIL import Image

DOCS = ROOT / "docs"
FIGURES = DOCS / "figures"
NAMES = DOCS / "names.md"
MODULES: dict[str, ModuleType] = {
    page.name: import_module(f"measured.{page.name}") for page in iter_modules(measured.__path__)
}
MARKED = re.compile(r"<!-- measured: (\w+) -->(.*?)<!-- end -->", re.DOTALL)


def filled(text: str, values: Mapping[str, object]) -> str:
    """Return a page with these values between its comments; others stay as they are."""

    def written(match: re.Match[str]) -> str:
        value = str(values.get(match[1], match[2])).strip("\n")
        around = "\n\n" if "\n" in value else ""
        return f"<!-- measured: {match[1]} -->{around}{value}{around}<!-- end -->"

    return MARKED.sub(written, text)


def page(name: str, *, run: bool = False) -> str:
    """Return the text that a page should have."""
    module = MODULES[name]
    values = module.values() if hasattr(module, "values") else {}
    if run and hasattr(module, "printed"):
        values = values | module.printed()
    return filled((DOCS / f"{name}.md").read_text(encoding="utf-8"), values)


def draw(name: str, folder: Path) -> None:
    """Draw the figures of a page, each in 64 colours, which keeps the repository small."""
    for file, draw_figure in getattr(MODULES[name], "figures", dict)().items():
        draw_figure(folder / file)
        plt.close("all")
        with Image.open(folder / file) as image:
            image.convert("RGB").quantize(64).save(folder / file, optimize=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("pages", nargs="*", help="names without .md; all by default")
    parser.add_argument("--run", action="store_true", help="run the code of the pages, too")
    options = parser.parse_args()
    FIGURES.mkdir(exist_ok=True)
    NAMES.write_text(reference.names_page(NAMES.read_text(encoding="utf-8")), encoding="utf-8")
    for name in options.pages or MODULES:
        path = DOCS / f"{name}.md"
        if path.exists():
            path.write_text(page(name, run=options.run), encoding="utf-8")
        if options.run or not hasattr(MODULES[name], "printed"):
            draw(name, FIGURES)


if __name__ == "__main__":
    main()
