"""Write the pages of the API reference, docs/api/*.md, from the public names: a public name is
documented by existing.

Public are the classes and functions of `catlog` and of the packages in `PACKAGES`. The building
blocks of estimators are documented, too.
"""

import os
import re
from contextlib import redirect_stdout, suppress
from importlib import import_module
from importlib.util import find_spec
from inspect import Parameter, Signature, getdoc, isclass, isfunction, signature
from io import StringIO
from pathlib import Path
from types import ModuleType
from typing import Protocol

from measured import estimators

import catlog
import catlog_experiments
from catlog.estimators import ESTIMATORS
from catlog_experiments.cli import main

os.environ["COLUMNS"] = "100"  # of the command's help
PACKAGES = ["functions", "language_models", "problems"]
PACKAGES += ["pyro"] * (find_spec("pyro") is not None)  # an extra, which `make docs` installs
CONTRACT = ["Estimator", "Learner", "Estimate", "Evaluator", "Factors", "Randomness"]
CONTRACT += ["estimators.ESTIMATORS"]
BLOCKS = ["core.factors", "core.view", "core.abilities", "core.neighbours"]
BLOCKS += ["core.learning", "core.settings", "core.categories", "core.checks"]
# Arguments that names.md explains once.
COMMON = ("chunk_size", "device", "dtype", "generator", "validate_args")
# Made by functions, so shown without arguments.
RETURNED = ("Advice", "Comparison", "FunctionReport", "Row", "Trial", "CompiledStep", "Reference")
TRAINING = ["compiled_step", "compiled.CompiledStep", "Session", "Pathwise", "log_expectation"]
TRAINING += ["sample", "gumbel_softmax", "estimators.CountDifferences"]
TRAINING += ["estimators.MovingAverageBaseline"]


def public(module: ModuleType) -> list[str]:
    """Return the public names of a module: its own classes and functions, or its ``__all__``."""
    if hasattr(module, "__all__"):
        return sorted(module.__all__, key=str.lower)
    separate = {f"catlog.{name}" for name in PACKAGES} - {module.__name__}
    values = {name: getattr(module, name) for name in dir(module) if not name.startswith("_")}
    return [
        name
        for name, value in values.items()
        if isclass(value) or isfunction(value)
        if f"{value.__module__}.".startswith(f"{module.__name__}.")
        if value.__module__ not in separate
    ]


def of_package(package: str) -> list[str]:
    """Return the names of a package, each by its shortest path below `catlog`."""
    names, top = public(import_module(f"catlog.{package}")), public(catlog)
    return [name if name in top else f"{package}.{name}" for name in names]


def groups() -> dict[str, list[str]]:
    """Return the names of every page, by its heading."""
    families = {
        f"Estimators: {title}": [estimators.path(name).removeprefix("catlog.") for name in names]
        for title, names in estimators.families().items()
    }
    pages = {
        "The contract": CONTRACT,
        **families,
        "Distributions": of_package("distributions"),
        "Choosing an estimator": of_package("diagnostics"),
        "Training": TRAINING,
    }
    shown = {name for names in pages.values() for name in names}
    pages["Further names"] = [name for name in public(catlog) if name not in shown]
    for package in PACKAGES:
        names = public(import_module(f"catlog.{package}"))
        pages[f"catlog.{package}"] = [f"{package}.{name}" for name in names]
    pages["Building blocks"] = [
        f"{block}.{name}"
        for block in BLOCKS
        for name in public(import_module(f"catlog.{block}"))
        if name not in CONTRACT
    ]
    return {heading: names for heading, names in pages.items() if names}


def resolve(name: str) -> object:
    """Return what a name below `catlog` stands for."""
    module, _, last = name.rpartition(".")
    return getattr(import_module(f"catlog.{module}") if module else catlog, last)


def summary(name: str) -> str:
    """Return the first sentence of a docstring, in Markdown."""
    value = resolve(name)
    if not (isclass(value) or isfunction(value)):
        return constant(value)
    text = " ".join((getdoc(value) or "").split("\n\n")[0].split()).partition(". ")[0].rstrip(".:")
    text = re.sub(r":(class|func|mod):", "", text).replace("`~", "`")
    return re.sub(r":math:`([^`]*)`", r"$\1$", text).replace("``", "`")


def constant(value: object) -> str:
    """Return what a constant holds."""
    if isinstance(value, dict | tuple | list | set | frozenset):
        entries = [f"`{entry}`" for entry in value if len(str(entry)) < 40]
        return f"Holds {', '.join(entries) if 0 < len(entries) < 20 else f'{len(value)} entries'}."
    return f"`{value}`".replace("<", "").replace(">", "")


def call(name: str) -> str:
    """Return a name with its arguments and their defaults, as it is called."""
    value = resolve(name)
    is_called = isfunction(value) or (isclass(value) and not issubclass(value, Exception))
    if not is_called or (isclass(value) and Protocol in value.__mro__):
        return name
    arguments = signature(value).parameters.values()  # type: ignore[arg-type]
    plain = [
        argument.replace(annotation=Parameter.empty)
        for argument in arguments
        if argument.name not in COMMON
    ]
    last = name.rpartition(".")[2]
    if last in RETURNED or len(plain) > 12:
        return name
    if last in ESTIMATORS:  # names.md says once that they are given by name
        plain = [a.replace(kind=Parameter.POSITIONAL_OR_KEYWORD) for a in plain]
    return name + re.sub(r"<built-in function (\w+)>", r"\1", str(Signature(plain)))


def entry(name: str) -> str:
    """Return the paragraph of a name in names.md."""
    last = name.rpartition(".")[2]
    more = f" {estimators.facts(last)}" if last in ESTIMATORS else ""
    text = summary(name).rstrip(".")
    first = text.partition(": ")[0]
    return f"`{call(name)}`: {first if first.count(' ') > 2 else text}.{more}"


def names_page(text: str) -> str:
    """Return the page names.md: its introduction, and every public name with what it is."""
    lines = [text.partition("\n## ")[0].rstrip(), ""]
    for heading, names in groups().items():
        if heading != "Building blocks":
            lines += [f"## {title(heading)}", ""]
            lines += [line for name in names for line in (entry(name), "")]
    return "\n".join(lines)


def directive(name: str) -> list[str]:
    """Return the directive that documents a name."""
    value = resolve(name)
    if isfunction(value):
        return [f".. autofunction:: catlog.{name}", ""]
    if isclass(value):
        call = ["   :special-members: __call__"] if name == "Estimator" else []
        return [f".. autoclass:: catlog.{name}", "   :members:", *call, ""]
    module, _, last = f"catlog.{name}".rpartition(".")
    text = constant(value).replace("`", "``")
    return [f".. py:data:: {last}", f"   :module: {module}", "", f"   {text}", ""]


def help_text(*arguments: str) -> str:
    """Return what the command prints with --help."""
    text = StringIO()
    with redirect_stdout(text), suppress(SystemExit):
        main([*arguments, "--help"])
    return "\n".join(line.rstrip() for line in text.getvalue().rstrip().splitlines())


def command() -> str:
    """Return the page of the command line."""
    lines = ["# The command `catlog`", ""]
    lines += [
        "Needs `pip install . ./experiments`. A wrong argument gives one line and exit code 2.",
        "",
    ]
    commands: list[list[str]] = [[]]
    for name in re.findall(r"• (\w+)", help_text()):
        variants = {"run": list(catlog_experiments.EXPERIMENTS), "sweep": ["addition"]}
        commands += (
            [[name, variant] for variant in variants[name]] if name in variants else [[name]]
        )
    for words in commands:
        title = " ".join(["catlog", *words])
        lines += [f"## `{title}`", "", "```text", help_text(*words), "```", ""]
    return "\n".join(lines)


def title(heading: str) -> str:
    return f"`{heading}`" if heading.startswith("catlog.") else heading


def file_name(heading: str) -> str:
    return re.sub(r"[^\w.]+", "-", heading.lower())


def page(heading: str, names: list[str]) -> str:
    """Return the page of one group."""
    lines = [f"# {title(heading)}", "", "```{eval-rst}"]
    if heading.startswith("catlog."):
        lines += [f".. automodule:: {heading}", "   :no-members:", ""]
    for name in names:
        lines += directive(name)
    return "\n".join([*lines, "```", ""])


def index(pages: dict[str, list[str]]) -> str:
    """Return the list of all names."""
    lines = ["# API reference", "", "All public names, grouped by purpose.", ""]
    lines += ["```{toctree}", ":hidden:", "", *map(file_name, pages), "command", "```", ""]
    for heading, names in pages.items():
        lines += [f"## {title(heading)}", ""]
        lines += [f"- {{py:obj}}`{name} <catlog.{name}>`: {summary(name)}" for name in names]
        lines.append("")
    return "\n".join(
        [*lines, "## The command `catlog`", "", "[All subcommands and flags](command.md).", ""]
    )


def write(folder: Path) -> None:
    """Write the pages that have changed, and remove old ones."""
    folder.mkdir(exist_ok=True)
    pages = groups()
    texts = {f"{file_name(heading)}.md": page(heading, names) for heading, names in pages.items()}
    texts |= {"index.md": index(pages), "command.md": command()}
    for path in folder.glob("*.md"):
        if path.name not in texts:
            path.unlink()
    for name, text in texts.items():
        path = folder / name
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
