"""Estimates against closed forms, and against a run that really trained."""

import json
from pathlib import Path

import pytest

from residual_lab import compose
from residual_lab.cli import main
from residual_lab.costs.estimate import estimate, training_memory
from residual_lab.run import main as execute
from residual_lab.run_directory import RunDirectory

SMALL = ("model.layers=3", "model.width=64", "data.sequence_length=64", "budget.batch_tokens=512")


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of forty small files."""
    folder = tmp_path_factory.mktemp("estimate") / "text"
    folder.mkdir()
    for file in range(40):
        squares = (f"{n} is a number; {n * n} is its square." for n in range(file, 2000, 40))
        (folder / f"{file}.txt").write_text("\n".join(squares))
    return folder


def test_parameters_and_flops_of_a_closed_form() -> None:
    """6 per weight of a product and token, and 12·L·D·T for attention (Kaplan et al. 2020)."""
    found = estimate(compose([*SMALL, "residual=laurel_rw", "budget.tokens=51200"]))
    products = 3 * 12 * 64**2 + 2048 * 64
    assert found.parameters == products + 7 * 64 + 2 * 3
    assert found.connection_parameters == 2 * 3
    assert found.flops_per_token == pytest.approx(6 * products + 12 * 3 * 64 * 64)


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed", "bf16-true"])
def test_weights_and_optimizer_have_the_bytes_of_their_precision(precision: str) -> None:
    small = [*SMALL, "budget.tokens=51200", f"hardware.precision={precision}"]
    found = estimate(compose(small))
    size = 2 if precision == "bf16-true" else 4
    assert found.memory.weights == size * found.parameters
    assert found.memory.optimizer == pytest.approx(2 * size * found.parameters, rel=0.001)


def test_more_of_what_costs_memory_is_more_activations() -> None:
    def activations(*overrides: str) -> int:
        other = ("model.norm=layernorm", "data.vocabulary=257", "budget.tokens=51200")
        small = [*SMALL, *other, *overrides]
        return training_memory(compose(small)).activations

    base = activations()
    assert activations("budget.batch_tokens=1024") == pytest.approx(2 * base, rel=0.1)
    assert activations("hardware.checkpoint_layers=true") < 0.7 * base
    deep = ("model.layers=8", "model.width=256")  # so that the loss, in float32, is little
    halved = activations(*deep, "hardware.precision=bf16-true")
    assert halved == pytest.approx(activations(*deep) / 2, rel=0.1)


@pytest.mark.parametrize(
    "overrides",
    [
        ("residual=plain", "hardware.accumulate=2"),
        ("residual=laurel_rw+lr+pa", "model.dropout=0.1", "hardware.precision=bf16-mixed"),
    ],
)
def test_agrees_with_what_a_run_measures(
    overrides: tuple[str, ...], text: Path, tmp_path: Path
) -> None:
    """Within 5% of the peak that training on this machine's CPU reports."""
    config = compose(
        [
            *SMALL,
            "data=text",
            f"data.path={text}",
            f"data.cache_dir={text.parent / 'cache'}",
            "data.vocabulary=300",
            "data.workers=1",
            "hardware=cpu",
            "budget.tokens=null",
            "budget.steps=4",
            "evaluation.every_steps=4",
            "measure.warmup_steps=1",
            f"run.dir={tmp_path}",
            *overrides,
        ]
    )
    run = RunDirectory.create(config)
    assert execute([str(run.path)]) == 0
    assert run.result is not None
    measured = run.result["peak_memory_bytes"]["value"]
    assert estimate(config).memory.total == pytest.approx(measured, rel=0.05)


def test_the_command_gives_a_row_for_every_combination(
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = ["residual=plain,laurel_rw", "model.layers=1,2", "model.width=32", "batch=2"]
    assert main(["estimate", *arguments, "sequence=16", "format=json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["configuration"] for row in rows] == [
        "plain layers=1",
        "plain layers=2",
        "laurel_rw layers=1",
        "laurel_rw layers=2",
    ]
    assert rows[3]["params"] - rows[1]["params"] == rows[3]["params_connection"] == 4
    kinds = ("weights", "gradients", "optimizer", "activations")
    assert rows[0]["total_bytes"] == sum(rows[0][f"{kind}_bytes"] for kind in kinds)
