"""The arguments of ``residual-lab reproduce``, sorted and checked before any work."""

import math
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from residual_lab.config.composition import compose, conf_directory
from residual_lab.costs.arguments import whole_number
from residual_lab.errors import LabError, suggestion
from residual_lab.reproduce.plan import Choices, rows_of
from residual_lab.reproduce.table_file import SCALES, TableFile, load_table
from residual_lab.tables.render import format_for

OPTIONS = (
    *("scale", "seeds", "rows", "only", "tune", "grid", "match", "jobs", "rounds"),
    *("format", "out"),
)
ONLY = ("estimate", "table")
MATCH = ("params", "flops", "step_time")
_OF_ROWS = {  # and so no overrides of all runs
    "seed": "the command gives seed to each run; for seeds: seeds=0,1,2",
    "start.run": "the command gives start.run to each run, as the rows say with after",
    "residual": "each row has its own residual; choose among them with rows=NAME,NAME",
}
GRID = (0.5, 1.0, 2.0)
ROUNDS = 20


@dataclass(frozen=True)
class Asked:
    """What the command is asked for."""

    table: TableFile
    choices: Choices
    launcher: tuple[str, ...]
    only: str | None
    match: str | None
    rounds: int
    format: str | None
    out: Path
    out_given: str | None
    command: str


def sort_arguments(name: str, arguments: Sequence[str]) -> Asked:
    """Of ``KEY=VALUE`` for the table ``name``. Raises LabError for what is no such argument."""
    options: dict[str, str] = {}
    launcher: list[str] = []
    overrides: list[str] = []
    for argument in arguments:
        key, _, value = argument.partition("=")
        if key in OPTIONS:
            options[key] = value
        elif key.startswith(("hydra/", "hydra.")):
            launcher.append(argument)
        elif (reason := _OF_ROWS.get(key.lstrip("+~"))) is not None:
            raise LabError(f"{argument}: {reason}")
        elif (near := suggestion(key, OPTIONS)) and not (conf_directory() / key).is_dir():
            raise LabError(f"{argument}: no such option{near}")
        else:
            overrides.append(argument)
    table = load_table(name)
    scale = _one_of("scale", options.get("scale", "desk"), SCALES)
    choices = Choices(
        scale=scale,
        seeds=_seeds(options.get("seeds")),
        rows=_rows(options.get("rows"), table, scale),
        lr_factors=_factors(options),
        overrides=tuple(overrides),
    )
    rows_of(table, choices)
    format_for(options.get("format"), None)
    jobs = whole_number("jobs", options.get("jobs", "1"), 1)
    if jobs > 1:
        if any(text.startswith("hydra/launcher") for text in launcher):
            raise LabError(f"jobs={jobs}: hydra/launcher says how many run; give one of the two")
        launcher += ["hydra/launcher=joblib", f"hydra.launcher.n_jobs={jobs}"]
    if launcher:
        compose(launcher)  # says which launchers there are, or what to install
    only, match = options.get("only"), options.get("match")
    if only == "estimate" and "tune" in options:
        raise LabError(
            f"tune={options['tune']}: no cost depends on it; leave it out of only=estimate"
        )
    fair = [f"{key}_{options[key]}" for key in ("tune", "match") if key in options]
    folder = "-".join(["results/" + table.name.replace("/", "-"), scale, *fair])
    return Asked(
        table=table,
        choices=choices,
        launcher=tuple(launcher),
        only=None if only is None else _one_of("only", only, ONLY),
        match=None if match is None else _one_of("match", match, MATCH),
        rounds=_rounds(options.get("rounds", str(ROUNDS))),
        format=options.get("format"),
        out=Path(options.get("out", folder)),
        out_given=options.get("out"),
        command=shlex.join(["residual-lab", "reproduce", name, *arguments]),
    )


def _rows(text: str | None, table: TableFile, scale: str) -> tuple[str, ...]:
    """Names behind commas, as the file or the table at this scale has them; they may hold commas.

    A name that nobody knows ends at the next comma.
    """
    known = {table.shown_name(row, scale): row.name for row in table.rows}
    known |= {row.name: row.name for row in table.rows}
    found: list[str] = []
    if text is None:
        return ()
    if not text.strip(" ,"):
        raise LabError(f"rows={text}: must be names behind commas; there are {', '.join(known)}")
    rest = text.strip()
    while rest:
        fitting = [n for n in known if rest == n or re.match(rf"{re.escape(n)}\s*,", rest)]
        name = max(fitting, key=len) if fitting else rest.partition(",")[0].strip()
        found.append(known.get(name, name))
        rest = rest[len(name) :].strip().removeprefix(",").strip()
    return tuple(dict.fromkeys(found))


def _one_of(key: str, value: str, choices: tuple[str, ...]) -> str:
    if value not in choices:
        raise LabError(
            f"{key}={value}: must be one of {', '.join(choices)}{suggestion(value, choices)}"
        )
    return value


def _seeds(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    if text.strip(" ,") and "," in text:
        return tuple(
            dict.fromkeys(whole_number("seeds", part, 0) for part in text.split(",") if part)
        )
    return tuple(range(whole_number("seeds", text, 1)))


def _rounds(text: str) -> int:
    rounds = whole_number("rounds", text, 0)
    if rounds == 1:
        raise LabError("rounds=1: one has no interval; must be at least 2, or 0 for no step times")
    return rounds


def _factors(options: Mapping[str, str]) -> tuple[float, ...]:
    if "tune" not in options:
        if "grid" in options:
            raise LabError(f"grid={options['grid']}: the multiples of tune=lr; give that too")
        return (1.0,)
    _one_of("tune", options["tune"], ("lr",))
    text = options.get("grid", ",".join(map(str, GRID)))
    try:
        factors = tuple(dict.fromkeys(float(part) for part in text.split(",")))
    except ValueError:
        factors = ()
    if not factors or not all(math.isfinite(f) and f > 0 for f in factors):
        raise LabError(f"grid={text}: must be multiples of the learning rate, such as 0.5,1,2")
    return factors
