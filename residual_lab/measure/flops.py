"""FLOPs of a training step, counted operation by operation, and the peak they are compared with."""

import torch
from torch.utils.flop_counter import FlopCounterMode

from residual_lab.config.schema import Config
from residual_lab.data.batches import example_batch, inputs_and_targets
from residual_lab.models import build_model

# Dense peaks in FLOP/s, without sparsity, by the name that the driver gives. Sources: NVIDIA's
# data sheets of A100 (nvidia-a100-datasheet), H100 (resources.nvidia.com/en-us-tensor-core), H200
# (hpc-datasheet-sc23-h200) and L4; Google Cloud's pages of TPU v4, v5e, v5p and v6e.
_A100 = {torch.bfloat16: 312e12, torch.float16: 312e12, torch.float32: 19.5e12}
_H100_SXM = {torch.bfloat16: 989.4e12, torch.float16: 989.4e12, torch.float32: 66.9e12}
PEAK_FLOPS_PER_S: dict[str, dict[torch.dtype, float]] = {
    "NVIDIA A100-SXM4-40GB": _A100,
    "NVIDIA A100-SXM4-80GB": _A100,
    "NVIDIA A100-PCIE-40GB": _A100,
    "NVIDIA A100 80GB PCIe": _A100,
    "NVIDIA H100 80GB HBM3": _H100_SXM,
    "NVIDIA H100 PCIe": {torch.bfloat16: 756e12, torch.float16: 756e12, torch.float32: 51.2e12},
    "NVIDIA H200": _H100_SXM,
    "NVIDIA L4": {torch.bfloat16: 121e12, torch.float16: 121e12, torch.float32: 30.3e12},
    "TPU v4": {torch.bfloat16: 275e12},
    "TPU v5e": {torch.bfloat16: 197e12},
    "TPU v5p": {torch.bfloat16: 459e12},
    "TPU v6e": {torch.bfloat16: 918e12},
}


def flop_counter() -> FlopCounterMode:
    """Torch's counter, which by itself passes over products that are added in place."""
    in_place = dict.fromkeys((torch.ops.aten.addmm_, torch.ops.aten.baddbmm_), _product)
    return FlopCounterMode(display=False, custom_mapping=in_place)


def _product(_: torch.Size, left: torch.Size, right: torch.Size, **__: object) -> int:
    """FLOPs of a (batch of) matrix product, from the shapes of the arguments of ``addmm_``."""
    return 2 * left.numel() * right[-1]


def flops_per_token(config: Config) -> float:
    """FLOPs of one token's forward and backward pass, a multiplication and an addition being two.

    Counted by torch's FlopCounterMode on the meta device for this very model, so a connection's
    own matrix products are in it; attention counts as full, not as causal. The recomputation of
    ``hardware.checkpoint_layers`` is left out: it is no work of the model's.
    """
    hardware = config.hardware.model_copy(update={"checkpoint_layers": False})
    with torch.device("meta"):
        model = build_model(config.model_copy(update={"hardware": hardware}))
        inputs, targets = inputs_and_targets(example_batch(config, 1))
    with flop_counter() as counter:
        model.loss(inputs, targets).backward()
    return counter.get_total_flops() / config.data.sequence_length


def peak_flops_per_s(device_name: str, precision: str) -> float | None:
    """The device's dense peak at the precision of its matrix products; None where unknown.

    ``precision`` is Lightning's name. float32 means float32: without TF32, as torch's default.
    """
    dtypes = {"bf16": torch.bfloat16, "16": torch.float16, "32": torch.float32}
    dtype = dtypes.get(precision.split("-")[0])
    if dtype is None or (dtype == torch.float32 and torch.backends.cuda.matmul.allow_tf32):
        return None
    return PEAK_FLOPS_PER_S.get(device_name, {}).get(dtype)


def model_flops_utilization(
    flops_per_token: float, tokens_per_s: float | None, peak: float | None, devices: int
) -> float | None:
    """MFU: the share of the devices' peak that the model's own FLOPs use; None where unknown."""
    if tokens_per_s is None or peak is None:
        return None
    return flops_per_token * tokens_per_s / (peak * devices)
