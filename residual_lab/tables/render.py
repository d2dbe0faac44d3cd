"""Show a table: rich for the terminal, Markdown, CSV, LaTeX (booktabs) and JSON."""

import csv
import io
import json
import math
import sys
from collections.abc import Callable
from pathlib import Path

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from residual_lab.errors import LabError, suggestion
from residual_lab.files import check_writable, write_output
from residual_lab.tables.table import Cell, Column, Table, Value

FORMATS = ("rich", "md", "csv", "latex", "json")
_FORMAT_OF_SUFFIX = {
    ".md": "md",
    ".csv": "csv",
    ".tex": "latex",
    ".json": "json",
    ".txt": "rich",
}


def render(table: Table, format: str | None = None, out: str | Path | None = None) -> None:
    """Print the table, or write it to the file ``out``, whole or not at all.

    Without ``format`` the ending of ``out`` chooses it (.md, .csv, .tex, .json, .txt). Says on
    standard error what was written.
    Raises LabError as :func:`format_for` does, and for a file that cannot be written.
    """
    format = format_for(format, out)
    if out is not None:
        write_output(Path(out), as_text(table, format))
        print(f"wrote {out}", file=sys.stderr)
    elif format == "rich" and Console().is_terminal:
        print_rich(table, Console())
    else:
        sys.stdout.write(as_text(table, format))


def format_for(format: str | None, out: str | Path | None) -> str:
    """``format``, or that of the ending of ``out``, or rich where there is neither.

    Raises LabError for an unknown format or ending, and for an ``out`` that is empty or cannot be
    written: call it before work whose result would be lost.
    """
    if out is not None and not str(out):
        raise LabError("out=: empty; name the file to write the table to")
    if format is None and out is not None:
        format = _FORMAT_OF_SUFFIX.get(Path(out).suffix.lower())
        if format is None:
            endings = ", ".join(_FORMAT_OF_SUFFIX)
            raise LabError(f"out={out}: no known ending (there are {endings}); or give format=")
    format = "rich" if format is None else format
    if format not in FORMATS:
        choices = ", ".join(FORMATS)
        near = suggestion(format, FORMATS)
        raise LabError(f"format={format}: no such format{near} (there are {choices})")
    if out is not None:
        check_writable(Path(out))
    return format


def as_text(table: Table, format: str) -> str:
    """The table in one of ``FORMATS``; rich is plain text as wide as it needs to be."""
    if format == "rich":
        console = Console(file=io.StringIO(), width=10_000, color_system=None, legacy_windows=False)
        print_rich(table, console)
        lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
        return "\n".join(line.rstrip() for line in lines) + "\n"
    writers: dict[str, Callable[[Table], str]] = {
        "md": _markdown,
        "csv": _csv,
        "latex": _latex,
        "json": _json,
    }
    return writers[format](table)


def print_rich(table: Table, console: Console) -> None:
    """As wide as the terminal; what does not fit follows below, under the first column again."""
    if table.title:
        console.print(Text(table.title, style="bold"))
    for columns in _blocks(table, console.width):
        grid = RichTable(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
        for column in columns:
            heading = table.columns[column]
            grid.add_column(
                Text(heading.title, style="bold"), justify=heading.justify, overflow="fold"
            )
        for row in table.rows:
            grid.add_row(*(Text(row[column].text) for column in columns))
        console.print(grid)
        console.print()
    for note in table.notes:
        console.print(Text(note, style="dim"))


def _blocks(table: Table, width: int) -> list[list[int]]:
    """The columns in groups that fit ``width``; each group begins with the first column."""
    widths = [_width_of(column, index, table) for index, column in enumerate(table.columns)]
    blocks, used = [[0]], widths[0]
    for index in range(1, len(widths)):
        if used + 2 + widths[index] > width and len(blocks[-1]) > 1:
            blocks.append([0])
            used = widths[0]
        blocks[-1].append(index)
        used += 2 + widths[index]
    return blocks


def _width_of(column: Column, index: int, table: Table) -> int:
    texts = [column.title, *(row[index].text for row in table.rows)]
    return max(cell_len(line) for text in texts for line in text.split("\n"))


def _markdown(table: Table) -> str:
    def line(texts: list[str]) -> str:
        return "| " + " | ".join(t.replace("|", "\\|").replace("\n", " ") for t in texts) + " |"

    rules = ["---:" if column.justify == "right" else "---" for column in table.columns]
    lines = [f"**{table.title}**", ""] if table.title else []
    lines += [line([column.title for column in table.columns]), "|" + "|".join(rules) + "|"]
    lines += [line([cell.text for cell in row]) for row in table.rows]
    if table.notes:
        lines += ["", *(f"- {note}" for note in table.notes)]
    return "\n".join(lines) + "\n"


def _fields(column: Column, cell: Cell) -> dict[str, Value]:
    """The cell's numbers under flat names: ``val_loss``, ``val_loss_std``, ..."""
    return {column.key: cell.value} | {f"{column.key}_{k}": v for k, v in cell.details.items()}


def _csv(table: Table) -> str:
    """One line a row, numbers in base units; notes are left out, for programs' sake."""
    names: list[str] = []
    for index, column in enumerate(table.columns):
        found = {column.key: None}  # in the order of first appearance
        for row in table.rows:
            found |= dict.fromkeys(_fields(column, row[index]))
        names += found
    text = io.StringIO()
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    for row in table.rows:
        fields: dict[str, Value] = {}
        for column, cell in zip(table.columns, row, strict=True):
            fields |= _fields(column, cell)
        writer.writerow(fields)
    return text.getvalue()


def _json(table: Table) -> str:
    rows = []
    for row in table.rows:
        entry: dict[str, object] = {}
        for column, cell in zip(table.columns, row, strict=True):
            values = {"value": cell.value, **cell.details} if cell.details else cell.value
            entry[column.key] = _finite(values)
        rows.append(entry)
    document = {
        "title": table.title,
        "columns": {column.key: column.title for column in table.columns},
        "rows": rows,
        "notes": list(table.notes),
    }
    return json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _finite(value: object) -> object:
    """JSON knows neither NaN nor infinity: null."""
    if isinstance(value, dict):
        return {key: _finite(entry) for key, entry in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


_LATEX = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"$<$",
    ">": r"$>$",
    "±": r"$\pm$",
    "−": r"$-$",
    "×": r"$\times$",
    "·": r"$\cdot$",
    "Δ": r"$\Delta$",
    "Σ": r"$\Sigma$",
    "α": r"$\alpha$",
    "β": r"$\beta$",
    "γ": r"$\gamma$",
    "σ": r"$\sigma$",
    "≤": r"$\leq$",
    "≥": r"$\geq$",
    "√": r"$\surd$",
    "²": r"$^2$",
    "†": r"\dag{}",
    "‡": r"\ddag{}",
    "\n": " ",
}


def _escaped(text: str) -> str:
    return "".join(_LATEX.get(letter, letter) for letter in text)


def _latex(table: Table) -> str:
    """A ``table`` float for ``booktabs``, with the notes under it in footnote size."""
    letters = "".join("r" if column.justify == "right" else "l" for column in table.columns)
    lines = [r"% needs \usepackage{booktabs}", r"\begin{table}", r"\centering"]
    if table.title:
        lines.append(rf"\caption{{{_escaped(table.title)}}}")
    lines += [rf"\begin{{tabular}}{{{letters}}}", r"\toprule"]
    lines.append(" & ".join(_escaped(column.title) for column in table.columns) + r" \\")
    lines.append(r"\midrule")
    lines += [" & ".join(_escaped(cell.text) for cell in row) + r" \\" for row in table.rows]
    lines += [r"\bottomrule", r"\end{tabular}"]
    if table.notes:
        notes = r" \\".join(f"\n{_escaped(note)}" for note in table.notes)
        lines.append(rf"\par\smallskip\begin{{minipage}}{{\linewidth}}\footnotesize{notes}")
        lines.append(r"\end{minipage}")
    lines.append(r"\end{table}")
    return "\n".join(lines) + "\n"
