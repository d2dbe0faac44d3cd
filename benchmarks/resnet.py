"""Our ResNet-50 against a plain one, and LAuReL's RW against ours.

    python benchmarks/resnet.py [batch=N] [rounds=N] [threads=N] [clock=cpu] [KEY=VALUE...]

The plain one is the paper's layers one after the other, with torchvision's names and strides and
our weights, once in torch's default memory format and once with its channels last, as ours.
"""

import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.reference import against_references
from residual_lab.cli import in_one_line
from residual_lab.costs.bench import Subject
from tests.models.plain_resnet import PlainResNet50, in_torchvision_names

SHAPE = ("model=resnet50", "data=imagenet", "optim=resnet", "hardware=cpu")
OURS = {"plain": "plain", "laurel_rw": "laurel_rw"}
LIMITS = {
    ("plain", "reference"): 1.03,
    ("plain", "reference, channels last"): 1.03,
    ("laurel_rw", "plain"): 1.02,
}


class Reference(PlainResNet50):
    def __init__(self, memory_format: torch.memory_format) -> None:
        super().__init__()
        self.memory_format = memory_format

    def loss(self, images_BCHW: Tensor, targets_B: Tensor) -> Tensor:
        images_BCHW = images_BCHW.contiguous(memory_format=self.memory_format)
        return F.cross_entropy(self(images_BCHW), targets_B)


def references(subject: Subject) -> Mapping[str, nn.Module]:
    formats = {
        "reference": torch.contiguous_format,
        "reference, channels last": torch.channels_last,
    }
    made = {name: Reference(memory_format) for name, memory_format in formats.items()}
    weights = in_torchvision_names(subject.model.state_dict())
    for reference in made.values():
        reference.load_state_dict(weights)
        reference.to(memory_format=reference.memory_format)  # type: ignore[call-overload]
    return made


if __name__ == "__main__":
    main = partial(against_references, references, OURS, LIMITS, batch=8, rounds=12)
    sys.exit(in_one_line(lambda arguments: main([*SHAPE, *arguments]), sys.argv[1:]))
