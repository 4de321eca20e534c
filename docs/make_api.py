"""Writes the pages of the API reference, docs/api/*.md, from the public names: a name that is made public is documented.

Public are the names in `catlog.__all__` and, of the modules among them, the names in their `__all__` or, without one, the
functions and classes that they define. The modules in `BEYOND` and the building blocks of estimators are documented, too.
"""

import os
import re
from contextlib import redirect_stdout, suppress
from importlib import import_module
from inspect import getdoc, isclass, isfunction, ismodule
from io import StringIO
from pathlib import Path
from types import ModuleType

import make_estimators

import catlog
import catlog.experiments
from catlog.cli.main import main

os.environ["COLUMNS"] = "110"  # of the command's help
BEYOND = ["data", "experiments", "kernels"]
BLOCKS = [
    "factors",
    "conditionals",
    "draw",
    "evaluate",
    "neighbours",
    "clamps",
    "logits",
    "relaxation",
    "checks",
]


def public(module: ModuleType) -> list[str]:
    """The public names of a module."""
    if hasattr(module, "__all__"):
        return sorted(module.__all__, key=str.lower)
    listed = {name: each for name, each in vars(module).items() if not name.startswith("_")}
    return [
        name
        for name, each in listed.items()
        if isclass(each) or isfunction(each)
        if each.__module__ == module.__name__
    ]


def groups() -> dict[str, list[str]]:
    """Headings of pages, and the full names on each."""
    names = public(catlog)
    modules = [name for name in names if ismodule(getattr(catlog, name))]
    found = {
        "The contract": ["Estimator", "estimator.Kind", "estimator.attach", "ESTIMATORS"],
        **{f"Estimators: {family}": listed for family, listed in make_estimators.FAMILIES.items()},
        "Laws": [
            "Categoricals",
            "distributions.Ordered",
            "Autoregressive",
            "BayesianNetwork",
            "distributions.Node",
            "MarkovChain",
        ],
        "Training": ["compiled_step", "compiled.CompiledStep", "MovingAverageBaseline"],
    }
    taken = {name for listed in found.values() for name in listed}
    found["Functions and tools"] = [
        name for name in names if name not in taken and name not in modules
    ]
    for module in [*modules, *(each for each in BEYOND if each not in modules)]:
        found[f"catlog.{module}"] = [
            f"{module}.{name}" for name in public(import_module(f"catlog.{module}"))
        ]
    found["Building blocks"] = [
        f"{block}.{name}" for block in BLOCKS for name in public(import_module(f"catlog.{block}"))
    ]
    return {heading: listed for heading, listed in found.items() if listed}


def thing(name: str) -> object:
    """What a name below `catlog` names."""
    module, _, last = name.rpartition(".")
    return getattr(import_module(f"catlog.{module}") if module else catlog, last)


def summary(name: str) -> str:
    """The first sentence of its docstring, in Markdown."""
    found = thing(name)
    if not (isclass(found) or isfunction(found)):
        return constant(found)
    text = " ".join((getdoc(found) or "").split("\n\n")[0].split()).partition(". ")[0].rstrip(".:")
    for role in (":class:", ":func:", ":mod:"):
        text = text.replace(role, "")
    while ":math:`" in text:
        before, _, rest = text.partition(":math:`")
        formula, _, after = rest.partition("`")
        text = f"{before}${formula}${after}"
    return text.replace("``", "`")


def constant(value: object) -> str:
    """What is in a constant."""
    if isinstance(value, dict | tuple | list | set | frozenset):
        return "Holds " + ", ".join(f"`{each}`" for each in value) + "."
    return f"`{value}`".replace("catlog.experiments.", "").replace("<", "").replace(">", "")


def directive(name: str) -> list[str]:
    found = thing(name)
    if isclass(found):
        call = ["   :special-members: __call__"] if name == "Estimator" else []
        members = (
            [] if name.startswith("experiments.") else ["   :members:"]
        )  # their fields are the flags of the command
        return [f".. autoclass:: catlog.{name}", *members, *call, ""]
    if isfunction(found):
        return [f".. autofunction:: catlog.{name}", ""]
    module, _, last = f"catlog.{name}".rpartition(".")
    return [
        f".. py:data:: {last}",
        f"   :module: {module}",
        "",
        f"   {constant(found)}".replace("`", "``"),
        "",
    ]


def helped(*given: str) -> str:
    """What the command says with --help."""
    text = StringIO()
    with redirect_stdout(text), suppress(SystemExit):
        main([*given, "--help"])
    return "\n".join(line.rstrip() for line in text.getvalue().rstrip().splitlines())


def command() -> str:
    """The page of the command line."""
    lines = [
        "# The command `catlog`",
        "",
        "Needs `pip install 'catlog[experiments]'`. Errors of the user's making are one line; Ctrl-C",
    ]
    lines += ["leaves a run that `--resume` continues.", ""]
    listed: list[list[str]] = [[]]
    for name in re.findall(r"• (\w+)", helped()):
        of_each = {"run": list(catlog.experiments.EXPERIMENTS), "sweep": ["addition"]}.get(name)
        listed += [[name]] if of_each is None else [[name, each] for each in of_each]
    for given in listed:
        lines += [f"## `{' '.join(['catlog', *given])}`", "", "```text", helped(*given), "```", ""]
    return "\n".join(lines)


def file_name(heading: str) -> str:
    return "".join(
        letter if letter.isalnum() or letter == "." else "-" for letter in heading.lower()
    ).replace("--", "-")


def page(heading: str, names: list[str]) -> str:
    module = heading.startswith("catlog.")
    lines = [f"# {f'`{heading}`' if module else heading}", "", "```{eval-rst}"]
    if module:
        lines += [f".. automodule:: {heading}", "   :no-members:", ""]
    for name in names:
        lines += directive(name)
    return "\n".join([*lines, "```", ""])


def index(found: dict[str, list[str]]) -> str:
    lines = [
        "# API reference",
        "",
        "Every public name, by what it is for.",
        "",
        "```{toctree}",
        ":hidden:",
        "",
    ]
    lines += [*map(file_name, found), "command", "```", ""]
    for heading, names in found.items():
        lines += [f"## {f'`{heading}`' if heading.startswith('catlog.') else heading}", ""]
        lines += [f"- {{py:obj}}`{name} <catlog.{name}>`: {summary(name)}" for name in names]
        lines.append("")
    return "\n".join(
        [*lines, "## The command `catlog`", "", "[Every subcommand and flag](command.md).", ""]
    )


def write(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    found = groups()
    pages = {f"{file_name(heading)}.md": page(heading, names) for heading, names in found.items()}
    pages |= {"index.md": index(found), "command.md": command()}
    for old in folder.glob("*.md"):
        if old.name not in pages:
            old.unlink()
    for name, text in pages.items():
        path = folder / name
        if (
            not path.exists() or path.read_text(encoding="utf-8") != text
        ):  # Sphinx reads what has changed
            path.write_text(text, encoding="utf-8")
