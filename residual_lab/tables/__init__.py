"""Comparison tables and plots from finished runs; imports no torch."""

from residual_lab.tables.render import render
from residual_lab.tables.table import Cell, Column, Table

__all__ = ["Cell", "Column", "Table", "render"]
