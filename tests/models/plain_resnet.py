"""ResNet-50 as a reference: the paper's layers written down one after the other, channels first.

The names of its parameters are torchvision's, so the weights of either fit the other.
"""

import torch
from torch import Tensor, nn


class Bottleneck(nn.Module):
    def __init__(self, width: int, inner: int, stride: int) -> None:
        super().__init__()
        out = 4 * inner
        self.conv1 = nn.Conv2d(width, inner, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(inner)
        self.conv2 = nn.Conv2d(inner, inner, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(inner)
        self.conv3 = nn.Conv2d(inner, out, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(out)
        if stride != 1 or width != out:
            self.downsample = nn.Sequential(
                nn.Conv2d(width, out, 1, stride, bias=False), nn.BatchNorm2d(out)
            )

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.bn1(self.conv1(x)))
        y = torch.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        return torch.relu(y + (self.downsample(x) if hasattr(self, "downsample") else x))


class PlainResNet50(nn.Module):
    """He et al. 2015, table 1, with the stride in the 3×3 convolution."""

    def __init__(self, blocks: tuple[int, ...] = (3, 4, 6, 3)) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        width = 64
        for stage, count in enumerate(blocks):
            inner, made = 64 * 2**stage, []
            for block in range(count):
                made.append(Bottleneck(width, inner, 2 if stage and not block else 1))
                width = 4 * inner
            setattr(self, f"layer{stage + 1}", nn.Sequential(*made))
        self.stages = len(blocks)
        self.fc = nn.Linear(width, 1000)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.bn1(self.conv1(x)))
        x = torch.max_pool2d(x, 3, 2, 1)
        for stage in range(self.stages):
            x = getattr(self, f"layer{stage + 1}")(x)
        return self.fc(x.mean((2, 3)))


def in_torchvision_names(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """The weights of this package's ResNet-50 under the names of the reference."""
    renamed = {}
    for name, weight in state.items():
        new = name.replace("stem_norm.", "bn1.").replace("stem.", "conv1.").replace("head.", "fc.")
        parts = new.split(".")
        if parts[0] == "stages":
            stage, inside = int(parts[1]) + 1, parts[3:]
            number = 0 if parts[2] == "transition" else int(inside.pop(0)) + 1
            if inside[0] == "projection":
                inside[0] = "downsample"
            else:
                inside = inside[1:] if inside[0] == "block" else inside
                kind = {"convolutions": "conv", "norms": "bn"}[inside[0]]
                inside = [f"{kind}{int(inside[1]) + 1}", *inside[2:]]
            new = ".".join([f"layer{stage}", str(number), *inside])
        renamed[new] = weight
    return renamed
