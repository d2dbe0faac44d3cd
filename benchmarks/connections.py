"""Connections that mix over depth, streams and gates against plain: width 256, 48 layers.

python benchmarks/connections.py [batch=N] [rounds=N] [threads=N] [clock=cpu] [KEY=VALUE...]
"""

import sys
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.limits import against_limits
from residual_lab.cli import in_one_line

SHAPE = ("model.width=256", "model.layers=48", "sequence=256", "hardware=cpu")
LIMITS = {
    "denseformer": 1.12,
    "denseformer_4x1": 1.05,
    "denseformer_4x5": 1.03,
    "dca_k residual.k=2": 1.30,
    "dca": 1.80,
    "hyper_connections residual.dynamic=false": 1.50,
    "skips_with_gains": 1.02,
    "residual_gates": 1.02,
    "rezero": 1.02,
}

if __name__ == "__main__":
    sys.exit(in_one_line(partial(against_limits, LIMITS, SHAPE, batch=4), sys.argv[1:]))
