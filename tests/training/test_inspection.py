"""inspection.json: right, the same each time, and no part of what a run measures."""

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from residual_lab import build_model, compose
from residual_lab.commands.inspect import main
from residual_lab.data import prepare
from residual_lab.errors import LabError
from residual_lab.models import Decoder
from residual_lab.residuals.laurel import Laurel
from residual_lab.run_directory import RunDirectory, read_metrics
from residual_lab.training.inspection import FILE, Inspection, cosine_to_embedding, inspect

from .conftest import Lab, assert_same_weights, final_weights


def read(run: RunDirectory) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run.path / FILE).read_text(), parse_constant=pytest.fail)
    return found


def loaded(run: RunDirectory) -> Decoder:
    model = build_model(run.config)
    model.load_state_dict(final_weights(run))
    return model


def reference(model: Decoder, tokens_BT: torch.Tensor) -> list[float]:
    """Mean cosines by hooks on the layers themselves, all tokens at once."""
    read: list[torch.Tensor] = []
    model.eval()
    hooks = [u.register_forward_pre_hook(lambda u, x: read.append(x[0])) for u in model.units]
    hooks.append(model.norm.register_forward_pre_hook(lambda u, x: read.append(x[0])))
    with torch.no_grad():
        model.hidden(tokens_BT)
    for hook in hooks:
        hook.remove()
    embedding = F.normalize(model.embedding(tokens_BT), dim=-1)
    return [(F.normalize(x, dim=-1) * embedding).sum(-1).mean().item() for x in read]


def test_a_finished_run_has_its_weights_and_cosines(straight: RunDirectory) -> None:
    found, weights = read(straight), final_weights(straight)
    alpha, beta = 2 * torch.softmax(weights["connection.weights.logits"], 0)[..., 0]
    assert found["weights"]["alpha"] == pytest.approx(alpha.tolist(), rel=1e-6)
    assert found["weights"]["beta"] == pytest.approx(beta.tolist(), rel=1e-6)
    corpus = prepare(straight.config)
    windows = range(min(4096 // 16, corpus.validation.windows(16)))
    tokens = [torch.from_numpy(corpus.validation.window(i, 16)[:-1]) for i in windows]
    expected = reference(loaded(straight), torch.stack(tokens))
    assert len(expected) == 3
    assert expected[0] == pytest.approx(1)
    assert found["cosine_to_embedding"] == pytest.approx(expected, abs=1e-5)


def test_it_changes_no_number(
    lab: Lab, straight: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Inspection, "on_test_end", lambda *arguments: None)
    without = lab.trained("hardware.accumulate=2")
    assert not (without.path / FILE).exists()
    assert_same_weights(without, straight)
    for key in ("train_loss", "val_loss", "gradient_norm"):
        one, other = (
            [row[key] for row in read_metrics(run.metrics) if key in row]
            for run in (without, straight)
        )
        assert one == other
    assert without.result is not None
    assert straight.result is not None
    assert without.result["test_loss"] == straight.result["test_loss"]


def test_it_draws_nothing_and_leaves_the_model_as_it_was(straight: RunDirectory) -> None:
    model, corpus = loaded(straight).train(), prepare(straight.config)
    before = torch.get_rng_state()
    assert inspect(model, straight.config, corpus) == read(straight)
    assert torch.equal(torch.get_rng_state(), before)
    assert model.training
    assert all(p.grad is None and p.requires_grad for p in model.parameters())
    assert not model.connection._forward_hooks
    assert not model.connection._forward_pre_hooks


@pytest.mark.parametrize(("residual", "reads"), [("muddformer", 1), ("elc_bert", 1), ("plain", 0)])
def test_what_queries_read_is_looked_at(residual: str, reads: int) -> None:
    """Positions count as part of the embedding, branches as layers, shared layers each time."""
    shape = ["model.layers=4", "model.width=16", "model.heads=2", "model.share=2"]
    positions = ["model.positions=learned", "model.max_sequence_length=8"]
    size = ["data.vocabulary=31", "data.tokenizer=gpt2", "data.sequence_length=8"]
    config = compose([f"residual={residual}", *shape, *positions, *size])
    model = build_model(config)
    with torch.no_grad():
        for parameter in model.connection.parameters():
            parameter += torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0))
    tokens_BT = torch.arange(24).view(3, 8)
    read: list[torch.Tensor] = []
    hooks = [u.register_forward_pre_hook(lambda u, x: read.append(x[reads])) for u in model.units]
    with torch.no_grad():
        model.hidden(tokens_BT)
        embedding = model._embed(tokens_BT, torch.arange(8))
    for hook in hooks:
        hook.remove()
    expected = [F.cosine_similarity(x, embedding, dim=-1).mean().item() for x in read]
    found = cosine_to_embedding(model, tokens_BT.split(2))
    assert len(found) == 5
    if residual == "plain":
        assert found[0] == pytest.approx(1)
    assert found[:4] == pytest.approx(expected, abs=1e-5)


def test_a_connection_that_cannot_say_costs_no_run(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(self: Laurel) -> None:
        raise ValueError("no such weights")

    monkeypatch.setattr(Laurel, "weights_over_depth", fails)
    with caplog.at_level(logging.WARNING):
        run = lab.trained("budget.steps=1")
    assert run.status == "finished"
    assert not (run.path / FILE).exists()
    assert "no inspection.json; `residual-lab inspect" in caplog.text
    assert "no such weights" in caplog.text


def test_the_command_makes_it_from_the_final_weights(
    straight: RunDirectory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same file, where it is missing; without cosines where the data is another."""
    run = Path(shutil.copytree(straight.path, tmp_path / straight.path.name))
    (run / FILE).unlink()
    assert main([str(run), "format=csv"]) == 0
    assert (run / FILE).read_bytes() == (straight.path / FILE).read_bytes()
    assert (run / "pictures" / "learned_weights.png").is_file()
    (run / FILE).unlink()
    (run / "data-fingerprint").write_text("another")
    capsys.readouterr()
    assert main([str(run), "format=csv"]) == 0
    assert "no cosines: the data has changed since the run" in capsys.readouterr().err
    found = json.loads((run / FILE).read_text())
    assert found == {**read(straight), "cosine_to_embedding": None}


def test_weights_of_another_model_are_refused(straight: RunDirectory, tmp_path: Path) -> None:
    run = Path(shutil.copytree(straight.path, tmp_path / straight.path.name))
    (run / FILE).unlink()
    torch.save({"a": torch.zeros(1)}, run / "checkpoints" / "final.pt")
    with pytest.raises(LabError, match=r"not the weights of this run: .*Missing key"):
        main([str(run)])
    assert not (run / FILE).exists()
