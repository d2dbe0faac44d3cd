"""Checkpoints: whole or not there, the newest only, and loaded without executing code."""

import os
import pickle
import secrets
import shutil
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

from residual_lab.errors import LabError
from residual_lab.training.recorder import Recorder
from residual_lab.training.stopping import Interrupted, StopSignals

FINAL = "final.pt"  # the trained weights alone: model.load_state_dict(torch.load(...))


class Checkpointing(pl.Callback):
    """Saves every ``every_steps`` optimizer steps, at the end, and when a signal asks to stop.

    Several processes ask each other about signals once in ``agree_steps`` only.
    """

    def __init__(
        self,
        folder: Path,
        recorder: Recorder,
        signals: StopSignals,
        every_steps: int,
        agree_steps: int,
    ) -> None:
        self.folder, self.recorder, self.signals = folder, recorder, signals
        self.every_steps, self.agree_steps = every_steps, agree_steps
        self._seen = 0

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._seen = trainer.global_step

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        step = trainer.global_step
        if step == self._seen:
            return
        self._seen = step
        ask = trainer.world_size == 1 or step % self.agree_steps == 0
        signum = self.signals.agreed(trainer) if ask else None
        if signum or step % self.every_steps == 0 or step == trainer.max_steps:
            self.recorder.end_window(trainer, pl_module)
            with self.recorder.paused():
                save(trainer, self.folder)
        if signum:
            raise Interrupted(signum)


def newest(folder: Path) -> Path | None:
    """The checkpoint of the latest step: a file, or of a sharded model a folder."""
    return max(folder.glob("step-*.ckpt"), default=None)


def step_of(checkpoint: Path | None) -> int:
    """The optimizer step after which ``checkpoint`` was written; 0 for None."""
    return int(checkpoint.stem.removeprefix("step-")) if checkpoint else 0


def save(trainer: pl.Trainer, folder: Path) -> None:
    """Write ``step-NNNNNNNN.ckpt`` and remove what it replaces; collective.

    The temporary name is random, so that a process left over from a killed run cannot write into
    this one's checkpoint.
    """
    path = folder / f"step-{trainer.global_step:08d}.ckpt"
    temporary = folder / f".{path.name}.{trainer.strategy.broadcast(secrets.token_hex(4))}"
    folder.mkdir(exist_ok=True)
    trainer.save_checkpoint(temporary, weights_only=False)
    if trainer.is_global_zero:
        _put_in_place(temporary, path)
        remove(folder, "*.ckpt*", but=path)
    trainer.strategy.barrier()


def save_final(trainer: pl.Trainer, model: nn.Module, folder: Path) -> None:
    """Write the whole weights, on CPU, to :data:`FINAL`; collective."""
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    weights = get_model_state_dict(model, options=options)
    if trainer.is_global_zero:
        folder.mkdir(exist_ok=True)
        temporary = folder / f".{FINAL}"
        torch.save(weights, temporary)
        _put_in_place(temporary, folder / FINAL)
    trainer.strategy.barrier()


def remove(folder: Path, pattern: str, but: Path | None = None) -> None:
    """Remove the checkpoints whose names match ``pattern``: ``*.ckpt*`` is all of them."""
    for path in folder.glob(pattern):
        if path == but:
            continue
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def remove_unfinished(folder: Path) -> None:
    """Remove what processes left that were killed while they wrote."""
    remove(folder, ".*")


def _put_in_place(temporary: Path, path: Path) -> None:
    """Rename, once all is on the disk."""
    files = [temporary] if temporary.is_file() else [p for p in temporary.iterdir() if p.is_file()]
    for file in files:
        with file.open("rb+") as opened:
            os.fsync(opened.fileno())
    if path.is_dir():
        shutil.rmtree(path)
    temporary.replace(path)


# What torch.distributed.checkpoint's metadata consists of.
_METADATA_GLOBALS = {
    ("collections", "OrderedDict"),
    ("pathlib", "PosixPath"),
    ("torch", "Size"),
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
    ("torch.distributed.checkpoint.filesystem", "_StoragePrefix"),
    ("torch.distributed.checkpoint.metadata", "BytesStorageMetadata"),
    ("torch.distributed.checkpoint.metadata", "ChunkStorageMetadata"),
    ("torch.distributed.checkpoint.metadata", "Metadata"),
    ("torch.distributed.checkpoint.metadata", "MetadataIndex"),
    ("torch.distributed.checkpoint.metadata", "StorageMeta"),
    ("torch.distributed.checkpoint.metadata", "TensorProperties"),
    ("torch.distributed.checkpoint.metadata", "TensorStorageMetadata"),
    ("torch.distributed.checkpoint.metadata", "_MEM_FORMAT_ENCODING"),
    ("torch.serialization", "_get_layout"),
}


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _METADATA_GLOBALS or (
            module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)
        ):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"{module}.{name}")


def check(checkpoint: Path) -> None:
    """Refuse what is damaged, and a sharded checkpoint whose metadata would run code.

    Of a single file the structure is read with ``weights_only=True``, its tensors are not; of a
    sharded one torch would unpickle the metadata as it is. Raises LabError.
    """
    try:
        if checkpoint.is_dir():
            with (checkpoint / ".metadata").open("rb") as file:
                _PlainUnpickler(file).load()
        else:
            torch.load(checkpoint, map_location="meta", weights_only=True, mmap=True)
    except (pickle.UnpicklingError, OSError, RuntimeError, EOFError, LookupError) as error:
        reason = str(error).partition("\n")[0].rstrip(".")
        raise LabError(
            f"{checkpoint}: not a checkpoint of this program, or damaged ({reason}); remove it and "
            "the run starts anew"
        ) from None
