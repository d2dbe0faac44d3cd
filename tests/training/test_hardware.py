"""From hardware.* to Lightning, and what is refused before any work."""

import mmap
import os
import platform
import resource
from collections.abc import Sequence

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.plugins.environments import (
    LightningEnvironment,
    SLURMEnvironment,
    TorchElasticEnvironment,
)
from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy

from residual_lab import compose
from residual_lab.config.schema import Config
from residual_lab.errors import ConfigError
from residual_lab.run import process_rank
from residual_lab.training.hardware import (
    cluster_environment,
    prepare_processor,
    resolve_hardware,
    trainer_options,
)

LAUNCHERS = (
    *("RANK", "LOCAL_RANK", "NODE_RANK", "WORLD_SIZE", "TORCHELASTIC_RUN_ID"),
    *("SLURM_NTASKS", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_JOB_NAME"),
    "SLURM_NTASKS_PER_NODE",
)


@pytest.fixture(autouse=True)
def nobody_launched_us(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in LAUNCHERS:
        monkeypatch.delenv(name, raising=False)


def config(*overrides: str) -> Config:
    return compose(["hardware=cpu", "budget.batch_tokens=4096", *overrides])


def torchrun(monkeypatch: pytest.MonkeyPatch, rank: int, world: int) -> None:
    variables = {"TORCHELASTIC_RUN_ID": "x", "RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world}
    for name, value in variables.items():
        monkeypatch.setenv(name, str(value))


def slurm(monkeypatch: pytest.MonkeyPatch, rank: int, tasks: int) -> None:
    variables = {"SLURM_NTASKS": tasks, "SLURM_PROCID": rank, "SLURM_LOCALID": rank}
    variables |= {"SLURM_NODEID": 0, "SLURM_NTASKS_PER_NODE": tasks}
    monkeypatch.setenv("SLURM_JOB_NAME", "lab")
    for name, value in variables.items():
        monkeypatch.setenv(name, str(value))


def test_auto_is_resolved() -> None:
    hardware = resolve_hardware(config("hardware.accelerator=auto", "hardware.devices=auto"))
    expected = "gpu" if torch.cuda.is_available() else "cpu"
    assert hardware.hardware.accelerator == expected
    assert isinstance(hardware.hardware.devices, int)
    assert hardware.hardware.precision in ("32-true", "bf16-mixed")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("name", ["gpu", "ddp", "fsdp", "tpu"])
def test_hardware_that_is_not_there_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=r"hardware.accelerator=\w+: there is none here"):
        resolve_hardware(compose([f"hardware={name}"]))


def test_a_batch_that_devices_cannot_share_is_refused() -> None:
    """4096 tokens are 16 sequences of 256."""
    with pytest.raises(ConfigError, match=r"16 sequences .* accumulate = 6"):
        resolve_hardware(config("hardware.devices=2"), devices=6)


@pytest.mark.parametrize("launch", [torchrun, slurm])
def test_another_number_of_processes_than_asked_for_is_refused(
    launch: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F10: it neither hangs nor goes on with fewer."""
    launch(monkeypatch, 0, 4)  # type: ignore[operator]
    with pytest.raises(ConfigError, match="= 2, but 4 processes were started"):
        resolve_hardware(config("hardware=cpu_ddp"))
    resolved = resolve_hardware(config("hardware=cpu_ddp"), devices=4)
    assert resolved.hardware.devices == 4


def test_several_hosts_that_nobody_starts_are_refused() -> None:
    """F10: Lightning would start this host's processes, and they wait for those of the others."""
    with pytest.raises(ConfigError, match=r"hardware\.nodes=2: .* start the run with torchrun"):
        resolve_hardware(config("hardware=cpu_ddp", "hardware.nodes=2"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("hardware=cpu", "hardware.precision=16-mixed"), "accelerator=cpu has 32-true, 64-true"),
        (
            ("hardware=cpu_fsdp", "hardware.precision=64-true"),
            "fsdp has 32-true, bf16-mixed, ",
        ),
        (("hardware=cpu_fsdp", "hardware.precision=16-mixed"), "fsdp has 32-true, bf16-mixed"),
    ],
)
def test_a_precision_that_is_not_there_is_refused(options: Sequence[str], message: str) -> None:
    """Lightning would take another for the one, and raise for the others."""
    with pytest.raises(ConfigError, match=message):
        resolve_hardware(config(*options))


def test_every_precision_of_a_processor_is_one_that_lightning_takes_as_it_is() -> None:
    for precision in ("32-true", "64-true", "bf16-mixed", "bf16-true"):
        hardware = resolve_hardware(config("hardware=cpu", f"hardware.precision={precision}"))
        trainer = pl.Trainer(**trainer_options(hardware.hardware), logger=False)
        assert trainer.precision == precision


def test_tasks_that_are_not_counted_by_node_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lightning cannot tell then which of them share a machine."""
    slurm(monkeypatch, 0, 2)
    monkeypatch.delenv("SLURM_NTASKS_PER_NODE")
    with pytest.raises(ConfigError, match="--ntasks-per-node=2; it is unset"):
        resolve_hardware(config("hardware=cpu_ddp"))


def test_who_starts_the_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(cluster_environment(), LightningEnvironment)
    with monkeypatch.context() as patch:
        slurm(patch, 0, 1)  # an allocation of one task: we start our processes ourselves
        assert isinstance(cluster_environment(), LightningEnvironment)
    with monkeypatch.context() as patch:
        slurm(patch, 0, 2)
        environment = cluster_environment()
        assert isinstance(environment, SLURMEnvironment)
        assert not environment.auto_requeue
    torchrun(monkeypatch, 0, 2)
    assert isinstance(cluster_environment(), TorchElasticEnvironment)


def test_one_process_keeps_the_run_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    assert process_rank() == 0
    for launch in (torchrun, slurm):
        for rank in (0, 1):
            with monkeypatch.context() as patch:
                launch(patch, rank, 2)
                assert process_rank() == rank
    with monkeypatch.context() as patch:
        patch.setenv("LOCAL_RANK", "1")  # the second process that Lightning starts
        slurm(patch, 0, 1)
        assert process_rank() == 1


def test_every_strategy() -> None:
    """DDP for several devices, FSDP2 when asked for, none for one."""
    options = {
        name: trainer_options(resolve_hardware(config(f"hardware={name}")).hardware)
        for name in ("cpu", "cpu_ddp", "cpu_fsdp")
    }
    assert options["cpu"]["strategy"] == "auto"
    assert isinstance(options["cpu_ddp"]["strategy"], DDPStrategy)
    assert options["cpu_ddp"]["strategy"].process_group_backend == "gloo"
    assert isinstance(options["cpu_fsdp"]["strategy"], ModelParallelStrategy)
    two = resolve_hardware(config("hardware.devices=2")).hardware
    assert isinstance(trainer_options(two)["strategy"], DDPStrategy)


def test_processes_share_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    cores = len(os.sched_getaffinity(0))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    prepare_processor(resolve_hardware(config("hardware=cpu_ddp")).hardware)
    assert torch.get_num_threads() == max(1, cores // 2)
    prepare_processor(resolve_hardware(config("hardware.threads=3")).hardware)
    assert torch.get_num_threads() == 3
    for value, threads in (("2", 2), ("4,2", 4), ("", cores), ("many", cores)):
        monkeypatch.setenv("OMP_NUM_THREADS", value)
        prepare_processor(resolve_hardware(config("hardware=cpu")).hardware)
        assert torch.get_num_threads() == threads


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="it is glibc's malloc that is set")
def test_freed_memory_is_used_again() -> None:
    """Blocks above glibc's 32 MB limit would be mapped, and each page cleared, every time."""
    prepare_processor(resolve_hardware(config("hardware=cpu")).hardware)

    def page_faults() -> int:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for size in (2**24, 2**23, 2**24):
            torch.ones(size)
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

    for _ in range(6):  # until the heap has a free block of each size
        found = page_faults()
    assert found < 2**24 * 4 / mmap.PAGESIZE / 100
