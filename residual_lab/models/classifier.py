"""What models of images have in common: classes as their output, and accuracy.

Shapes: B images, C channels, H and W pixels, D width.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from residual_lab.models.model import Model


class Classifier(Model):
    """Images (B, C, H, W) to logits (B, classes).

    ``label_smoothing`` is that of the training loss; a loss in evaluation has none.
    """

    head: nn.Linear

    def __init__(self, classes: int, label_smoothing: float) -> None:
        super().__init__()
        self.classes, self.label_smoothing = classes, label_smoothing

    @property
    def measures(self) -> tuple[str, ...]:
        """Top-5 accuracy only where it can be less than 1."""
        return ("loss", "accuracy", *(("top5_accuracy",) if self.classes > 5 else ()))

    def forward(self, images_BCHW: Tensor) -> Tensor:
        logits: Tensor = self.head(self.hidden(images_BCHW))
        return logits

    def loss(self, images_BCHW: Tensor, targets: Tensor) -> Tensor:
        """Return the mean cross-entropy in nats per image.

        ``targets`` are classes (B,), or the share of each class (B, classes).
        """
        return self._cross_entropy(self(images_BCHW), targets)

    def evaluate(self, images_BCHW: Tensor, targets_B: Tensor) -> dict[str, Tensor]:
        """Return the loss, and the shares of images whose class is the first, or of the first 5."""
        logits = self(images_BCHW)
        found = {"loss": self._cross_entropy(logits, targets_B)}
        for name in self.measures[1:]:
            first = logits.topk(5 if name == "top5_accuracy" else 1, -1).indices
            right = (first == targets_B[:, None]).any(-1)
            found[name] = right.to(torch.float32).mean()
        return found

    def _cross_entropy(self, logits: Tensor, targets: Tensor) -> Tensor:
        smoothing = self.label_smoothing if self.training else 0.0
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        return F.cross_entropy(logits, targets, label_smoothing=smoothing)
