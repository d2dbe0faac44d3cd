"""Comparison tables and plots from finished runs; imports no torch."""

from residual_lab.tables.comparison_table import compare
from residual_lab.tables.render import FORMATS, render
from residual_lab.tables.runs import Run, load_runs
from residual_lab.tables.summary import summary
from residual_lab.tables.table import Cell, Column, Table

__all__ = ["FORMATS", "Cell", "Column", "Run", "Table", "compare", "load_runs", "render", "summary"]
