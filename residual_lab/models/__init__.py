"""Models by options: a decoder, networks for images, and the linear layers of a toy."""

import torch

from residual_lab.config.conflicts import options_of
from residual_lab.config.data import ImageDataConfig
from residual_lab.config.models import LowRankLinearConfig, ResNetConfig, ViTConfig, stacks
from residual_lab.config.schema import Config
from residual_lab.models.decoder import Decoder
from residual_lab.models.initialisation import initialise, scale_initial_weights
from residual_lab.models.low_rank_linear import LowRankLinear
from residual_lab.models.model import Model
from residual_lab.models.resnet import ResNet
from residual_lab.models.vit import ViT
from residual_lab.residuals import Connection, build_connection, find_connection
from residual_lab.seeds import stream_seed

__all__ = ["Decoder", "LowRankLinear", "Model", "ResNet", "ViT", "build_model"]


def build_model(config: Config) -> Model:
    """Build the model that ``config`` describes, with its initial weights.

    ``model.family`` tells its class. Base weights and the connection's weights come from streams
    of their own and torch's global generator is left as it was, so the same seed gives the same
    base weights whatever the connection adds. Under ``torch.device("meta")`` nothing is allocated.
    """
    kind = find_connection(config.residual.connection)
    with torch.random.fork_rng():
        torch.manual_seed(stream_seed(config.seed, "base weights"))
        model = _without_connection(config, kind)
        torch.manual_seed(stream_seed(config.seed, "connection weights"))
        residual, options = config.residual, options_of(config.residual)
        model.connect(
            [
                build_connection(residual.connection, depth, width, options)
                for depth, width in stacks(config.model, residual.granularity)
            ]
        )
        scale_initial_weights(model, model.connection.initial_gains)
    return model


def _without_connection(config: Config, kind: type[Connection]) -> Model:
    recomputed = config.hardware.checkpoint_layers
    if isinstance(config.model, LowRankLinearConfig):
        return LowRankLinear(config.model, checkpoint_layers=recomputed)
    smoothing = config.data.label_smoothing if isinstance(config.data, ImageDataConfig) else 0.0
    if isinstance(config.model, ResNetConfig):
        return ResNet(config.model, smoothing, checkpoint_layers=recomputed)
    granularity = config.residual.granularity
    inputs = {"separate_inputs": kind.separate_inputs, "pre_norm": kind.pre_norm}
    if isinstance(config.model, ViTConfig):
        return ViT(config.model, granularity, smoothing, checkpoint_layers=recomputed, **inputs)
    model = Decoder(config.model, granularity, checkpoint_layers=recomputed, **inputs)
    initialise(model, config.model)
    return model
