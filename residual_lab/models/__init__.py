"""Models: a decoder by options."""

import torch

from residual_lab.config.schema import Config
from residual_lab.models.decoder import Decoder
from residual_lab.models.initialisation import initialise, scale_initial_weights
from residual_lab.residuals import build_connection, find_connection
from residual_lab.seeds import stream_seed

__all__ = ["Decoder", "build_model"]


def build_model(config: Config) -> Decoder:
    """Build the model that ``config`` describes, with its initial weights.

    Base weights and the connection's weights come from streams of their own and torch's global
    generator is left as it was, so the same seed gives the same base weights whatever the
    connection adds. Under ``torch.device("meta")`` nothing is allocated.
    """
    kind = find_connection(config.residual.connection)
    with torch.random.fork_rng():
        torch.manual_seed(stream_seed(config.seed, "base weights"))
        model = Decoder(
            config.model,
            config.residual.granularity,
            separate_inputs=kind.separate_inputs,
            pre_norm=kind.pre_norm,
            checkpoint_layers=config.hardware.checkpoint_layers,
        )
        initialise(model, config.model)
        torch.manual_seed(stream_seed(config.seed, "connection weights"))
        model.connection = build_connection(
            config.residual.connection, model.depth, config.model.width, config.residual.options
        )
        scale_initial_weights(model, model.connection.initial_gains)
    return model
