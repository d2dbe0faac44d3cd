"""A paper's table as a file, ``experiments/PAPER/TABLE.yaml``: its rows and the printed numbers.

Imports neither torch nor Hydra: listing every table costs no more than reading the files.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import yaml
from pydantic import Field

from residual_lab.config.schema import Section
from residual_lab.config.validation import problems_of
from residual_lab.errors import LabError, suggestion
from residual_lab.reproduce.printed import Printed
from residual_lab.tables.metrics import metric_named

ScaleName = Literal["paper", "gpu", "desk"]
SCALES: tuple[ScaleName, ...] = get_args(ScaleName)

Overrides = tuple[str, ...]
Key = Annotated[str, Field(pattern=r"^[a-z_]+(\.[a-z_]+)+$")]

# What the command itself gives each run: no row may.
RESERVED = ("seed", "run.dir", "start.run")


class Scale(Section):
    """How large a table is run: what changes in every row, on how many seeds, where."""

    seeds: Annotated[int, Field(gt=0)]
    overrides: Overrides = ()
    on: str  # the hardware, in words
    minutes: Annotated[float, Field(gt=0)] | None = None  # of one run there; null: unknown


class Row(Section):
    """One row: Hydra overrides, and what the paper printed."""

    name: str
    names: dict[ScaleName, str] = Field(default_factory=dict)  # shown there, where it is smaller
    overrides: Overrides = ()
    scales: dict[ScaleName, Overrides] = Field(default_factory=dict)  # further ones, applied last
    baseline: str | None = None  # a row's name; null: the table's
    after: str | None = None  # starts from the finished weights of that row's run, seed by seed
    deeper: bool = False  # `match=` solves model.layers of this row
    paper: dict[str, str] = Field(default_factory=dict)  # as printed
    note: str | None = None  # why a printed number cannot be reproduced, or what is inferred


class TableFile(Section):
    """One table; ``name`` is ``PAPER/TABLE``, from where its file lies."""

    name: str
    title: str
    source: str  # paper, arXiv number, table
    metric: str  # of residual_lab.tables.metrics; what differences are taken in
    baseline: str  # a row's name
    overrides: Overrides = ()  # of every row, at every scale
    scales: dict[ScaleName, Scale]
    rows: Annotated[tuple[Row, ...], Field(min_length=1)]
    axis: Key | None = None  # pictures draw the metric against this key
    grid: tuple[Key, Key] | None = None  # or as a heat map over these two
    note: str | None = None

    def row(self, name: str) -> Row:
        return next(row for row in self.rows if row.name == name)

    def shown_name(self, row: Row, scale: str) -> str:
        """What a table at ``scale`` calls ``row``: "8 layers" where the paper has 48."""
        return row.names.get(known_scale(scale), row.name)

    def overrides_of(self, row: Row, scale: str) -> list[str]:
        """What ``residual-lab train`` takes for ``row`` at ``scale``; the later ones win."""
        of_scale, of_row = self.scales[known_scale(scale)], row.scales.get(known_scale(scale), ())
        return [*self.overrides, *of_scale.overrides, *row.overrides, *of_row]


def experiments_directory() -> Path:
    """The folder of tables: inside the installed package, or at the top of a checkout."""
    package = Path(__file__).resolve().parent.parent
    installed = package / "experiments"
    return installed if installed.is_dir() else package.parent / "experiments"


def table_names() -> list[str]:
    """``PAPER/TABLE`` of each table that comes with the package, sorted."""
    files = experiments_directory().glob("*/*.yaml")
    return sorted(f"{path.parent.name}/{path.stem}" for path in files)


def load_table(name: str) -> TableFile:
    """Read the table ``PAPER/TABLE``, or the file of a user's own, ``path/to/TABLE.yaml``.

    Raises LabError: with the names there are, or with all problems of the file, a line each.
    """
    own = name.endswith((".yaml", ".yml"))
    path = Path(name).expanduser().absolute() if own else experiments_directory() / f"{name}.yaml"
    if own and not path.is_file():
        raise LabError(f"{name}: there is no such file")
    if not own and name not in table_names():
        known = table_names()
        near = suggestion(name, known) or suggestion(name, [k.partition("/")[2] for k in known])
        raise LabError(f"{name}: no such table{near} (there are {', '.join(known)})")
    try:
        plain = yaml.load(path.read_text(encoding="utf-8"), Loader=_Loader)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise LabError(f"{path}: cannot be read: {' '.join(str(error).split())}") from None
    return read_table(f"{path.parent.name}/{path.stem}", plain, path)


def read_table(name: str, plain: Any, path: str | Path) -> TableFile:
    """The table that a file's content describes; raises LabError with all of its problems."""
    if not isinstance(plain, dict):
        keys = ", ".join(key for key in TableFile.model_fields if key != "name")
        raise LabError(f"{path}: must be a section with the keys {keys}")
    plain = _text_keys(plain)
    problems = list(_shape(plain)) or list(_meaning(TableFile(name=name, **plain)))
    if problems:
        problems = list(dict.fromkeys(problems))
        raise LabError(*(f"{path}: {problem}" for problem in problems))
    return TableFile(name=name, **plain)


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """As in YAML 1.2 only true and false are booleans: ``on`` is a key. In C, where there is."""


_BOOLEAN = "tag:yaml.org,2002:bool"
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != _BOOLEAN]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(_BOOLEAN, re.compile("^(?:true|false)$"), ["t", "f"])


def known_scale(scale: str) -> ScaleName:
    for name in SCALES:
        if name == scale:
            return name
    raise LabError(f"scale={scale}: must be one of {', '.join(SCALES)}{suggestion(scale, SCALES)}")


def _text_keys(plain: Any) -> Any:
    """YAML takes numbers and true as keys: as text they are refused like any unknown key."""
    if isinstance(plain, dict):
        return {str(key): _text_keys(value) for key, value in plain.items()}
    return [_text_keys(value) for value in plain] if isinstance(plain, list) else plain


def _shape(plain: Mapping[str, Any]) -> Iterator[str]:
    """Keys and types: a line for each that is wrong, the rows by their names."""
    outer = {key: value for key, value in plain.items() if key not in ("scales", "rows")}
    if "name" in outer:
        yield "name: no such key; a table's name is that of its file"
    stand_in: dict[str, Any] = {"scales": {}, "rows": [{"name": "-"}]}
    yield from problems_of(TableFile, {**stand_in, **outer, "name": "-"})
    yield from _scales(plain.get("scales"))
    rows = plain.get("rows")
    if not isinstance(rows, list) or not rows:
        yield "rows: must be a list of rows, at least one"
        return
    for number, row in enumerate(rows, start=1):
        named = isinstance(row, dict) and isinstance(row.get("name"), str)
        yield from _row(row, f"rows.{row['name'] if named else number}")


def _scales(scales: Any) -> Iterator[str]:
    if not isinstance(scales, dict):
        yield f"scales: must be a section with the keys {', '.join(SCALES)}"
        return
    yield from _unknown_scales(scales, "scales")
    for name in SCALES:
        if name not in scales:
            yield f"scales.{name}: missing; every table has {', '.join(SCALES)}"
        elif not isinstance(scales[name], dict):
            yield f"scales.{name}={scales[name]}: must be a section with the keys {_keys(Scale)}"
        else:
            yield from problems_of(Scale, scales[name], f"scales.{name}.")


def _row(row: Any, where: str) -> Iterator[str]:
    if not isinstance(row, dict):
        yield f"{where}={row}: must be a section with the keys {_keys(Row)}"
        return
    sections: dict[str, dict[Any, Any]] = {"names": {}, "scales": {}, "paper": {}}
    yield from problems_of(Row, {**row, **sections}, f"{where}.")
    for key in sections:
        if isinstance(row.get(key, {}), dict):
            sections[key] = row.get(key, {})
        else:
            yield f"{where}.{key}={row[key]}: must be a section"
    yield from _unknown_scales(sections["names"], f"{where}.names")
    yield from _unknown_scales(sections["scales"], f"{where}.scales")
    for scale, name in sections["names"].items():
        if not isinstance(name, str):
            yield f"{where}.names.{scale}={name}: must be text"
    for scale, overrides in sections["scales"].items():
        if not isinstance(overrides, list) or not all(isinstance(o, str) for o in overrides):
            yield f"{where}.scales.{scale}={overrides}: must be a list of text"
    for key, value in sections["paper"].items():
        yield from _paper(value, f"{where}.paper.{key}")


def _unknown_scales(scales: Mapping[Any, Any], where: str) -> Iterator[str]:
    for name in scales:
        if name not in SCALES:
            near = suggestion(str(name), SCALES)
            yield f"{where}.{name}: no such scale{near} (there are {', '.join(SCALES)})"


def _paper(value: Any, where: str) -> Iterator[str]:
    if not isinstance(value, str):  # YAML reads 157.20 as 157.2
        yield f'{where}={value}: must be text, in quotes, as the paper prints it: "{value}"'
        return
    try:
        Printed.of(value)
    except ValueError as error:
        yield f"{where}={value}: {error}"


def _meaning(table: TableFile) -> Iterator[str]:
    """What the keys say of each other."""
    try:
        metric_named(table.metric)
    except LabError as error:
        yield from error.problems
    names = [row.name for row in table.rows]
    for scale in SCALES:
        shown = Counter(table.shown_name(row, scale) for row in table.rows)
        for name, times in shown.items():
            if times > 1:
                yield f"rows.{name}: {times} rows have this name; each needs its own"
    yield from _no_row("baseline", table.baseline, names)
    for row in table.rows:
        for key in ("baseline", "after"):
            yield from _no_row(f"rows.{row.name}.{key}", getattr(row, key), names)
    yield from _cycles({row.name: row.after for row in table.rows})
    for where, overrides in _all_overrides(table):
        for override in overrides:
            yield from _reserved(where, override)


def _no_row(where: str, name: str | None, names: list[str]) -> Iterator[str]:
    if name is not None and name not in names:
        yield f"{where}={name}: no such row{suggestion(name, names)} (there are {', '.join(names)})"


def _cycles(after: Mapping[str, str | None]) -> Iterator[str]:
    for start, first in after.items():
        chain = [first]
        while (place := chain[-1]) is not None and len(chain) <= len(after) and place != start:
            chain.append(after.get(place))
        if place == start:
            yield f"rows.{start}.after={first}: that row starts, in turn, from {start}"


def _all_overrides(table: TableFile) -> Iterator[tuple[str, Overrides]]:
    yield "overrides", table.overrides
    for name, scale in table.scales.items():
        yield f"scales.{name}.overrides", scale.overrides
    for row in table.rows:
        yield f"rows.{row.name}.overrides", row.overrides
        for name, overrides in row.scales.items():
            yield f"rows.{row.name}.scales.{name}", overrides


def _reserved(where: str, override: str) -> Iterator[str]:
    key, equals, _ = override.partition("=")
    if not equals and not key.startswith("~"):
        yield f"{where}: {override}: must be an override, KEY=VALUE"
    if re.sub(r"^\+{1,2}", "", key) in RESERVED:
        yield f"{where}: {override}: the command gives {key} to each run; leave it out"


def _keys(schema: type[Section]) -> str:
    return ", ".join(schema.model_fields)
