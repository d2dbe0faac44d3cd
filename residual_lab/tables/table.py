"""A table of text and numbers: what every command that prints a table makes.

:func:`residual_lab.tables.render` shows one as rich, Markdown, CSV, LaTeX or JSON.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

Value = str | int | float | bool | None


@dataclass(frozen=True)
class Cell:
    """One entry: ``text`` for a reader, ``value`` in base units (bytes, seconds) for a program.

    ``details`` are further numbers of the same entry, such as ``{"std": 0.01, "n": 5}``;
    CSV gives each a column of its own, JSON a key.
    """

    text: str
    value: Value = None
    details: Mapping[str, Value] = field(default_factory=dict)


@dataclass(frozen=True)
class Column:
    """A heading: ``key`` for programs, ``title`` for readers; numbers stand to the right."""

    key: str
    title: str
    justify: Literal["left", "right"] = "left"


@dataclass(frozen=True)
class Table:
    """Rows of cells under columns; ``notes`` are printed below, one a line.

    Raises ``ValueError`` for a row that has not one cell for each column.
    """

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for number, row in enumerate(self.rows):
            if len(row) != len(self.columns):
                raise ValueError(
                    f"row {number} has {len(row)} cells for {len(self.columns)} columns"
                )

    @classmethod
    def of_text(
        cls, title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], *notes: str
    ) -> "Table":
        """A table of words: each column's key is its title in lower case."""
        headings = tuple(Column("_".join(name.lower().split()), name) for name in columns)
        cells = tuple(tuple(Cell(text, text) for text in row) for row in rows)
        return cls(title, headings, cells, notes)

    def column(self, key: str) -> list[Cell]:
        """The cells under the heading ``key``, from top to bottom."""
        index = [column.key for column in self.columns].index(key)
        return [row[index] for row in self.rows]

    def select(self, *keys: str) -> "Table":
        """The same table with the columns ``keys`` alone, those of them that it has."""
        kept = [n for n, column in enumerate(self.columns) if column.key in keys]
        columns = tuple(self.columns[n] for n in kept)
        rows = tuple(tuple(row[n] for n in kept) for row in self.rows)
        return Table(self.title, columns, rows, self.notes)
