"""Peak memory of training steps, by the means of each kind of device."""

from typing import Any

import torch
from torch import nn
from torch.distributed._tools.mem_tracker import MemTracker
from torch.optim import Optimizer


class PeakMemory:
    """The peak of bytes in use during training steps after warm-up; this base measures nothing."""

    kind = "not measured"
    slow_steps = 0  # steps after warm-up that measuring slows down, and that are not timed

    def __init__(self) -> None:
        self.peaks: dict[str, int] = {}  # "value", and what else the device tells

    def begin(self, model: nn.Module, optimizer: Optimizer) -> None:
        """Warm-up is over: count from here."""

    def end_step(self) -> None:
        """An optimizer step is over."""

    def pause(self) -> None:
        """What follows, until :meth:`resume`, is not training."""

    def resume(self) -> None:
        """Training goes on."""


class StorageTracker(MemTracker):
    """torch's MemTracker without its statistics of each module.

    They take most of its time, quadratic in depth, and refuse a second forward pass, so that
    gradients could not be accumulated. The totals do not need them.
    """

    def track_external(self, *external: Any) -> None:
        for module in (thing for thing in external if isinstance(thing, nn.Module)):
            self._track_module_params_and_buffers(module, install_grad_hooks=True)
        super().track_external(*external)

    def _pre_fw_hook(self, module: nn.Module, inputs: Any) -> None: ...

    def _post_fw_hook(self, module: nn.Module, inputs: Any, outputs: Any) -> None: ...

    def _pre_bw_hook(self, module: nn.Module, args: Any) -> None: ...

    def _post_bw_hook(self, module: nn.Module, args: Any) -> None: ...

    def peak(self) -> dict[str, int]:
        """Bytes at the moment when most were in use, by torch's names of the kinds."""
        snapshots = self.get_tracker_snapshot("peak").values()
        largest = max(snapshots, key=lambda snapshot: snapshot["Total"])
        return {str(getattr(kind, "value", kind)): int(n) for kind, n in largest.items()}


class LiveTensors(PeakMemory):
    """CPU: the peak of the bytes that live tensors hold, during one optimizer step.

    torch's MemTracker follows every storage from its first use to its end: parameters,
    gradients, optimizer state, activations, temporaries. What a kernel allocates inside itself
    is not seen. The size of the process would be, but it never shrinks and counts imports too.
    """

    kind = "cpu live tensors"
    slow_steps = 1

    def __init__(self) -> None:
        super().__init__()
        self._tracker: StorageTracker | None = None

    def begin(self, model: nn.Module, optimizer: Optimizer) -> None:
        self._tracker = StorageTracker()
        self._tracker.track_external(model, optimizer)
        self._tracker.__enter__()

    def end_step(self) -> None:
        if self._tracker is None:
            return
        self._tracker.__exit__(None, None, None)
        self.peaks["value"] = self._tracker.peak()["Total"]
        self._tracker = None


class CudaAllocator(PeakMemory):
    """CUDA: the caching allocator's peaks of allocated and reserved bytes after warm-up."""

    kind = "cuda allocated"

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._device = device
        self._counting = False

    def begin(self, model: nn.Module, optimizer: Optimizer) -> None:
        self._counting = True
        torch.cuda.reset_peak_memory_stats(self._device)

    def pause(self) -> None:
        if not self._counting:
            return
        now = {
            "value": torch.cuda.max_memory_allocated(self._device),
            "reserved": torch.cuda.max_memory_reserved(self._device),
        }
        self.peaks = {key: max(value, self.peaks.get(key, 0)) for key, value in now.items()}

    def resume(self) -> None:
        if self._counting:
            torch.cuda.reset_peak_memory_stats(self._device)


class XlaMemory(PeakMemory):
    """XLA: the peak of the device's memory since the process began, warm-up included.

    XLA's counter cannot be reset, so it is read when training pauses, and validation counts.
    Not every backend has it.
    """

    kind = "xla in use"

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._device = device

    def pause(self) -> None:
        import torch_xla.core.xla_model as xm

        try:
            info = xm.get_memory_info(self._device)
        except RuntimeError:  # this backend keeps no count
            return
        if "peak_bytes_used" in info:
            self.peaks["value"] = int(info["peak_bytes_used"])


def peak_memory(device: torch.device, compiled: bool) -> PeakMemory:
    """The means of measuring that ``device`` has.

    None on CPU for a compiled model: while MemTracker watches, torch runs it uncompiled.
    """
    if device.type == "cpu":
        return PeakMemory() if compiled else LiveTensors()
    if device.type == "cuda":
        return CudaAllocator(device)
    return XlaMemory(device) if device.type == "xla" else PeakMemory()


def larger(now: dict[str, Any], earlier: dict[str, Any] | None) -> dict[str, Any]:
    """The larger of two entries ``{"kind", "value", …}`` of one kind; ``now`` when they differ."""
    if not earlier or earlier["value"] is None or earlier["kind"] != now["kind"]:
        return now
    return now if (now["value"] or 0) >= earlier["value"] else earlier
