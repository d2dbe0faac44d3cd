"""From ``hardware.*`` to Lightning's accelerator, strategy, precision and cluster environment."""

import ctypes
import os
import platform
import re
from collections.abc import Callable
from inspect import signature
from typing import Any

import torch
from lightning.fabric.plugins.environments import ClusterEnvironment
from lightning.pytorch.accelerators import CUDAAccelerator, XLAAccelerator
from lightning.pytorch.plugins.environments import (
    LightningEnvironment,
    SLURMEnvironment,
    TorchElasticEnvironment,
)
from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy, Strategy
from torch.nn.parallel import DistributedDataParallel

from residual_lab.config.conflicts import unsupported_precision
from residual_lab.config.schema import Config, HardwareConfig
from residual_lab.errors import ConfigError
from residual_lab.measure.environment import usable_cores

_SYNC_BUFFERS = "forward_sync_buffers"  # the name since torch 2.13
if _SYNC_BUFFERS not in signature(DistributedDataParallel).parameters:
    _SYNC_BUFFERS = "broadcast_buffers"
_NO_BUFFERS_IN_FORWARD: dict[str, Any] = {_SYNC_BUFFERS: False}

_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4  # of glibc's malloc.h; see mallopt(3)


def resolve_hardware(config: Config, devices: int | None = None) -> Config:
    """``config`` with every ``auto`` of its hardware replaced by what this machine has.

    ``devices`` takes the place of ``hardware.devices``. Raises ConfigError for hardware that is
    not there, a precision that it does not have, a batch that the devices cannot share evenly, and
    a number of processes, started by torchrun or SLURM, other than devices × nodes.
    """
    hardware = config.hardware
    accelerator = _accelerator(hardware)
    count = _device_count(accelerator, devices or hardware.devices)
    strategy = hardware.strategy
    if strategy == "auto" and count * hardware.nodes > 1 and accelerator != "tpu":
        strategy = "ddp"
    resolved = hardware.model_copy(
        update={
            "accelerator": accelerator,
            "devices": count,
            "strategy": strategy,
            "precision": _precision(hardware, accelerator),
        }
    )
    resolved_config = config.model_copy(update={"hardware": resolved})
    if problems := list(unsupported_precision(resolved)):
        raise ConfigError(*problems)
    _check_batch(resolved_config)
    _check_world(resolved)
    return resolved_config


def _accelerator(hardware: HardwareConfig) -> str:
    there = {
        "tpu": XLAAccelerator.is_available(),
        "gpu": CUDAAccelerator.is_available(),
        "cpu": True,
    }
    if hardware.accelerator == "auto":
        return next(name for name, available in there.items() if available)
    if not there[hardware.accelerator]:
        found = ", ".join(name for name, available in there.items() if available)
        raise ConfigError(
            f"hardware.accelerator={hardware.accelerator}: there is none here; found: {found}"
        )
    return hardware.accelerator


def _device_count(accelerator: str, devices: int | str) -> int:
    counts: dict[str, Callable[[], int]] = {
        "cpu": lambda: 1,
        "gpu": torch.cuda.device_count,
        "tpu": XLAAccelerator.auto_device_count,
    }
    available = counts[accelerator]()
    if devices == "auto":
        return available
    if accelerator != "cpu" and int(devices) > available:
        raise ConfigError(f"hardware.devices={devices}: only {available} here; ask for fewer")
    return int(devices)


def _precision(hardware: HardwareConfig, accelerator: str) -> str:
    if hardware.precision != "auto":
        return hardware.precision
    # A TPU multiplies float32 matrices in bfloat16 by itself; Lightning has no bf16-mixed there.
    has_bf16 = accelerator == "gpu" and torch.cuda.is_bf16_supported(including_emulation=False)
    return "bf16-mixed" if has_bf16 else "32-true"


def _check_batch(config: Config) -> None:
    hardware = config.hardware
    assert isinstance(hardware.devices, int)
    shares = hardware.devices * hardware.nodes * hardware.accumulate
    if config.batch_sequences % shares:
        raise ConfigError(
            f"budget.batch_tokens={config.budget.batch_tokens}: its {config.batch_sequences} "
            f"sequences do not divide by devices × nodes × accumulate = {shares}"
        )


def _check_world(hardware: HardwareConfig) -> None:
    devices, nodes = hardware.devices, hardware.nodes
    assert isinstance(devices, int)
    started = _started_processes()
    if started is None:
        if hardware.needs_launcher:
            raise ConfigError(
                f"hardware.nodes={nodes}: the other hosts are nobody's to start here; start the "
                "run with torchrun or SLURM, as docs/hardware.md says, or set hardware.nodes=1"
            )
        return
    if started != devices * nodes:
        raise ConfigError(
            f"hardware.devices × hardware.nodes = {devices * nodes}, but {started} processes were "
            f"started: start {devices * nodes}, or set hardware.devices and hardware.nodes to match"
        )
    if not TorchElasticEnvironment.detect():
        per_node = os.environ.get("SLURM_NTASKS_PER_NODE", "unset")
        if per_node != str(devices):
            raise ConfigError(
                f"hardware.devices={devices}: start the tasks with --ntasks-per-node={devices}; "
                f"it is {per_node}"
            )


def _started_processes() -> int | None:
    """How many processes torchrun or SLURM started; None when Lightning is to start them."""
    if TorchElasticEnvironment.detect():
        return int(os.environ["WORLD_SIZE"])
    # One task is an allocation in which we start our processes ourselves.
    tasks = int(os.environ.get("SLURM_NTASKS", 1)) if SLURMEnvironment.detect() else 1
    return tasks if tasks > 1 else None


def cluster_environment() -> ClusterEnvironment:
    """Who started the processes: torchrun, SLURM's tasks, or Lightning itself."""
    if TorchElasticEnvironment.detect():
        return TorchElasticEnvironment()
    if _started_processes() is not None:
        return SLURMEnvironment(auto_requeue=False)
    return LightningEnvironment()


def trainer_options(hardware: HardwareConfig) -> dict[str, Any]:
    """Arguments of Lightning's Trainer, from :func:`resolve_hardware`'s hardware."""
    plugins: list[Any] = [] if hardware.accelerator == "tpu" else [cluster_environment()]
    return {
        "accelerator": hardware.accelerator,
        "devices": hardware.devices,
        "num_nodes": hardware.nodes,
        "strategy": _strategy(hardware),
        "precision": hardware.precision,
        "accumulate_grad_batches": hardware.accumulate,
        "plugins": plugins,
    }


def _strategy(hardware: HardwareConfig) -> Strategy | str:
    assert isinstance(hardware.devices, int)
    backend = "gloo" if hardware.accelerator == "cpu" else None
    if hardware.strategy == "fsdp":
        return ModelParallelStrategy(
            data_parallel_size=hardware.devices * hardware.nodes,
            tensor_parallel_size=1,
            process_group_backend=backend,
        )
    if hardware.strategy == "ddp":
        return DDPStrategy(
            process_group_backend=backend,
            gradient_as_bucket_view=True,  # one copy of the gradients instead of two
            # A rank with a validation batch more than the others would wait for them for ever.
            **_NO_BUFFERS_IN_FORWARD,
        )
    return "auto"


def prepare_processor(hardware: HardwareConfig) -> None:
    """Give this process its share of the machine's cores, and let it keep the memory it frees.

    ``hardware.threads`` counts first, then the environment's OMP_NUM_THREADS.
    """
    assert isinstance(hardware.devices, int)
    first = re.match(r"\s*(\d+)", os.environ.get("OMP_NUM_THREADS", ""))  # "4,2": of nested ones
    wanted = hardware.threads or int(first[1] if first is not None else 0)
    torch.set_num_threads(wanted or max(1, usable_cores() // hardware.devices))
    if hardware.accelerator == "cpu":
        _keep_freed_memory()


def _keep_freed_memory() -> None:
    """Have glibc hand no freed block back to the system; elsewhere this does nothing.

    It would give each large block back and ask for it again a layer later, and the system would
    clear its pages anew. For what that costs see "Freed memory" in docs/benchmarks.md.
    """
    if platform.libc_ver()[0] == "glibc":
        library = ctypes.CDLL(None)
        library.mallopt(_M_TRIM_THRESHOLD, -1)
        library.mallopt(_M_MMAP_MAX, 0)
