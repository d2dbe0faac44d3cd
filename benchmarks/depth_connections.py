"""DenseFormer and DeepCrossAttention against plain: width 256, 48 layers, sequence 256.

python benchmarks/depth_connections.py [batch=N] [rounds=N] [threads=N] [clock=cpu] [KEY=VALUE...]
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.limits import against_limits

SHAPE = ("model.width=256", "model.layers=48", "data.sequence_length=256", "hardware=cpu")
LIMITS = {
    "denseformer": 1.12,
    "denseformer_4x1": 1.05,
    "denseformer_4x5": 1.03,
    "dca_k": 1.30,
    "dca": 1.80,
}

if __name__ == "__main__":
    sys.exit(against_limits(LIMITS, SHAPE, sys.argv[1:], batch=4))
