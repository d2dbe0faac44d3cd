"""Models by options: a decoder, and the linear layers of a toy."""

import torch

from residual_lab.config.models import LowRankLinearConfig
from residual_lab.config.schema import Config
from residual_lab.models.decoder import Decoder
from residual_lab.models.initialisation import initialise, scale_initial_weights
from residual_lab.models.low_rank_linear import LowRankLinear
from residual_lab.models.model import Model
from residual_lab.residuals import Connection, build_connection, find_connection
from residual_lab.seeds import stream_seed

__all__ = ["Decoder", "LowRankLinear", "Model", "build_model"]


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
        model.connection = build_connection(
            config.residual.connection, model.depth, config.model.width, config.residual.options
        )
        scale_initial_weights(model, model.connection.initial_gains)
    return model


def _without_connection(config: Config, kind: type[Connection]) -> Model:
    recomputed = config.hardware.checkpoint_layers
    if isinstance(config.model, LowRankLinearConfig):
        return LowRankLinear(config.model, checkpoint_layers=recomputed)
    model = Decoder(
        config.model,
        config.residual.granularity,
        separate_inputs=kind.separate_inputs,
        pre_norm=kind.pre_norm,
        checkpoint_layers=recomputed,
    )
    initialise(model, config.model)
    return model
