"""One GPU for each job of a sweep that runs several at a time on one machine."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from residual_lab.config.schema import HardwareConfig


@contextmanager
def one_gpu(hardware: HardwareConfig, folder: Path) -> Iterator[dict[str, str] | None]:
    """Yield the environment of a run that shows it one free GPU, taken until the end.

    Free means that no other job holds its lock in ``folder``; where none is, the first serves.
    None, the environment as it is, for runs of several devices and where no two GPUs are seen.
    """
    gpus = visible_gpus() if hardware.devices == 1 and hardware.accelerator != "cpu" else []
    if len(gpus) < 2:
        yield None
        return
    with ExitStack() as stack:
        taken = gpus[0]
        for gpu in gpus:
            file = stack.enter_context((folder / f"gpu-{gpu}.lock").open("a"))
            try:
                fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            taken = gpu
            break
        yield {**os.environ, "CUDA_VISIBLE_DEVICES": taken}


def visible_gpus() -> list[str]:
    """The GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        return [gpu for gpu in named.split(",") if gpu]
    import torch

    return [str(number) for number in range(torch.cuda.device_count())]
