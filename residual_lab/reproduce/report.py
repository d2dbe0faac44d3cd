"""The report of a table, in Markdown: the table, its pictures, and how to run each row by hand."""

import shlex
from collections.abc import Sequence
from pathlib import Path

from residual_lab.reproduce.arguments import Asked
from residual_lab.reproduce.paper import difference_text, paper_difference, verdict
from residual_lab.reproduce.plan import Planned
from residual_lab.reproduce.results import Results
from residual_lab.tables.metrics import metric_named
from residual_lab.tables.numbers import DASH, interval_text, probability
from residual_lab.tables.render import as_text
from residual_lab.tables.table import Table


def report(
    asked: Asked, planned: Sequence[Planned], found: Results, table: Table, pictures: Sequence[Path]
) -> str:
    """``pictures`` are files in ``asked.out``; only PNG is shown."""
    shown = [path for path in pictures if path.suffix == ".png"]
    parts = [
        f"# {asked.table.title}",
        f"{asked.table.source}; scale {asked.choices.scale}.",
        as_text(Table("", table.columns, table.rows, table.notes), "md"),
        "## What the runs say",
        *_sayings(asked, found),
        *_as_printed(asked, found),
        "## Pictures",
        "\n\n".join(f"![{path.stem}]({path.relative_to(asked.out)})" for path in shown),
        "## Each row by hand",
        "\n".join(["```sh", *_commands(asked, planned), "```"]),
    ]
    return "\n\n".join(part.rstrip() for part in parts) + "\n"


def _sayings(asked: Asked, found: Results) -> list[str]:
    """A sentence a row: our difference, the paper's, and whether they agree."""
    metric = metric_named(asked.table.metric)
    lines = []
    for row, ours in zip(found.of_file, found.rows, strict=True):
        gap = ours.difference
        if ours.is_baseline or gap is None:
            continue
        unit = metric.unit
        if gap.low is None or gap.high is None or ours.p is None:
            why = "of one seed" if gap.n == 1 else "the same at every seed"
            said = f"{interval_text(gap.mean / unit, places=metric.places)}, {why}: no evidence"
        else:
            interval = interval_text(gap.mean / unit, gap.low / unit, gap.high / unit)
            said = f"{interval}, p = {probability(ours.p)}".replace("= <", "<")
        paper = paper_difference(asked.table, row)
        if paper is not None:
            said += f"; the paper: {difference_text(paper, metric)} ({verdict(ours, paper)})"
        lines.append(f"- **{ours.group.label}**: Δ {metric.title} {said}.")
    return ["\n".join(lines) or "No row has a difference to its baseline yet."]


def _as_printed(asked: Asked, found: Results) -> list[str]:
    """All that the paper prints for the rows, under its own names."""
    keys = list(dict.fromkeys(key for row in found.of_file for key in row.paper))
    if not keys:
        return []
    rows = [
        [row.name, *(row.paper.get(key, DASH) for key in keys)]
        for row in found.of_file
        if row.paper
    ]
    titles = ["row", *(key.replace("_", " ") for key in keys)]
    return ["## As the paper prints it", as_text(Table.of_text("", titles, rows), "md")]


def _commands(asked: Asked, planned: Sequence[Planned]) -> list[str]:
    """Of the first seed; what starts from another run names that run's directory."""
    seed = planned[0].seed
    places = [text for text in asked.choices.overrides if text.startswith("run.dir=")]
    runs = places[-1].removeprefix("run.dir=") if places else "runs"
    lines = []
    for one in planned:
        if one.seed == seed:
            overrides = [
                f"start.run={runs}/{one.after.path.name}"
                if text.startswith("start.run=") and one.after is not None
                else text
                for text in one.overrides
            ]
            lines.append(f"# {asked.choices.shown_name(asked.table, asked.table.row(one.row))}")
            lines.append(shlex.join(["residual-lab", "train", *overrides]))
    return lines
