"""Tiny runs: a decoder of two layers on a few hundred sentences."""

import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch

from residual_lab import compose
from residual_lab.run_directory import RunDirectory
from residual_lab.training.execution import execute
from residual_lab.training.recorder import Recorder
from residual_lab.training.stopping import StopSignals

WORDS = ["a", "and", "cat", "dog", "fish", "hen", "mat", "on", "ran", "sat", "sun", "the"]
TINY = [
    "data=text",
    "data.vocabulary=280",
    "data.sequence_length=16",
    "data.validation_fraction=0.2",
    "data.test_fraction=0.2",
    "data.workers=1",
    "model.layers=2",
    "model.width=16",
    "model.heads=2",
    "model.dropout=0.1",
    "optim.warmup_steps=2",
    "hardware=cpu",
    "budget.tokens=null",
    "budget.steps=8",
    "budget.batch_tokens=128",
    "evaluation.every_steps=4",
    "measure.warmup_steps=1",
    "measure.window_steps=2",
    "run.checkpoint_every_steps=3",
]


class Lab:
    """Makes tiny runs and trains them in this process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._numbers = count()
        text = folder / "text"
        text.mkdir()
        chance = random.Random(0)
        for number in range(60):
            words = [chance.choice(WORDS) for _ in range(120)]
            (text / f"{number}.txt").write_text(" ".join(words), encoding="utf-8")

    def run(self, *overrides: str) -> RunDirectory:
        """A new run directory; the same overrides twice give two."""
        paths = [
            f"data.path={self.folder / 'text'}",
            f"data.cache_dir={self.folder / 'cache'}",
            f"run.dir={self.folder / f'runs{next(self._numbers)}'}",
        ]
        if not any(override.startswith("residual=") for override in overrides):
            overrides = ("residual=laurel_rw+lr", "residual.rank=2", *overrides)
        return RunDirectory.create(compose([*TINY, *paths, *overrides]))

    def execute(self, run: RunDirectory, devices: int | None = None) -> int:
        return execute(run, devices=devices, first=True, signals=StopSignals(), console=None)

    def cut_off(self, run: RunDirectory, step: int) -> None:
        """Execute until the end of ``step``, where the power goes."""
        original = Recorder.on_train_batch_end

        def fall_over(recorder: Recorder, *arguments: Any) -> None:
            original(recorder, *arguments)
            if recorder.step == step:
                raise KeyError("power cut")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Recorder, "on_train_batch_end", fall_over)
            with pytest.raises(KeyError):
                self.execute(run)

    def trained(self, *overrides: str) -> RunDirectory:
        run = self.run(*overrides)
        assert self.execute(run) == 0
        return run


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    return Lab(tmp_path_factory.mktemp("lab"))


@pytest.fixture(scope="session")
def straight(lab: Lab) -> RunDirectory:
    """A run from beginning to end, with accumulation and dropout."""
    return lab.trained("hardware.accumulate=2")


@pytest.fixture(autouse=True)
def signal_handlers() -> Iterator[None]:
    """Put back what runs in this process change."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
    for number, handler in before.items():
        signal.signal(number, handler)


def start_python(*arguments: str, timeout: float = 240) -> subprocess.CompletedProcess[str]:
    """Run a module in a fresh process, as a terminal would; ends when all its processes have."""
    return subprocess.run(
        [sys.executable, "-m", *arguments],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        cwd=Path(__file__).parents[2],
    )


def final_weights(run: RunDirectory) -> dict[str, torch.Tensor]:
    weights: dict[str, torch.Tensor] = torch.load(
        run.checkpoints / "final.pt", weights_only=True, map_location="cpu"
    )
    return weights


def assert_same_weights(one: RunDirectory, other: RunDirectory) -> None:
    """Bit for bit."""
    first, second = final_weights(one), final_weights(other)
    assert first.keys() == second.keys()
    different = [name for name in first if not torch.equal(first[name], second[name])]
    assert not different
