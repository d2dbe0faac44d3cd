"""Peak memory against sums by hand."""

import pytest
import torch
from torch import nn

from residual_lab.measure.memory import LiveTensors, PeakMemory, larger, peak_memory

CPU = torch.device("cpu")
MIB = 2**20


class Products(nn.Module):
    """y = x·w for each weight in turn: every product keeps its input for backward."""

    def __init__(self, depth: int, size: int) -> None:
        super().__init__()
        self.weights = nn.ParameterList(torch.ones(size) for _ in range(depth))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for weight in self.weights:
            x = x * weight
        return x


def peak_of_step(depth: int, size: int) -> int:
    model = Products(depth, size)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    meter = LiveTensors()
    for warm in (True, False):
        if not warm:
            meter.begin(model, optimizer)
        model(torch.ones(size)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    meter.end_step()
    return meter.peaks["value"]


def test_the_peak_is_that_of_live_tensors() -> None:
    """Of n tensors of 1 MiB: n weights; input and n products at the end of forward; then each
    backward step has a gradient of x and one of w more, and one activation less."""
    depth = 6
    peak = peak_of_step(depth, MIB // 4) / MIB
    forward = depth + 1 + depth
    assert forward <= peak <= forward + 3


def test_the_order_of_measurements_changes_nothing() -> None:
    """F19: big then small, and small then big."""
    big, small = (12, MIB // 4), (2, MIB // 8)
    first = [peak_of_step(*big), peak_of_step(*small)]
    second = [peak_of_step(*small), peak_of_step(*big)]
    assert first == second[::-1]
    assert first[0] > 5 * first[1]


def test_nothing_is_tracked_after_the_step() -> None:
    """The meter ends with its step: later steps run at full speed and unseen."""
    meter = LiveTensors()
    model = Products(1, 8)
    meter.begin(model, torch.optim.SGD(model.parameters(), lr=0.0))
    model(torch.ones(8)).sum().backward()
    meter.end_step()
    peak = meter.peaks["value"]
    torch.ones(MIB)
    meter.end_step()
    assert meter.peaks["value"] == peak


def test_what_has_no_means_of_measuring_says_so() -> None:
    assert isinstance(peak_memory(CPU, compiled=False), LiveTensors)
    for meter in (peak_memory(CPU, compiled=True), peak_memory(torch.device("meta"), False)):
        assert type(meter) is PeakMemory
        assert meter.kind == "not measured"
        assert meter.peaks == {}


def test_a_resumed_run_keeps_the_larger_peak_of_one_kind() -> None:
    small, big = {"kind": "a", "value": 1}, {"kind": "a", "value": 2}
    assert larger(small, big) == larger(big, small) == big
    assert larger({"kind": "a", "value": None}, big) == big
    assert larger(small, None) == small
    assert larger(small, {"kind": "b", "value": 5}) == small


@pytest.mark.gpu
def test_cuda_peaks_leave_out_what_is_not_training() -> None:
    device = torch.device("cuda")
    meter = peak_memory(device, compiled=False)
    model = nn.Linear(4, 4).to(device)
    torch.empty(64 * MIB, device=device)
    meter.begin(model, torch.optim.SGD(model.parameters(), lr=0.0))
    kept = torch.empty(8 * MIB, device=device)
    meter.pause()
    torch.empty(32 * MIB, device=device)
    meter.resume()
    meter.pause()
    assert kept.numel() * 4 <= meter.peaks["value"] < 64 * MIB
    assert meter.peaks["reserved"] >= meter.peaks["value"]
