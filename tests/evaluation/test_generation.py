"""Text: the cache changes nothing, the seed decides, and what cannot be is refused."""

import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from residual_lab import build_model, compose
from residual_lab.cli import main
from residual_lab.data import prepare
from residual_lab.evaluation.generation import _choose, generate
from residual_lab.models import Decoder
from residual_lab.run_directory import RunDirectory
from tests.evaluation.conftest import Refused
from tests.training.conftest import Lab

CONNECTIONS = ["plain", "denseformer", "dca", "hyper_connections", "value_residual"]
PROMPT = [3, 1, 4, 1, 5]


def model_of(*overrides: str) -> Decoder:
    """A model with no weight at a special value, in float64, so that rounding decides nothing."""
    model = build_model(
        compose(
            [
                *("model.layers=4", "model.width=16", "model.heads=2", "data.vocabulary=300"),
                "model.tied_head=false",  # a tied head repeats the last token for ever
                *("data.sequence_length=16", "budget.batch_tokens=64", "budget.tokens=64"),
                *overrides,
            ]
        )
    )
    assert isinstance(model, Decoder)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    return model.double().eval()


@torch.no_grad()
def recomputed(model: Decoder, count: int, window: int | None = None) -> list[int]:
    """The likeliest tokens after the prompt, everything read anew for each."""
    tokens = list(PROMPT)
    for _ in range(count):
        read = tokens if window is None else tokens[-window:]
        tokens.append(int(model(torch.tensor([read]))[0, -1].argmax()))
    return tokens[len(PROMPT) :]


@torch.no_grad()
def greedy(model: Decoder, count: int, window: int | None = None) -> list[int]:
    return list(generate(model, PROMPT, count, temperature=0, window=window))


@pytest.mark.parametrize("residual", CONNECTIONS)
def test_the_cache_changes_nothing(residual: str) -> None:
    """Beyond the training length, too: rotary positions go on."""
    model = model_of(f"residual={residual}")
    found = greedy(model, 30)
    assert len(set(found)) > 3
    assert found == recomputed(model, 30)


def test_a_token_costs_one_token(monkeypatch: pytest.MonkeyPatch) -> None:
    model, lengths = model_of(), []
    hidden = model.hidden

    def counting(tokens: torch.Tensor, caches: Any) -> torch.Tensor:
        lengths.append(tokens.shape[1])
        return hidden(tokens, caches)

    monkeypatch.setattr(model, "hidden", counting)
    greedy(model, 4)
    assert lengths == [5, 1, 1, 1]


def test_learned_positions_slide() -> None:
    model = model_of("model.positions=learned", "model.max_sequence_length=16")
    found = greedy(model, 30, window=16)
    assert len(set(found)) > 3
    assert found == recomputed(model, 30, window=16)


def test_layers_that_share_weights_share_no_cache() -> None:
    model = model_of("model.share=2")
    assert greedy(model, 10) == recomputed(model, 10)


def test_draws_follow_temperature_and_top_k() -> None:
    logits = torch.tensor([0.0, 2.0, -1.0, 1.0, -3.0])
    generator = torch.Generator().manual_seed(0)
    draws = Counter(_choose(logits, 2.0, 3, generator) for _ in range(6000))
    wanted = torch.tensor([0.0, 2.0, 1.0]).div(2).softmax(0)
    shares = torch.tensor([draws[token] / 6000 for token in (0, 1, 3)])
    assert set(draws) == {0, 1, 3}
    torch.testing.assert_close(shares, wanted, atol=0.02, rtol=0)  # three standard deviations
    assert {_choose(logits, 1.0, 1, generator) for _ in range(20)} == {1}
    assert {_choose(logits, 1e-40, None, generator) for _ in range(20)} == {1}
    assert _choose(logits, 0, None, None) == 1


def test_only_the_tokenizers_tokens_are_drawn() -> None:
    model, generator = model_of(), torch.Generator().manual_seed(0)
    with torch.no_grad():
        tokens = list(generate(model, PROMPT, 50, generator=generator, vocabulary=7))
    assert set(tokens) <= set(range(7)) and len(set(tokens)) > 3


def text_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["generate", *arguments]) == 0
    return capsys.readouterr().out


def test_the_command(straight: RunDirectory, capsys: pytest.CaptureFixture[str]) -> None:
    run = str(straight.path)
    first = text_of(capsys, run, "prompt=the cat", "tokens=40")
    assert first.startswith("the cat") and len(first) > len("the cat\n")
    assert text_of(capsys, run, "prompt=the cat", "tokens=40") == first
    assert text_of(capsys, run, "prompt=the cat", "tokens=40", "seed=1") != first
    assert text_of(capsys, run, "tokens=9", "top_k=1") == text_of(
        capsys, run, "tokens=9", "temperature=0", "seed=5"
    )


def test_the_command_is_the_models_own_choice(
    straight: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of the trained weights, after an end-of-text token, decoded by the run's tokenizer."""
    corpus = prepare(straight.config)
    model = build_model(straight.config).eval()
    assert isinstance(model, Decoder)
    model.load_state_dict(torch.load(straight.checkpoints / "final.pt", weights_only=True))
    tokens = [corpus.end_of_text, *corpus.tokenizer.encode("a dog").ids]
    for _ in range(12):
        with torch.no_grad():
            logits = model(torch.tensor([tokens]))[0, -1]
        tokens.append(int(logits[: corpus.tokenizer.get_vocab_size()].argmax()))
    assert corpus.end_of_text not in tokens[1:]
    expected = corpus.tokenizer.decode(tokens[1:])
    found = text_of(capsys, str(straight.path), "prompt=a dog", "tokens=12", "temperature=0")
    assert found == expected + "\n"


def test_the_data_need_not_be_there(
    straight: RunDirectory,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The tokenizer lies beside the weights; a run without it there takes its corpus's."""
    run = shutil.copytree(straight.path, tmp_path / straight.path.name)
    expected = text_of(capsys, str(run), "prompt=the cat")
    (run / "checkpoints/tokenizer.json").rename(tmp_path / "tokenizer.json")
    assert text_of(capsys, str(run), "prompt=the cat") == expected
    (tmp_path / "tokenizer.json").rename(run / "checkpoints/tokenizer.json")
    monkeypatch.setattr("residual_lab.training.final.prepare", None)
    assert text_of(capsys, str(run), "prompt=the cat") == expected


def test_sliding_is_said(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    run = lab.trained("model.positions=learned", "model.max_sequence_length=20", "budget.steps=1")
    assert main(["generate", str(run.path), "tokens=15", "top_k=1"]) == 0
    assert capsys.readouterr().err == ""
    prompt = "the cat sat on the mat and " * 4
    assert main(["generate", str(run.path), f"prompt={prompt}", "tokens=3"]) == 0
    line = "longer than the 16 trained positions: read the last 16\n"
    assert capsys.readouterr().err == line


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["nowhere"], "no such folder"),
        (["{new}"], "it is unfinished; name a finished run"),
        (["{run}", "temperature=-1"], "temperature=-1: must be a number ≥ 0"),
        (["{run}", "temperature=nan"], "temperature=nan: must be a number ≥ 0"),
        (["{run}", "top_k=0"], "top_k=0: must be a whole number ≥ 1"),
        (["{run}", "token=3"], "token=3: no such option; did you mean tokens?"),
        (["{run}", "{new}"], "2 runs; name one"),
    ],
)
def test_refusals(arguments: list[str], line: str, refused: Refused) -> None:
    assert line in refused("generate", arguments)


def test_weights_that_are_gone(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    run = lab.trained("budget.steps=1")
    (run.checkpoints / "final.pt").unlink()
    assert main(["generate", str(run.path)]) == 2
    assert "final.pt: the weights are not there" in capsys.readouterr().err
    assert not Path(run.checkpoints / "final.pt").exists()
