"""Runs on images: accuracy in the files and tables, resuming, costs, and reading back."""

from pathlib import Path

import pytest
import torch

from residual_lab.config import compose
from residual_lab.costs.bench import bench
from residual_lab.costs.bench_table import bench_table
from residual_lab.costs.estimate import estimate
from residual_lab.costs.kept import KeptByPlain
from residual_lab.data import build_data_module
from residual_lab.evaluation.losses import losses
from residual_lab.evaluation.trained import Trained
from residual_lab.run_directory import RunDirectory, read_metrics
from residual_lab.tables import compare, load_runs, summary

from .conftest import Lab, assert_same_weights, final_weights, start_python

RUN = (
    *("data=digits", "budget.tokens=1600", "budget.batch_tokens=64"),
    *("evaluation.every_steps=20", "run.checkpoint_every_steps=10", "measure.window_steps=5"),
)
SMALL = (*RUN, "model=resnet_desk", "model.stages=[2,2]", "model.base_width=8", "optim=resnet")
# Short, as rounding that turns a ReLU's input from below to above zero is rounding no more.
SHORT = (*SMALL, "residual=laurel_rw", "budget.tokens=320", "budget.batch_tokens=64")
VIT = (*RUN, "model=vit_desk", "model.layers=2", "optim=desk", "optim.lr=2e-3")


def made(folder: Path, *overrides: str) -> RunDirectory:
    return RunDirectory.create(compose([*SMALL, "hardware=cpu", f"run.dir={folder}", *overrides]))


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, lab: Lab) -> dict[str, RunDirectory]:
    folder = f"run.dir={tmp_path_factory.mktemp('images')}"
    wanted = {
        "plain": (*SMALL, "residual=plain", "hardware=cpu"),
        "laurel": (*SMALL, "residual=laurel_rw", "hardware=cpu"),
        "vit": (*VIT, "residual=dca", "hardware=cpu"),
        "halves": (*SHORT, "hardware=cpu", "hardware.accumulate=2"),
        "ddp": (*SHORT, "hardware=cpu_ddp"),
        "fsdp": (*SHORT, "hardware=cpu_fsdp"),
        "vit fsdp": (*VIT, "residual=dca", "hardware=cpu_fsdp"),
    }
    found = {name: RunDirectory.create(compose([*o, folder])) for name, o in wanted.items()}
    alone = [name for name in wanted if "dp" not in name]
    assert all(lab.execute(found[name]) == 0 for name in alone)
    in_two = [str(run.path) for name, run in found.items() if name not in alone]
    done = start_python("tests.training.worker", *in_two)
    assert done.returncode == 0, done.stderr
    return found


def test_accuracy_is_that_of_the_final_weights_counted_by_hand(
    runs: dict[str, RunDirectory],
) -> None:
    for run in runs.values():
        result, trained = run.result, Trained.load(run.path)
        assert result is not None and result["perplexity"] is None
        assert result["tokens"] == run.config.budget.tokens
        module = build_data_module(trained.config)
        for split, loader in (("val", module.val_dataloader()), ("test", module.test_dataloader())):
            images, labels = (torch.cat(parts) for parts in zip(*loader, strict=True))
            with torch.no_grad():
                order = trained.model(images).argsort(-1, descending=True)
            right = (order == labels[:, None]).double()
            assert result[f"{split}_accuracy"] == pytest.approx(right[:, 0].mean().item())
            top5 = right[:, :5].sum(-1).mean().item()
            assert result[f"{split}_top5_accuracy"] == pytest.approx(top5)
        read_again = losses(trained, trained.config)
        for name, value in read_again.items():
            assert result[name] == pytest.approx(value, rel=1e-4), name
        rows = [row for row in read_metrics(run.metrics) if "val_accuracy" in row]
        assert [row["step"] for row in rows] == ([20, 25] if run.config.steps == 25 else [5])
        assert rows[-1]["val_accuracy"] == result["val_accuracy"]
    assert (runs["plain"].result or {})["test_accuracy"] > 0.2  # a guess is right once in ten
    said = runs["vit fsdp"].log.read_text()
    assert " images/s" in said and "tokens/s" not in said


def test_two_processes_see_the_same_images(runs: dict[str, RunDirectory]) -> None:
    """And the norms over the batch see halves of it, as with two micro-batches in one process."""
    for one, two in (("vit", "vit fsdp"), ("halves", "ddp"), ("halves", "fsdp")):
        first, second = (run.result or {} for run in (runs[one], runs[two]))
        assert second["train_loss"] == pytest.approx(first["train_loss"], rel=1e-4)
        assert second["tokens"] == first["tokens"]
    halves = final_weights(runs["halves"])
    for two in ("ddp", "fsdp"):
        weights = final_weights(runs[two])
        assert weights.keys() == halves.keys()
        for name, weight in halves.items():
            if name.endswith(("weight", "bias", "logits")):  # no statistics, of one process alone
                torch.testing.assert_close(weights[name], weight, rtol=1e-4, atol=1e-6)
    for name, weight in final_weights(runs["ddp"]).items():
        torch.testing.assert_close(weight, final_weights(runs["fsdp"])[name], rtol=1e-4, atol=1e-6)


def test_tables_show_it(runs: dict[str, RunDirectory]) -> None:
    folder = runs["plain"].path.parent
    table = compare(load_runs([runs["plain"].path, runs["laurel"].path]), metric="test_accuracy")
    assert [cell.text for cell in table.column("row")] == ["plain", "laurel_rw"]
    assert "perplexity" not in [column.key for column in table.columns]
    shown = summary(runs["laurel"].path)
    rows = [cell.value for cell in shown.column(shown.columns[0].key)]
    assert {"val_accuracy", "test_accuracy", "test_top5_accuracy"} <= set(rows)
    assert len(load_runs([folder])) == len(runs)


def test_augmented_training_goes_on_from_a_checkpoint_bit_for_bit(tmp_path: Path, lab: Lab) -> None:
    """Running statistics, crops and mixing included."""
    options = ("data.crop=padded", "data.mixup=0.2", "data.label_smoothing=0.1")
    short = (*options, "budget.tokens=512", "run.checkpoint_every_steps=3")
    straight, resumed = made(tmp_path / "a", *short), made(tmp_path / "b", *short)
    assert lab.execute(straight) == 0
    lab.cut_off(resumed, 5)
    assert lab.execute(resumed) == 0
    assert_same_weights(straight, resumed)
    assert (straight.result or {})["test_accuracy"] == (resumed.result or {})["test_accuracy"]


def test_costs_are_counted_and_measured() -> None:
    both = ([*SMALL, "hardware=cpu", f"residual={name}"] for name in ("plain", "laurel_rw"))
    plain, laurel = map(compose, both)
    found = estimate(laurel)
    assert found.connection_parameters == 2 * 3  # of four blocks one changes the shape
    # The sum stands for f: α and β need nothing more than plain keeps.
    assert KeptByPlain(plain).costs_of(laurel) == (6, pytest.approx(0, abs=1e-9))
    timed = bench({"plain": plain, "laurel": laurel}, batch=4, rounds=2)
    assert set(timed.measurements["laurel"].seconds) == {"training", "forward"}
    assert "; 4 images; 2 rounds" in bench_table(timed).notes[0]


def test_flops_are_those_of_every_convolution() -> None:
    """2·k²·channels in·channels out·pixels each, three times with backward, but for the stem's."""
    config = compose(["model=resnet50", "data=imagenet", "hardware=cpu"])
    from residual_lab.measure.flops import flops_per_token

    pixels, forward = 112 * 112, 2 * 49 * 3 * 64 * 112 * 112
    stem, width, pixels = forward, 64, 56 * 56
    for stage, blocks in enumerate((3, 4, 6, 3)):
        inner = 64 * 2**stage
        for block in range(blocks):
            smaller = pixels // 4 if stage and not block else pixels
            forward += 2 * (pixels * width * inner + smaller * (9 * inner**2 + 4 * inner**2))
            forward += 0 if block else 2 * smaller * width * 4 * inner
            width, pixels = 4 * inner, smaller
    forward += 2 * 2048 * 1000
    assert flops_per_token(config) == 3 * forward - stem
    assert forward / 2e9 == pytest.approx(4.09, abs=0.01)  # "4.1 GFLOPs"
