"""FLOPs against sums by hand, and MFU only where the peak is known."""

import sys
from types import SimpleNamespace

import pytest
import torch

from residual_lab import build_model, compose
from residual_lab.config.schema import Config
from residual_lab.measure.environment import device_name
from residual_lab.measure.flops import (
    flop_counter,
    flops_per_token,
    model_flops_utilization,
    peak_flops_per_s,
)
from residual_lab.measure.parameters import count_parameters

WIDTH, LENGTH, LAYERS, VOCABULARY = 32, 16, 3, 300


def config(*overrides: str) -> Config:
    return compose(
        [
            "residual=plain",
            f"model.width={WIDTH}",
            f"model.layers={LAYERS}",
            "model.heads=4",
            f"data.vocabulary={VOCABULARY}",
            f"data.sequence_length={LENGTH}",
            *overrides,
        ]
    )


def test_a_plain_decoder_is_6_flops_a_weight_and_12_a_score() -> None:
    """Forward: 2 FLOPs a weight (12·D² a layer, and the head) and 4·T·D for scores and values.

    Backward is twice that: a gradient for each of the two factors.
    """
    forward = LAYERS * (2 * 12 * WIDTH**2 + 4 * LENGTH * WIDTH) + 2 * VOCABULARY * WIDTH
    assert flops_per_token(config()) == 3 * forward


def test_a_connection_is_counted_with_its_own_products() -> None:
    """F23: LAuReL-LR of rank r adds two maps of r·D weights to each layer, 6 FLOPs each."""
    rank = 4
    low_rank = flops_per_token(config("residual=laurel_lr", f"residual.rank={rank}"))
    assert low_rank - flops_per_token(config()) == LAYERS * 6 * 2 * rank * WIDTH


def test_recomputation_and_compilation_are_no_work_of_the_model() -> None:
    assert flops_per_token(config("hardware.checkpoint_layers=true")) == flops_per_token(config())


def test_the_size_of_a_real_model_costs_no_memory() -> None:
    """157M parameters on the meta device; about six FLOPs a parameter a token, and attention."""
    large = compose(["model=nanodo_157m", "data.sequence_length=512"])
    assert 6 < flops_per_token(large) / 157_204_992 < 7


@pytest.mark.parametrize("device", ["AMD EPYC", "NVIDIA GeForce 9999", "nvidia h200", ""])
def test_an_unknown_device_has_no_peak(device: str) -> None:
    """F23: no default, and no match on part of a name."""
    assert peak_flops_per_s(device, "bf16-mixed") is None
    assert model_flops_utilization(1e9, 1e3, None, devices=1) is None


def test_peaks_are_dense_and_those_of_the_precision() -> None:
    """NVIDIA's H200 sheet prints 1,979 TFLOP/s with sparsity, 989 without."""
    assert peak_flops_per_s("NVIDIA H200", "bf16-mixed") == pytest.approx(989.4e12)
    assert peak_flops_per_s("NVIDIA H200", "32-true") == pytest.approx(66.9e12)
    assert peak_flops_per_s("NVIDIA A100-SXM4-80GB", "16-mixed") == 312e12
    assert peak_flops_per_s("TPU v5e", "32-true") is None
    assert peak_flops_per_s("NVIDIA H200", "64-true") is None


@pytest.mark.parametrize(
    ("backend", "kind", "name"),
    [
        ("TPU", "v6e", "TPU v6e"),
        ("TPU", "v5litepod", "TPU v5e"),
        ("TPU", "v4", "TPU v4"),
        ("CPU", "", "XLA on CPU"),
    ],
)
def test_a_tpu_is_named_as_its_peak_is(
    backend: str, kind: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """v5litepod is what the type of accelerator calls v5e."""
    runtime = SimpleNamespace(device_type=lambda: backend)
    monkeypatch.setitem(sys.modules, "torch_xla", SimpleNamespace(runtime=runtime))
    metadata = SimpleNamespace(get_tpu_type=lambda: kind)
    monkeypatch.setitem(sys.modules, "torch_xla._internal.tpu", metadata)
    assert device_name(torch.device("xla")) == name
    assert (peak_flops_per_s(name, "bf16-true") is not None) == (backend == "TPU")


def test_mfu_is_the_share_of_all_devices_peaks() -> None:
    assert model_flops_utilization(1e9, 1e5, 1e15, devices=2) == pytest.approx(0.05)
    assert model_flops_utilization(1e9, None, 1e15, devices=2) is None


def test_parameters_are_counted_once_and_by_part() -> None:
    """Tied head; RW has a pair of scalars for each of three layers."""
    counts = count_parameters(build_model(config("residual=laurel_rw", "model.tied_head=true")))
    norms = LAYERS * 2 * WIDTH + WIDTH
    base = VOCABULARY * WIDTH + LAYERS * 12 * WIDTH**2 + norms
    assert counts == {"params": base + 2 * LAYERS, "params_connection": 2 * LAYERS}


def test_products_that_are_added_in_place_count_too() -> None:
    total, left, right = torch.zeros(3, 5), torch.ones(3, 4), torch.ones(4, 5)
    with flop_counter() as counter:
        total.addmm_(left, right)
        torch.zeros(2, 3, 5).baddbmm_(left.expand(2, 3, 4), right.expand(2, 4, 5))
    assert counter.get_total_flops() == 2 * 3 * 4 * 5 * (1 + 2)
