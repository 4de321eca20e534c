"""Settings of Sphinx: `make docs`. Pages are Markdown, as committed; reference.py writes the API
pages.
"""

import re
import sys
from inspect import signature
from pathlib import Path
from typing import Any

from sphinx.util.inspect import stringify_signature

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))  # Sphinx runs this file, and does not import its neighbours

import reference  # noqa: E402

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
exclude_patterns = ["_build", "gallery/*.ipynb"]
nitpicky = True  # a reference to nothing is an error

myst_enable_extensions = ["amsmath", "colon_fence", "dollarmath", "smartquotes"]
myst_fence_as_directive = ["math"]  # as code hosts write formulas
myst_heading_anchors = 3
nb_execution_mode = "cache"
nb_execution_cache_path = str(HERE / "_build" / "notebooks")
nb_execution_raise_on_error = True
nb_execution_timeout = 600  # seconds per cell; a cell takes some seconds, on a busy machine minutes
nb_merge_streams = True

autodoc_member_order = "bysource"
autodoc_inherit_docstrings = False  # torch's own texts on `forward` and the like are not ours
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
napoleon_custom_sections = ["Cost", "Needs", "Reference"]
napoleon_attr_annotations = False  # shapes of jaxtyping are no reStructuredText
napoleon_use_ivar = True
python_maximum_signature_line_length = 100
# Names of other packages in signatures, and of our own that are no part of the API: shown, not
# linked.
_public = "distributions|estimators|functions|language_models|problems"
_internal = rf"catlog\.(?!({_public})\.\w+$)[\w.]+\.\w+"
_others = r"(torch|jaxtyping|collections|concurrent|contextlib|os|pathlib|types|typing)\b.*"
_others += r"|Tensor|Module|P|inf|given_logits"
_properties = r".* .*|differentiable|processes"  # sentences, which napoleon takes for types
nitpick_ignore_regex = [("py:.*", name) for name in (_internal, _others, _properties)]

sphinx_gallery_conf = {
    "examples_dirs": "../examples/gallery",
    "gallery_dirs": "gallery",
    "filename_pattern": r"\.py$",  # all are run; again only when they have changed
    "abort_on_example_error": True,
    "download_all_examples": False,
    "remove_config_comments": True,
    "show_signature": False,
    "write_computation_times": False,
    "thumbnail_size": (480, 320),
    "parallel": 2,
}

html_theme = "furo"
html_title = f"catlog {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
copybutton_exclude = ".linenos, .gp, .go"
copybutton_prompt_text = ">>> "

# One file that renders formulas without a network, fetched by `make docs`; else the CDN's.
_mathjax = HERE / "_build" / "npm" / "node_modules" / "mathjax" / "es5" / "tex-svg.js"
mathjax_path = "https://cdn.jsdelivr.net/npm/mathjax@3/es5/tex-svg.js"
if _mathjax.exists():
    html_static_path.append(str(_mathjax))
    mathjax_path = _mathjax.name

_RANGED = r"(?:~?typing\.)?Annotated\[([^,]+), (?:'\w+'|[\w.~]*Range\([^()]*\))\]"


def _escape_shapes(
    app: Any, what: str, name: str, value: object, options: object, lines: list[str]
) -> None:
    """Escape the star of a shape such as [n, *batch], which reStructuredText reads as emphasis."""
    for i, line in enumerate(lines):
        parts = line.split("``")  # every other part is literal
        parts[::2] = [re.sub(r"(?<![*\w\\])\*(?=\w+[],)])", r"\\*", part) for part in parts[::2]]
        lines[i] = "``".join(parts)


def _resolve_short_name(app: Any, env: Any, node: Any, content: Any) -> Any:
    """Find an estimator that a docstring names without its module, in `catlog` or below it."""
    for module in ("catlog", "catlog.estimators"):
        target = (node.get("reftype"), f"{module}.{node.get('reftarget')}", node, content)
        found = env.domains["py"].resolve_xref(env, node.get("refdoc"), app.builder, *target)
        if node.get("refdomain") == "py" and found is not None:
            return found
    return None


def _plain_signature(
    app: Any, what: str, name: str, value: Any, options: object, text: str, returned: str
) -> tuple[str, str] | None:
    """Show the settings of estimators that learn, and types without the ranges that are checked."""
    if not text:
        return None
    if text.startswith("(*settings"):
        text = stringify_signature(signature(value), show_return_annotation=False)
    return re.sub(_RANGED, r"\1", text), returned


def setup(app: Any) -> None:
    app.connect("missing-reference", _resolve_short_name)
    app.connect("autodoc-process-signature", _plain_signature)
    app.connect("autodoc-process-docstring", _escape_shapes)


# Before autodoc runs, which changes the defaults in signatures.
reference.write(HERE / "api")
