"""Downstream tasks: lm-eval's own evaluation, and the adapter against direct computation."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from lm_eval.api.instance import Instance
from lm_eval.utils import get_rolling_token_windows

from residual_lab import build_model
from residual_lab.cli import main
from residual_lab.data import Corpus, prepare
from residual_lab.errors import LabError
from residual_lab.evaluation.harness import Harness
from residual_lab.evaluation.harness_model import HarnessModel
from residual_lab.evaluation.trained import Trained
from residual_lab.models import Decoder
from residual_lab.run_directory import RunDirectory

TASK = """\
task: which_animal
dataset_path: json
dataset_kwargs:
  data_files: {{test: {documents}}}
  cache_dir: {cache}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{context}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: answer
metric_list:
  - metric: acc
metadata: {{version: 3}}
"""
LENGTH = 16  # of the run's sequences


@pytest.fixture(scope="module")
def corpus(straight: RunDirectory) -> Corpus:
    return prepare(straight.config)


@torch.no_grad()
def disturb(model: torch.nn.Module) -> None:
    """Add the same noise each time, so that every token read matters to the next."""
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))


@pytest.fixture(scope="module")
def model(straight: RunDirectory, corpus: Corpus) -> HarnessModel:
    trained = Trained.load(straight.path)
    disturb(trained.model)
    return HarnessModel(trained, corpus.tokenizer_file)


class Reference:
    """log p(token | the last ``LENGTH`` tokens before it), one forward pass a token."""

    def __init__(self, run: RunDirectory) -> None:
        model = build_model(run.config).eval()
        assert isinstance(model, Decoder)
        model.load_state_dict(torch.load(run.checkpoints / "final.pt", weights_only=True))
        self.model = model

    @torch.no_grad()
    def next(self, tokens: Sequence[int]) -> torch.Tensor:
        return self.model(torch.tensor([list(tokens)]))[0, -1].log_softmax(-1)

    def score(self, context: list[int], continuation: list[int]) -> tuple[float, bool]:
        """Of a continuation that the window holds, all read together."""
        tokens = context + continuation
        total, greedy = 0.0, True
        first = max(0, len(tokens) - 1 - LENGTH)
        for place in range(len(context), len(tokens)):
            logs = self.next(tokens[first:place])
            total += logs[tokens[place]].item()
            greedy &= int(logs.argmax()) == tokens[place]
        return total, greedy


@pytest.fixture(scope="module")
def reference(straight: RunDirectory) -> Reference:
    made = Reference(straight)
    disturb(made.model)
    return made


def requests(kind: str, *arguments: tuple[Any, ...]) -> list[Instance]:
    return [Instance(kind, {}, pair, number) for number, pair in enumerate(arguments)]


def test_loglikelihood_is_the_sum_of_log_softmax(
    model: HarnessModel, reference: Reference, corpus: Corpus
) -> None:
    """In batches of several lengths; also where the context is cut from the left, or empty."""
    pairs = [
        ("the cat sat", " on"),
        ("a dog", " ran on the mat"),
        ("the sun and the hen and the fish sat on the mat and the dog ran", " and sat"),
        ("", "the cat"),
        (" ", "hen"),
    ]
    found = model.loglikelihood(requests("loglikelihood", *pairs), disable_tqdm=True)
    for (context, continuation), (score, is_greedy) in zip(pairs, found, strict=True):
        before = corpus.tokenizer.encode(context.rstrip()).ids
        whole = corpus.tokenizer.encode(context + continuation).ids
        targets = whole[len(before) :]
        expected, greedy = reference.score(before or [corpus.end_of_text], targets)
        assert score == pytest.approx(expected, rel=1e-5)
        assert is_greedy == greedy
    assert len(corpus.tokenizer.encode("".join(pairs[2])).ids) > LENGTH + 2


def test_is_greedy_is_true_of_what_the_model_writes(
    model: HarnessModel, reference: Reference, corpus: Corpus
) -> None:
    tokens = corpus.tokenizer.encode("the cat").ids
    written = list(tokens)
    for _ in range(4):
        written.append(int(reference.next(written).argmax()))
    worst = int(reference.next(tokens).argmin())
    pairs = [
        (("", ""), tokens, written[len(tokens) :]),
        (("", ""), tokens, [*written[len(tokens) : -1], worst]),
    ]
    (likely, greedy), (unlikely, not_greedy) = model._loglikelihood_tokens(pairs, True)
    assert (greedy, not_greedy) == (True, False)
    assert likely > unlikely


def test_rolling_scores_every_token_once_with_all_the_context_there_is(
    model: HarnessModel, reference: Reference, corpus: Corpus
) -> None:
    """The windows are lm-eval's own; an empty text is certain."""
    texts = ["the cat sat on the mat and the dog ran on the sun " * 3, "a hen", ""]
    found = model.loglikelihood_rolling(
        requests("loglikelihood_rolling", *((text,) for text in texts)), disable_tqdm=True
    )
    for text, score in zip(texts, found, strict=True):
        expected = 0.0
        ids = corpus.tokenizer.encode(text).ids
        for inputs, targets in get_rolling_token_windows(ids, corpus.end_of_text, LENGTH, 1):
            before = inputs[: len(inputs) - len(targets) + 1]
            expected += reference.score(before, targets)[0]
        assert score == pytest.approx(expected, rel=1e-5)
    assert len(corpus.tokenizer.encode(texts[0]).ids) > 2 * LENGTH


def test_generate_until_is_greedy_and_stops(
    model: HarnessModel, reference: Reference, corpus: Corpus
) -> None:
    """Beyond the window too: each token sees the last ones."""
    tokens = corpus.tokenizer.encode("the dog").ids
    written: list[int] = []
    for _ in range(24):
        written.append(int(reference.next([*tokens, *written][-LENGTH:]).argmax()))
    assert corpus.end_of_text not in written
    text = corpus.tokenizer.decode(written)
    middle = corpus.tokenizer.decode(written[3:5])
    free = ("the dog", {"until": [], "max_gen_toks": 24})
    stopped = ("the dog", {"until": ["never there", middle], "max_gen_toks": 24})
    found = model.generate_until(requests("generate_until", free, stopped), disable_tqdm=True)
    assert found == [text, text[: text.index(middle)]]


def task_file(folder: Path, documents: list[dict[str, Any]]) -> Path:
    lines = "\n".join(map(json.dumps, documents))
    (folder / "documents.jsonl").write_text(lines)
    task = TASK.format(documents=folder / "documents.jsonl", cache=folder / "cache")
    (folder / "which_animal.yaml").write_text(task)
    return folder / "which_animal.yaml"


def test_a_task_from_end_to_end(
    straight: RunDirectory,
    corpus: Corpus,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The accuracy is that of choosing the likelier continuation by hand."""
    reference = Reference(straight)
    contexts = ["the cat", "a dog", "the hen sat on the", "sun", "a fish and a", "the mat", "ran"]
    choices = ["dog", "the"]
    answers = [0, 1, 1, 0, 1, 1, 1]
    documents = [
        {"context": context, "choices": choices, "answer": answer}
        for context, answer in zip(contexts, answers, strict=True)
    ]
    right = 0
    for context, answer in zip(contexts[:6], answers, strict=False):
        before = corpus.tokenizer.encode(context).ids
        whole = [corpus.tokenizer.encode(f"{context} {choice}").ids for choice in choices]
        scores = [reference.score(before, tokens[len(before) :])[0] for tokens in whole]
        right += (scores[1] > scores[0]) == answer
    task = task_file(tmp_path, documents)
    assert main(["eval", str(straight.path), f"tasks={task}", "limit=6", "format=json"]) == 0
    table = json.loads(capsys.readouterr().out)
    (row,) = table["rows"]
    assert right not in (0, 3, 6)
    assert row["which_animal acc"]["value"] == pytest.approx(right / 6)
    assert "which_animal: version 3, 0-shot, 6 documents" in table["notes"]
    assert straight.result is not None
    assert row["test_loss"] == pytest.approx(straight.result["test_loss"], rel=1e-6)


def test_unknown_tasks_are_refused_before_any_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], straight: RunDirectory
) -> None:
    assert main(["eval", str(straight.path), "tasks=lambada_openia"]) == 2
    captured = capsys.readouterr()
    assert captured.err.splitlines()[-1].startswith(
        "tasks=lambada_openia: lm-eval has no such task"
    )
    assert "did you mean lambada_openai" in captured.err
    assert captured.out == ""
    task = task_file(tmp_path, [])
    (tmp_path / "documents.jsonl").unlink()
    assert main(["eval", str(straight.path), f"tasks={task}"]) == 2
    assert "its documents cannot be loaded" in capsys.readouterr().err


def test_without_lm_eval_one_line_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "lm_eval"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    with pytest.raises(LabError, match=r"tasks=piqa: needs lm-eval.*residual-lab\[evaluation\]"):
        Harness(["piqa"])
