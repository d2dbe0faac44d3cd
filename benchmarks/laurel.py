"""LAuReL against plain: width 256, 24 layers.

python benchmarks/laurel.py [batch=N] [rounds=N] [threads=N] [clock=cpu] [KEY=VALUE...]
"""

import sys
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.limits import against_limits
from residual_lab.cli import in_one_line

SHAPE = ("model.width=256", "model.layers=24", "hardware=cpu")
LIMITS = {"laurel_rw": 1.02, "laurel_lr": 1.05, "laurel_pa": 1.05, "laurel_rw+lr+pa": 1.09}

if __name__ == "__main__":
    sys.exit(in_one_line(partial(against_limits, LIMITS, SHAPE, batch=4), sys.argv[1:]))
