"""Composing hundreds of configurations, and a table of its own whose runs end at once."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from residual_lab import jobs
from residual_lab.cli import main
from residual_lab.config import Config
from residual_lab.config.composition import compose_unchecked, resolved, started_hydra
from residual_lab.config.validation import validate
from residual_lab.reproduce import reproduction
from tests.reproduce.fake_runs import FakeRuns
from tests.reproduce.own_table import TABLE, Reproduce, write

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


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeRuns:
    fake = FakeRuns()
    monkeypatch.setattr(jobs, "execute", fake)
    monkeypatch.chdir(tmp_path)
    return fake


@pytest.fixture
def reproduce(runs: FakeRuns, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Reproduce:
    """The command on a table of its own, without step times unless they are asked for.

    Pictures have tests of their own; to draw them takes most of the time.
    """
    write(tmp_path / "own" / "small.yaml", TABLE)
    monkeypatch.setattr(reproduction, "draw_rows", lambda *_: [])
    monkeypatch.setattr(reproduction, "draw_sensitivity", lambda *_: [])

    def call(*arguments: str) -> int:
        rounds = [] if any(a.startswith("rounds=") for a in arguments) else ["rounds=0"]
        out = [] if "only=estimate" in arguments else ["out=out"]
        return main(["reproduce", "own/small.yaml", *out, *rounds, *arguments])

    return call
