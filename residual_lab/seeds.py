"""One seed, separate streams: what one part draws never shifts what another draws."""

import hashlib
from typing import Literal

Stream = Literal[
    "base weights", "connection weights", "data order", "dropout", "augmentation", "mixup"
]


def stream_seed(seed: int, stream: Stream, index: int = 0) -> int:
    """Return the 63-bit seed of one stream; ``index`` is the rank or epoch where there are many."""
    digest = hashlib.sha256(f"{seed}/{stream}/{index}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1
