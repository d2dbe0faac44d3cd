"""A finished run, made ready to read text on one device of this machine."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from residual_lab.config.schema import Config
from residual_lab.costs.bench import torch_device
from residual_lab.costs.step import computing_in, module_dtype
from residual_lab.data.batches import Batch
from residual_lab.errors import LabError
from residual_lab.models import Decoder, Model
from residual_lab.run_directory import RunDirectory
from residual_lab.training.final import final_model
from residual_lab.training.hardware import prepare_processor, resolve_hardware


@dataclass(frozen=True)
class Trained:
    """The model is in evaluation mode on ``device``; ``config`` has this machine's hardware."""

    run: RunDirectory
    config: Config
    model: Model
    device: torch.device

    @classmethod
    def load(cls, path: str | Path) -> "Trained":
        """Load the run ``path`` onto this machine's accelerator, in the precision of the run.

        Raises LabError for what is no run, not finished, or without its final weights.
        """
        run = RunDirectory.open(path)
        if run.status != "finished":
            raise LabError(
                f"{path}: it is {run.status}; name a finished run, or finish it with residual-lab "
                "train"
            )
        config = resolve_hardware(_on_one_device(run.config))
        prepare_processor(config.hardware)
        device = torch_device(config)
        model = final_model(run, module_dtype(config.hardware.precision)).to(device).eval()
        return cls(run, config, model, device)

    @property
    def decoder(self) -> Decoder:
        """The model, of runs that read text. Raises LabError for others."""
        if not isinstance(self.model, Decoder):
            raise LabError(
                f"{self.run.path}: model.family={self.config.model.family} reads no text; name a "
                "run of a decoder"
            )
        return self.model

    def here(self, batch: Batch) -> Batch:
        """``batch`` on the device, vectors and images of it in the type of the weights."""
        dtype = module_dtype(self.config.hardware.precision)

        def move(part: Tensor) -> Tensor:
            return part.to(self.device, dtype if part.is_floating_point() else None)

        moved: Batch = tree_map(move, batch)
        return moved

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Compute in the run's precision and keep nothing for backward."""
        with torch.no_grad(), computing_in(self.config.hardware.precision, self.device):
            yield


def _on_one_device(config: Config) -> Config:
    here = {"accelerator": "auto", "devices": 1, "nodes": 1, "strategy": "auto", "accumulate": 1}
    hardware = config.hardware.model_copy(update=here)
    return config.model_copy(update={"hardware": hardware})
