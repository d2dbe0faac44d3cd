"""``residual-lab eval``: the losses of a run again, and on other data."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from residual_lab import build_model
from residual_lab.cli import main
from residual_lab.data import prepare
from residual_lab.evaluation.losses import losses, on_data
from residual_lab.evaluation.trained import Trained
from residual_lab.run_directory import RunDirectory
from tests.evaluation.conftest import Refused
from tests.training.conftest import Lab

TOY = ("model=low_rank_linear", "data=linear_map", "optim=sgd", "residual=grn_v1", "hardware=cpu")


@pytest.fixture(scope="module")
def notes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Text that no run has seen: other words, other characters."""
    folder = tmp_path_factory.mktemp("notes")
    for number in range(40):
        words = [f"Größe{(number * i) % 13}" for i in range(30)]
        (folder / f"{number}.txt").write_text(" ".join(words), encoding="utf-8")
    return folder


def rows_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[dict[str, Any]]:
    assert main(["eval", *arguments, "format=json"]) == 0
    rows: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["rows"]
    return rows


def test_the_losses_of_the_result(
    straight: RunDirectory, lab: Lab, capsys: pytest.CaptureFixture[str]
) -> None:
    """A row for each run, seeds apart, labelled as in tables."""
    folder = straight.path.parent / "together"
    folder.mkdir()
    runs = [straight, lab.trained("budget.steps=2", "seed=1", "hardware.accumulate=2")]
    for run in runs:
        (folder / run.path.name).symlink_to(run.path)
    rows = rows_of(capsys, *(str(run.path) for run in runs))
    by_seed = {row["seed"]: row for row in rows}
    assert {row["residual"] for row in rows} == {"laurel_rw+lr steps=2", "laurel_rw+lr steps=8"}
    for run in runs:
        row, result = by_seed[run.config.seed], run.result
        assert result is not None
        for key in ("val_loss", "test_loss", "perplexity"):
            assert row[key] == pytest.approx(result[key], rel=1e-6)


def test_the_loss_on_other_data_is_the_mean_over_its_tokens(
    straight: RunDirectory, notes: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = prepare(straight.config)
    overrides = ["data=text", f"data.path={notes}"]
    overrides += ["data.validation_fraction=0.3", "data.test_fraction=0.3"]
    trained = Trained.load(straight.path)
    config = on_data(trained.config, overrides, own.tokenizer_file)
    other = prepare(config)
    assert other.tokenizer.to_str() == own.tokenizer.to_str()
    tokens = torch.from_numpy(other.test.read(0, len(other.test)))
    assert "Größe" in own.tokenizer.decode(tokens.tolist())
    model = build_model(straight.config).eval()
    model.load_state_dict(torch.load(straight.checkpoints / "final.pt", weights_only=True))
    windows = [tokens[i : i + 17] for i in range(0, len(tokens) - 16, 16)]
    with torch.no_grad():
        each = [F.cross_entropy(model(w[None, :-1])[0], w[1:]) for w in windows]
    expected = torch.stack(each).mean().item()
    assert losses(trained, config)["test_loss"] == pytest.approx(expected, rel=1e-5)
    (row,) = rows_of(capsys, str(straight.path), *overrides)
    assert row["test_loss"] == pytest.approx(expected, rel=1e-5)
    assert row["perplexity"] == pytest.approx(math.exp(expected), rel=1e-5)
    assert straight.result is not None
    assert row["test_loss"] > straight.result["test_loss"] + 0.1


def test_keys_alone_change_the_runs_own_data(straight: RunDirectory) -> None:
    trained, own = Trained.load(straight.path), prepare(straight.config)
    config = on_data(
        trained.config, ["data.test_tokens=160", "data.sequence_length=32"], own.tokenizer_file
    )
    other = prepare(config)
    assert len(other.test) == 161 and (other.test.read(0, 161) == own.test.read(0, 161)).all()
    assert config.data.sequence_length == 32
    assert math.isfinite(losses(trained, config)["test_loss"])


@pytest.mark.parametrize("precision", ["32-true", "64-true"])
def test_a_toy_has_losses_and_no_text(
    precision: str, lab: Lab, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from residual_lab.config import compose

    overrides = ("budget.tokens=1000", "budget.batch_tokens=100", f"run.dir={tmp_path}")
    run = RunDirectory.create(compose([*TOY, *overrides, f"hardware.precision={precision}"]))
    assert lab.execute(run) == 0
    capsys.readouterr()
    (row,) = rows_of(capsys, str(run.path))
    assert run.result is not None
    assert row["test_loss"] == pytest.approx(run.result["test_loss"], rel=1e-6)
    assert "perplexity" not in row
    assert main(["eval", str(run.path), "format=md"]) == 0
    assert "Loss is the squared error, the mean over" in capsys.readouterr().out
    line = "model.family=low_rank_linear reads no text; name a run of a decoder\n"
    for command in (["eval", str(run.path), "data.test_tokens=null"], ["generate", str(run.path)]):
        assert main(command) == 2
        captured = capsys.readouterr()
        assert captured.err.endswith(line) and captured.err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["nowhere"], "nowhere: no such folder"),
        (["{new}"], "unfinished; left out"),
        (["{run}", "data=txt"], "data=txt: no such choice; did you mean text?"),
        (["{run}", "data=text"], "data.path=null: must be a file or a folder"),
        (["{run}", "data=linear_map"], "model.family"),
        (["{run}", "data.test_token=1"], "data.test_token=1: no such key; did you mean"),
        (["{run}", "data.tokenizer=bpe"], "data.tokenizer: a run reads text with its own"),
        (["{run}", "data.test_tokens=5"], "the test split of text has only 6 tokens"),
        (["{run}", "limit=3"], "tasks=: name tasks"),
        (["{run}", "limt=3"], "limt=3: no such option; did you mean limit?"),
        (["{run}", "out=x.doc"], "out=x.doc: no known ending"),
    ],
)
def test_refusals(arguments: list[str], line: str, refused: Refused) -> None:
    assert line in refused("eval", arguments)


def test_what_cannot_be_evaluated_is_left_out(
    straight: RunDirectory, lab: Lab, capsys: pytest.CaptureFixture[str]
) -> None:
    """The others are; the exit status tells."""
    without, changed = lab.trained("budget.steps=1"), lab.trained("budget.steps=1", "seed=3")
    (without.checkpoints / "final.pt").unlink()
    changed.write_data_fingerprint("0123456789abcdef")
    capsys.readouterr()
    runs = (straight, without, changed, lab.run())
    assert main(["eval", *(str(run.path) for run in runs), "format=csv"]) == 1
    captured = capsys.readouterr()
    assert len(captured.out.strip().splitlines()) == 2
    problems = sorted(captured.err.splitlines())
    assert len(problems) == 3
    assert any("final.pt: the weights are not there" in line for line in problems)
    assert any(line.startswith(f"{changed.path}: the data has changed") for line in problems)
    assert any(line.endswith("unfinished; left out") for line in problems)
