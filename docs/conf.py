"""Sphinx: `make docs`. Pages are Markdown; make_api.py writes those of the API first, sphinx-gallery those of the gallery."""

import re
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import make_api  # noqa: E402

import catlog  # noqa: E402

project = "catlog"
copyright = "the authors of catlog"
version = release = catlog.__version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.mathjax",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
]
exclude_patterns = ["_build", "figures", "gallery/*.ipynb"]
nitpicky = True  # a reference to nothing is an error

myst_enable_extensions = ["amsmath", "colon_fence", "dollarmath", "smartquotes"]
myst_heading_anchors = 3
nb_execution_mode = "cache"
nb_execution_cache_path = str(HERE / "_build" / "notebooks")
nb_execution_raise_on_error = True
nb_execution_timeout = 120
nb_merge_streams = True

autodoc_member_order = "bysource"
autodoc_inherit_docstrings = False  # torch's own texts on `forward` and the like are not ours
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
python_maximum_signature_line_length = 100
# Names of other packages in signatures, and of our own that are no part of the API: shown, not linked.
_internal = r"catlog\.(?!data\.|experiments\.|functions\.|kernels\.|problems\.)\w+\.\w+"
_others = r"(torch|jaxtyping|collections|typing|pathlib)\b.*|Tensor|Module"
nitpick_ignore_regex = [("py:.*", _internal), ("py:.*", _others)]

sphinx_gallery_conf = {
    "examples_dirs": "../examples/gallery",
    "gallery_dirs": "gallery",
    "filename_pattern": r"\.py$",  # all are run, whatever their names; again only when they have changed
    "abort_on_example_error": True,
    "download_all_examples": False,
    "show_signature": False,
    "write_computation_times": False,
    "parallel": 2,
}

html_theme = "furo"
html_title = f"catlog {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
copybutton_exclude = ".linenos, .gp, .go"
copybutton_prompt_text = ">>> "

# One file that renders formulas without a network, fetched by `make docs`; the CDN's where it could not be fetched.
_mathjax = HERE / "_build" / "npm" / "node_modules" / "mathjax" / "es5" / "tex-svg.js"
if _mathjax.exists():
    html_static_path.append(str(_mathjax))
mathjax_path = (
    _mathjax.name if _mathjax.exists() else "https://cdn.jsdelivr.net/npm/mathjax@3/es5/tex-svg.js"
)


def _contents(app: Any, docname: str, source: list[str]) -> None:
    """In the contents of index.md: NAME? is left out where there is no such page, (others) are the pages not named."""
    if docname == "index":
        pages = {path.stem for path in HERE.glob("*.md")}
        text = re.sub(
            r"^(\w+)\?\n",
            lambda name: f"{name[1]}\n" if name[1] in pages else "",
            source[0],
            flags=re.MULTILINE,
        )
        source[0] = text.replace(
            "(others)", "\n".join(sorted(pages - set(text.splitlines()) - {"index"}))
        )


_kept: dict[str, list[str]] = {}


def _keep(app: Any, what: str, name: str, found: object, options: object, lines: list[str]) -> None:
    """The docstrings of attributes before napoleon, which reads `words: more words` as a type and a text."""
    if what in ("attribute", "data", "property"):
        _kept[name] = list(lines)


def _plain(
    app: Any, what: str, name: str, found: object, options: object, lines: list[str]
) -> None:
    """Docstrings as readers of code see them: a bare *batch is a shape, and `name: text` with indented lines below is a list."""
    lines[:] = _kept.pop(name, lines)
    for i, line in enumerate(lines):
        parts = line.split("``")  # every other part is literal
        parts[::2] = [re.sub(r"(?<![*\w\\])\*(?=\w+[],)])", r"\\*", part) for part in parts[::2]]
        lines[i] = "``".join(parts)
    paragraphs = [each.split("\n") for each in "\n".join(lines).split("\n\n")]
    for paragraph in paragraphs:
        starts = [line for line in paragraph if line and not line.startswith(" ")]
        indented = any(line.startswith(" ") for line in paragraph)
        if indented and starts and all(re.match(r"\w+: ", line) for line in starts):
            paragraph[:] = [
                f"  {line.strip()}" if line.startswith(" ") else f"- {line}" if line else ""
                for line in paragraph
            ]
    lines[:] = "\n\n".join("\n".join(each) for each in paragraphs).split("\n")


def setup(app: Any) -> None:
    app.connect("source-read", _contents)
    app.connect("autodoc-process-docstring", _keep, priority=400)
    app.connect("autodoc-process-docstring", _plain, priority=600)


make_api.write(HERE / "api")
