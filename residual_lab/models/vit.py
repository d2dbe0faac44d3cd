"""A vision transformer: the decoder's layers, without the mask, over the patches of an image.

Shapes: B images, C channels, H and W pixels, T patches, D width.
"""

from functools import partial
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from residual_lab.config.models import ViTConfig
from residual_lab.models.attention import Context, build_norm
from residual_lab.models.classifier import Classifier
from residual_lab.models.decoder import TransformerLayer
from residual_lab.models.initialisation import initialise
from residual_lab.models.recompute import recompute

_STD_WITHIN_TWO = 0.87962566  # of N(0, 1) where |x| < 2


class ViT(Classifier):
    """Images (B, C, H, W) to logits (B, classes), as google-research/big_vision has it.

    Positions are fixed sines and cosines of both coordinates, the head reads the mean over
    patches, with ``rep_size`` through a layer with tanh. ViT-S/16 has 22,122,472 parameters.

    Paper: Beyer et al. 2022, Better plain ViT baselines for ImageNet-1k, arXiv 2205.01580; where
    it is silent the published code. Maps of the layers start Xavier uniform, the head at zero, the
    others from N(0, 1/fan in) within two standard deviations, biases at zero (in the code those of
    the MLPs from N(0, 1e-12)).
    """

    def __init__(
        self,
        config: ViTConfig,
        granularity: str,
        label_smoothing: float,
        *,
        separate_inputs: bool = False,
        pre_norm: bool = True,
        checkpoint_layers: bool = False,
    ) -> None:
        super().__init__(config.classes, label_smoothing)
        self.config, self.granularity = config, granularity
        self.checkpoint_layers = checkpoint_layers
        patch = config.patch_size
        self.patches = nn.Conv2d(config.channels, config.width, patch, stride=patch)
        self.layers = nn.ModuleList(
            TransformerLayer(config, separate_inputs=separate_inputs, pre_norm=pre_norm)
            for _ in range(config.layers)
        )
        self.norm = build_norm(config)
        size = config.rep_size or config.width
        self.representation = nn.Linear(config.width, size) if config.rep_size else None
        self.head = nn.Linear(size, config.classes)
        self._initialise()

    @property
    def units(self) -> list[nn.Module]:
        """The modules that the connection calls: layers or branches, in order."""
        if self.granularity == "layer":
            return list(self.layers)
        return [branch for layer in self.layers for branch in layer.children()]

    def hidden(self, images_BCHW: Tensor) -> Tensor:
        """Return what the head reads, (B, width) or (B, rep_size)."""
        x_BDHW = self.patches(images_BCHW)
        rows, columns = x_BDHW.shape[-2:]
        x_BTD = x_BDHW.flatten(2).mT.contiguous()  # as connections expect a stream
        # In the weights' type: under autocast a stream begins in float32, as from an embedding.
        x_BTD = x_BTD + positions(rows, columns, self.config.width, self.patches.weight)
        dropout = self.config.dropout
        x_BTD = F.dropout(x_BTD, dropout, self.training) if dropout else x_BTD
        units = [partial(unit, context=Context()) for unit in self.units]
        if self.checkpoint_layers and torch.is_grad_enabled():
            units = [partial(recompute, unit) for unit in units]
        mean_BD = self.norm(self.connection(x_BTD, units)).mean(1)
        return mean_BD if self.representation is None else torch.tanh(self.representation(mean_BD))

    def _initialise(self) -> None:
        initialise(self, self.config)
        for module in (self.patches, self.representation):
            if module is not None:
                std = module.weight[0].numel() ** -0.5 / _STD_WITHIN_TWO
                nn.init.trunc_normal_(module.weight, std=std, a=-2 * std, b=2 * std)
                nn.init.constant_(cast(Tensor, module.bias), 0.0)
        nn.init.zeros_(self.head.weight)


def positions(rows: int, columns: int, width: int, like: Tensor) -> Tensor:
    """Return the position of each patch, (rows · columns, width), in the type of ``like``.

    A quarter each are the sines and cosines of the column, then of the row, at frequencies from
    1 to 1/10,000 (MoCo v3, as in big_vision).
    """
    steps = torch.arange(width // 4, device=like.device, dtype=torch.float32)
    frequencies = 10_000.0 ** -(steps / max(1, width // 4 - 1))
    y, x = torch.meshgrid(
        torch.arange(rows, device=like.device, dtype=torch.float32),
        torch.arange(columns, device=like.device, dtype=torch.float32),
        indexing="ij",
    )
    angles = [coordinate.reshape(-1, 1) * frequencies for coordinate in (x, y)]
    return torch.cat([f(a) for a in angles for f in (torch.sin, torch.cos)], 1).to(like.dtype)
