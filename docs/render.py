"""Fill the pages that have measured numbers, and draw their figures, from results/.

    python docs/render.py            # draws the README's picture again: docs/images/race.png
    python docs/render.py race       # prints the page race.md, filled in

Sphinx calls `draw_figures` and `render` (see conf.py), so no generated page or figure is committed.
"""

import sys
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from types import ModuleType

import matplotlib.pyplot as plt
import measured
from jinja2 import Environment, StrictUndefined
from measured import ROOT, race_figures

DOCS = ROOT / "docs"
FIGURES = DOCS / "figures"
MODULES: dict[str, ModuleType] = {
    page.name: import_module(f"measured.{page.name}") for page in iter_modules(measured.__path__)
}


def render(page: str, text: str) -> str:
    """Return a page with its numbers filled in; a name that is not computed is an error."""
    module = MODULES.get(page)
    if not hasattr(module, "values"):
        return text
    environment = Environment(undefined=StrictUndefined, keep_trailing_newline=True)
    return environment.from_string(text).render(module.values())


def filled(page: str) -> str:
    """Return the page of this name with its numbers filled in."""
    return render(page, (DOCS / f"{page}.md").read_text(encoding="utf-8"))


def draw_figures(folder: Path = FIGURES) -> None:
    """Draw the figures that are older than the results or than the code that draws them."""
    folder.mkdir(parents=True, exist_ok=True)
    sources = [*(ROOT / "results").rglob("*.csv"), *DOCS.glob("measured/*.py"), DOCS / "compare.md"]
    sources += (ROOT / "experiments" / "src").rglob("report/*.*")
    newest = max(path.stat().st_mtime for path in sources)
    for module in MODULES.values():
        for name, draw in getattr(module, "figures", dict)().items():
            path = folder / name
            if not path.exists() or path.stat().st_mtime < newest:
                draw(path)
                plt.close("all")


if __name__ == "__main__":
    if sys.argv[1:]:
        print(filled(sys.argv[1]))
    else:
        race_figures.headline(DOCS / "images" / "race.png")
