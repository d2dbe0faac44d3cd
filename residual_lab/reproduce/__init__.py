"""The papers' tables: their files, the runs that fill them, and the report."""
