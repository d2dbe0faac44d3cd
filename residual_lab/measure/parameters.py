"""Parameter counts."""

from torch import nn


def count_parameters(model: nn.Module) -> dict[str, int]:
    """``params``: all of a model's, shared ones once; ``params_connection``: the connection's."""
    counts = {name: parameter.numel() for name, parameter in model.named_parameters()}
    connection = sum(n for name, n in counts.items() if name.startswith("connection."))
    return {"params": sum(counts.values()), "params_connection": connection}
