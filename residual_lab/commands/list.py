"""``residual-lab list``: what there is to choose from, read from files without running any."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from residual_lab.config.composition import conf_directory
from residual_lab.errors import ConfigError, LabError, suggestion
from residual_lab.tables import Cell, Column, Table, render
from residual_lab.tables.numbers import DASH, fixed

if TYPE_CHECKING:
    from residual_lab.config.schema import Config

KINDS = {
    "residuals": "residual",
    "models": "model",
    "data": "data",
    "optim": "optim",
    "hardware": "hardware",
    "loggers": "logger",
    "debug": "debug",
}

TABLES = "tables"  # what `reproduce` makes, no choice of a run

FITTING = ("name", "formula", "added_parameters", "kept_activations", "from")  # in a terminal

USAGE = f"""\
usage: residual-lab list [KIND] [--config-dir DIR] [format=FORMAT] [out=PATH]
       residual-lab list residuals model=MODEL [KEY=VALUE...]
       residual-lab list NAME

What there is to choose from, of one kind or of all. With a model, or other overrides of the
configuration, residuals show what each adds to it: parameters, counted, and what it keeps of
the forward pass for the backward pass. With a format also the closed form of its parameters, the
setting at which it is plain, and the paper. With the NAME of a residual, all that its page says.

KIND      {", ".join((*KINDS, TABLES))}
FORMAT    rich (default), md, csv, latex, json
DIR       a folder of your own groups, listed too

A choice NAME of `residual-lab list residuals` is trained by `residual-lab train residual=NAME`."""


def main(arguments: list[str]) -> int:
    if "-h" in arguments or "--help" in arguments:
        print(USAGE)
        return 0
    kinds, folders, options, overrides = _arguments(arguments)
    pages = [file for name in kinds if (file := _residual(name, folders)) is not None]
    if pages and len(kinds) > 1:
        raise LabError(f"{' '.join(kinds)}: one at a time; {pages[0].stem} is a page of text")
    if pages:
        file = pages[0]
        if surplus := [*overrides, *(f"{key}={value}" for key, value in options.items())]:
            raise LabError(f"{surplus[0]}: {kinds[0]} alone is a page of text; leave it out")
        print(f"{describe(file)}\n\n{_docstring(*_class_of(file)) or file}")
        return 0
    _check(kinds, overrides, [file.stem for file in _choices("residuals", folders)])
    if overrides:
        table = _residuals(folders, _Costs(overrides, folders))
    elif kinds == [TABLES]:
        from residual_lab.commands.reproduce import list_tables

        table = list_tables()
    elif len(kinds) == 1:
        table = table_of(kinds[0], folders)
    else:
        table = _overview(kinds or list(KINDS), folders)
    if not options and table.title == "residuals":  # what fits a terminal
        table = table.select(*FITTING)
    render(table, options.get("format"), options.get("out"))
    return 0


def _check(kinds: list[str], overrides: list[str], residuals: list[str]) -> None:
    known = (*KINDS, TABLES)
    for kind in kinds:
        if kind not in known:
            near = suggestion(kind, [*known, *residuals])
            choices = ", ".join(known)
            raise LabError(
                f"{kind}: no such kind{near} (there are {choices}, or a residual's name)"
            )
    if TABLES in kinds and len(kinds) > 1:
        raise LabError(f"{TABLES}: they are not choices of a run; list them alone")
    if overrides and kinds not in ([], ["residuals"]):
        raise LabError(f"{overrides[0]}: only residuals are listed for a model")


def _residual(name: str, folders: list[Path]) -> Path | None:
    return next((file for file in _choices("residuals", folders) if file.stem == name), None)


def _arguments(
    arguments: list[str],
) -> tuple[list[str], list[Path], dict[str, str], list[str]]:
    """Kinds, folders of choices, the command's own options, and overrides."""
    kinds: list[str] = []
    overrides: list[str] = []
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
        elif equals and ("." in key or key in KINDS.values()):
            overrides.append(argument)
        elif equals or argument.startswith("-"):
            raise LabError(f"{argument}: no such option; there are format=, out= and --config-dir")
        else:
            kinds.append(argument)
    return kinds, folders, options, overrides


def table_of(kind: str, folders: list[Path]) -> Table:
    """One row a choice; of residuals with what the connection's docstring states."""
    choices = list(_choices(kind, folders))
    if kind != "residuals":
        rows = [[file.stem, describe(file)] for file in choices]
        return Table.of_text(kind, ["Name", "What"], rows, f"use: {KINDS[kind]}=NAME")
    return _residuals(folders)


def _residuals(folders: list[Path], costs: "_Costs | None" = None) -> Table:
    """What the docstring of each connection states, and what ``costs`` counts."""
    rows, problems = [], []
    for file in _choices("residuals", folders):
        facts = connection_facts(_connection(file))
        counted, problem = costs.of(file.stem) if costs is not None else ([], None)
        texts = [facts.get(name, "") for name in ("parameters", "identity", "formula", "paper")]
        formula, _, origin = describe(file).partition("   (")
        rows.append([Cell(t, t) for t in (file.stem, formula)] + counted)
        rows[-1] += [Cell(text, text) for text in (origin.removesuffix(")"), *texts)]
        problems += [problem] if problem else []
    counted_columns = _Costs.COLUMNS if costs is not None else ()
    stated = ("Name", "Formula", "From", "Parameters", "Plain at", "Equations", "Paper")
    columns = [Column("_".join(title.lower().split()), title) for title in stated]
    columns[2:2] = counted_columns
    notes = [
        "use: residual=NAME; read one: residual-lab list NAME",
        *(costs.notes if costs is not None else ()),
        *problems,
    ]
    return Table("residuals", tuple(columns), tuple(map(tuple, rows)), tuple(notes))


class _Costs:
    """What residuals add to the model of some overrides; this imports torch."""

    COLUMNS = (
        Column("added_parameters", "Adds", "right"),
        Column("kept_activations", "Keeps", "right"),
    )

    def __init__(self, overrides: list[str], folders: list[Path]) -> None:
        from residual_lab.costs.kept import KeptByPlain

        self._overrides = overrides
        self._own = folders[1] if len(folders) > 1 else None
        self._plain = KeptByPlain(self._compose("plain"))
        self.notes = (
            "Adds: parameters of the whole model over those with plain.",
            "Keeps: what backward needs beyond plain's, in activations (batch × time × width) per "
            "layer.",
        )

    def _compose(self, name: str) -> "Config":
        from residual_lab.config import compose

        return compose([*self._overrides, f"residual={name}"], config_dir=self._own)

    def of(self, name: str) -> tuple[list[Cell], str | None]:
        """Cells for ``COLUMNS``; where the residual does not go with the model, why."""
        try:
            parameters, kept = self._plain.costs_of(self._compose(name))
        except ConfigError as error:
            return [Cell(DASH), Cell(DASH)], f"{name}: {error.problems[0]}"
        return [Cell(fixed(parameters, 0), parameters), Cell(fixed(kept, 2), kept)], None


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
    try:
        plain: Any = yaml.safe_load(file.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise ConfigError(f"{file}: not YAML: {' '.join(str(error).split())}") from None
    return str(plain.get("connection", "")) if isinstance(plain, dict) else ""


def _class_of(file: Path) -> tuple[str, str]:
    module, _, class_name = _connection(file).rpartition(":")
    return module, class_name


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
    try:
        parsed = ast.parse(source.read_text(encoding="utf-8"))
    except SyntaxError as error:
        raise ConfigError(f"{source}: not Python: line {error.lineno}: {error.msg}") from None
    for node in parsed.body:
        if isinstance(node, ast.ClassDef) and node.name == class_name:
            return ast.get_docstring(node)
    return None
