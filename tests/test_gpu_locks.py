"""One GPU for each job of a sweep on a machine with several."""

from pathlib import Path

import pytest

from residual_lab.config import compose
from residual_lab.gpu_locks import one_gpu


def test_one_gpu_for_each_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """F9: jobs side by side hold different GPUs, and give them back."""

    def seen(environment: dict[str, str] | None) -> str | None:
        return None if environment is None else environment["CUDA_VISIBLE_DEVICES"]

    hardware = compose(["hardware=auto"]).hardware
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,GPU-5")
    with one_gpu(hardware, tmp_path) as first, one_gpu(hardware, tmp_path) as second:
        assert (seen(first), seen(second)) == ("3", "GPU-5")
        with one_gpu(hardware, tmp_path) as third:
            assert seen(third) == "3"
    with one_gpu(hardware, tmp_path) as again:
        assert seen(again) == "3"
    for overrides in (["hardware=cpu"], ["hardware.devices=2"], ["hardware.devices=auto"]):
        with one_gpu(compose(overrides).hardware, tmp_path) as environment:
            assert environment is None
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    with one_gpu(hardware, tmp_path) as environment:
        assert environment is None
