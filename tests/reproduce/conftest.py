"""Composing hundreds of configurations."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from residual_lab.config import Config
from residual_lab.config.composition import compose_unchecked, resolved, started_hydra
from residual_lab.config.validation import validate

Compose = Callable[[Sequence[str]], Config]


@pytest.fixture(scope="session")
def composed() -> Compose:
    """``compose``, several times as fast: equal choices of groups are composed once.

    test_composing_is_what_a_run_does holds it against the real one.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from omegaconf import OmegaConf

    parser = OverridesParser.create()
    bases: dict[tuple[str, ...], Any] = {}
    known: dict[tuple[str, ...], Config] = {}

    def compose(overrides: Sequence[str]) -> Config:
        key = tuple(overrides)
        if key not in known:
            groups = tuple(o for o in key if "." not in o.partition("=")[0])
            if groups not in bases:
                with started_hydra() as hydra:
                    bases[groups] = compose_unchecked(hydra, groups)
            config = bases[groups].copy()  # unknown keys are refused here as there
            for override in parser.parse_overrides([o for o in key if o not in groups]):
                OmegaConf.update(config, override.key_or_group, override.value())
            known[key] = validate(resolved(config))
        return known[key]

    return compose
