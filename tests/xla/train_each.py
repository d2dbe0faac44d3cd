"""Train every connection through Lightning's TPU path, on XLA's CPU backend.

Run by ``make test-xla`` in an environment of its own: torch_xla 2.9 is the last release and wants
torch 2.9, and the two weigh several GB. What differs from a TPU: the device is a CPU, and
Lightning is told that it is there.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

os.environ |= {
    "PJRT_DEVICE": "CPU",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v6e-1",
    "TPU_WORKER_ID": "0",
}

from lightning.pytorch.accelerators import XLAAccelerator

import residual_lab
from residual_lab import compose
from residual_lab.config import conf_directory
from residual_lab.run import main
from residual_lab.run_directory import RunDirectory

XLAAccelerator.is_available = staticmethod(lambda: True)
XLAAccelerator.auto_device_count = staticmethod(lambda: 1)

TINY = [
    "hardware=tpu",
    "hardware.devices=1",
    "model.layers=6",
    "model.width=24",
    "model.heads=2",
    "data=text",
    "data.vocabulary=300",
    "data.sequence_length=16",
    "data.validation_fraction=0.2",
    "data.test_fraction=0.2",
    "data.validation_tokens=160",
    "data.test_tokens=160",
    "budget.tokens=null",
    "budget.steps=4",
    "budget.batch_tokens=64",
    "evaluation.every_steps=2",
    "evaluation.batch_sequences=2",
    "measure.warmup_steps=1",
    "measure.window_steps=1",
]


def write_corpus(folder: str) -> None:
    """Make documents of this package's own source files."""
    text = Path(folder, "text")
    text.mkdir()
    sources = sorted(Path(residual_lab.__file__).parent.rglob("*.py"))
    for number, source in enumerate(sources):
        (text / f"{number}.txt").write_text(source.read_text(encoding="utf-8"), encoding="utf-8")


def train(name: str, folder: str) -> int:
    """Train one connection for four steps; return the exit status of the run."""
    config = compose(
        [
            *TINY,
            f"residual={name}",
            f"data.path={folder}/text",
            f"data.cache_dir={folder}/cache",
            f"run.dir={folder}/runs",
        ]
    )
    run = RunDirectory.create(config)
    status = main([str(run.path)])
    result = run.result or {}
    print(f"{name}: status {status}, {result.get('device')}, loss {result.get('val_loss')}")
    if status:
        print(run.log.read_text(encoding="utf-8"))
    return status


# What XLA compiles stays mapped: some twenty connections in one process end at the system's limit.
ALONE = "import sys; from tests.xla.train_each import train; sys.exit(train(*sys.argv[1:]))"

if __name__ == "__main__":
    names = sys.argv[1:] or sorted(
        path.stem for path in (conf_directory() / "residual").glob("*.yaml")
    )
    with tempfile.TemporaryDirectory() as temporary:
        write_corpus(temporary)
        wrong = [
            name
            for name in names
            if subprocess.run([sys.executable, "-c", ALONE, name, temporary]).returncode
        ]
    print(f"{len(names) - len(wrong)} passed, {len(wrong)} failed: {', '.join(wrong) or 'none'}")
    sys.exit(1 if wrong else 0)
