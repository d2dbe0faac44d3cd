"""The typed configuration and how it is composed."""

from residual_lab.config.composition import compose, conf_directory
from residual_lab.config.schema import Config

__all__ = ["Config", "compose", "conf_directory"]
