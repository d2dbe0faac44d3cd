"""What a run ran on: versions, the state of the code, the device."""

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

import residual_lab

_PACKAGES = ("torch", "lightning", "numpy", "tokenizers", "datasets", "torch_xla")


def versions() -> dict[str, str]:
    """Versions of Python, this package and what it computes with."""
    found = {"python": platform.python_version(), "residual_lab": residual_lab.__version__}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def git_state() -> dict[str, Any] | None:
    """``commit`` and ``dirty`` of the checkout that this package is run from; None without one."""
    package = Path(residual_lab.__file__).parent
    try:
        tracked = _git(package, "ls-files", "__init__.py")
        commit = _git(package, "rev-parse", "HEAD")
        changes = _git(package, "status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.SubprocessError):
        return None
    return {"commit": commit, "dirty": bool(changes)} if tracked else None


def _git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=20)
    return done.stdout.strip()


def usable_cores() -> int:
    """CPU cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def device_name(device: torch.device) -> str:
    """The name of one device: of the GPU, the TPU's generation, or the processor's model."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    if device.type == "xla":
        return _tpu_name()
    if device.type == "cpu":
        return _processor_name()
    return device.type


def _tpu_name() -> str:
    from torch_xla import runtime

    backend = runtime.device_type()
    if backend != "TPU":
        return f"XLA on {backend}"
    try:
        from torch_xla._internal.tpu import get_tpu_type  # there is no public name for it

        return f"TPU {get_tpu_type().replace('v5litepod', 'v5e')}"
    except Exception:  # no metadata, or another version of torch_xla
        return "TPU"


def _processor_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def describe_devices(device: torch.device, processes: int) -> str:
    """For people: how many of which device, and on CPU the threads of each process."""
    threads = f" ({torch.get_num_threads()} threads)" if device.type == "cpu" else ""
    return f"{processes} × {device_name(device)}{threads}"
