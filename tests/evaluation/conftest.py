"""The tiny runs of the tests of training."""

from tests.training.conftest import lab, signal_handlers, straight

__all__ = ["lab", "signal_handlers", "straight"]
