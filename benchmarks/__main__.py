"""``python -m benchmarks``: short ones, some minutes in all. The whole ones are run by name."""

import sys

from benchmarks import laurel, plain_decoder
from benchmarks.limits import against_limits

print("Our plain decoder against a minimal one\n")
plain_decoder.main(["batch=2", "rounds=15", "model.layers=6"])
print("\nLAuReL against plain, at 8 layers\n")
against_limits(laurel.LIMITS, (*laurel.SHAPE, "model.layers=8"), ["rounds=15"], batch=2)
print("\nAt full size: python benchmarks/laurel.py; docs/benchmarks.md lists the others.")
sys.exit(0)
