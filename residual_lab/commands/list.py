"""``residual-lab list``: what there is to choose from, read from files without running any."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from residual_lab.config.composition import conf_directory
from residual_lab.errors import ConfigError, LabError, suggestion
from residual_lab.tables import Table, render

KINDS = {
    "residuals": "residual",
    "models": "model",
    "data": "data",
    "optim": "optim",
    "hardware": "hardware",
    "loggers": "logger",
    "debug": "debug",
}

USAGE = f"""\
usage: residual-lab list [KIND] [--config-dir DIR] [format=FORMAT] [out=PATH]

What there is to choose from, of one kind or of all.

KIND      {", ".join(KINDS)}
FORMAT    rich (default), md, csv, latex, json
DIR       a folder of your own groups, listed too

A choice NAME of `residual-lab list residuals` is trained by `residual-lab train residual=NAME`."""


def main(arguments: list[str]) -> int:
    if "-h" in arguments or "--help" in arguments:
        print(USAGE)
        return 0
    kinds, folders, options = _arguments(arguments)
    for kind in kinds:
        if kind not in KINDS:
            choices = ", ".join(KINDS)
            raise LabError(f"{kind}: no such kind{suggestion(kind, KINDS)} (there are {choices})")
    if len(kinds) == 1:
        table = table_of(kinds[0], folders)
    else:
        table = _overview(kinds or list(KINDS), folders)
    render(table, options.get("format"), options.get("out"))
    return 0


def _arguments(arguments: list[str]) -> tuple[list[str], list[Path], dict[str, str]]:
    kinds: list[str] = []
    folders = [conf_directory()]
    options: dict[str, str] = {}
    rest = iter(arguments)
    for argument in rest:
        key, equals, value = argument.partition("=")
        if key in ("--config-dir", "-cd"):
            folder = Path(value if equals else next(rest, "")).expanduser()
            if not folder.is_dir():
                raise ConfigError(f"--config-dir={folder}: there is no such folder")
            folders.append(folder)
        elif key in ("format", "out") and equals:
            options[key] = value
        elif equals or argument.startswith("-"):
            raise LabError(f"{argument}: no such option; there are format=, out= and --config-dir")
        else:
            kinds.append(argument)
    return kinds, folders, options


def table_of(kind: str, folders: list[Path]) -> Table:
    """One row a choice; of residuals with what the connection's docstring states."""
    choices = list(_choices(kind, folders))
    if kind != "residuals":
        rows = [[file.stem, describe(file)] for file in choices]
        return Table.of_text(kind, ["Name", "What"], rows, f"use: {KINDS[kind]}=NAME")
    rows = []
    for file in choices:
        facts = connection_facts(_connection(file))
        columns = ("formula", "parameters", "identity", "paper")
        rows.append([file.stem, describe(file), *(facts.get(name, "") for name in columns)])
    titles = ["Name", "What", "Formula", "Parameters", "Plain at", "Paper"]
    return Table.of_text(kind, titles, rows, "use: residual=NAME")


def _overview(kinds: list[str], folders: list[Path]) -> Table:
    rows = [[kind, file.stem, describe(file)] for kind in kinds for file in _choices(kind, folders)]
    return Table.of_text("", ["Kind", "Name", "What"], rows, "more: residual-lab list residuals")


def _choices(kind: str, folders: list[Path]) -> Iterator[Path]:
    for folder in folders:
        yield from sorted((folder / KINDS[kind]).glob("*.yaml"), key=lambda file: file.stem)


def describe(file: Path) -> str:
    """The first comment line of a YAML file."""
    for line in file.read_text(encoding="utf-8").splitlines():
        if line.startswith("#") and not line.startswith("# @package"):
            return line.lstrip("# ").strip()
    return ""


def _connection(file: Path) -> str:
    plain: Any = yaml.safe_load(file.read_text(encoding="utf-8"))
    return str(plain.get("connection", "")) if isinstance(plain, dict) else ""


def connection_facts(spec: str) -> dict[str, str]:
    """``formula``, ``paper``, ``parameters`` and ``identity`` of a connection's docstring.

    The formula is the first indented block; the others are paragraphs that start with their
    name. Empty where ``spec`` names a class whose source is not found.
    """
    module, _, class_name = spec.rpartition(":")
    docstring = _docstring(module, class_name)
    if docstring is None:
        return {}
    facts = {}
    block = re.search(r"\n\n((?: {4,}.*(?:\n|$))+)", docstring)
    if block:
        lines = block[1].rstrip().split("\n")
        indent = min(len(line) - len(line.lstrip()) for line in lines)
        facts["formula"] = "\n".join(line[indent:] for line in lines)
    for name in ("paper", "parameters", "identity"):
        found = re.search(rf"^{name.title()}: (.+(?:\n +.+)*)", docstring, re.MULTILINE)
        if found:
            facts[name] = " ".join(found[1].split())
    return facts


def _docstring(module: str, class_name: str) -> str | None:
    own = Path(__file__).parent.parent / "residuals" / f"{module.replace('.', '/')}.py"
    source = Path(module).expanduser() if module.endswith(".py") else own
    if not source.is_file():
        return None
    for node in ast.parse(source.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef) and node.name == class_name:
            return ast.get_docstring(node)
    return None
