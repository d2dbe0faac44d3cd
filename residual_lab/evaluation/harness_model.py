"""A trained run as a model of EleutherAI's lm-eval."""

from collections.abc import Sequence
from typing import Any

import torch
from lm_eval.api.model import TemplateLM
from torch import Tensor
from torch.nn import functional as F
from tqdm import tqdm

from residual_lab.data.tokenizer import TokenizerFile
from residual_lab.evaluation.generation import generate
from residual_lab.evaluation.trained import Trained


class HarnessModel(TemplateLM):
    """Scores and writes text with the run's own tokenizer.

    The window is the length of the training sequences: of a longer context the last tokens are
    read. A text without context begins after an end-of-text token.
    """

    def __init__(self, trained: Trained, own: TokenizerFile) -> None:
        super().__init__()
        self.trained, self.own = trained, own
        self.decoder = trained.decoder
        self.max_length: int = trained.config.data.sequence_length
        self.max_gen_toks = 256  # where a task does not say; lm-eval's own default
        self.batch_size = trained.config.evaluation.batch_sequences

    @property
    def eot_token_id(self) -> int:
        return self.own.end_of_text

    def tok_encode(
        self, string: str, add_special_tokens: bool | None = None, **options: Any
    ) -> list[int]:
        """Without special tokens, as the corpus was encoded."""
        ids: list[int] = self.own.tokenizer.encode(string, add_special_tokens=False).ids
        return ids

    def loglikelihood_rolling(self, requests: list[Any], disable_tqdm: bool = False) -> list[float]:
        """Log-likelihood of whole texts, each from its beginning."""
        texts = [text for (text,) in (request.args for request in requests)]
        encoded = [((("", text)), [self.eot_token_id], self.tok_encode(text)) for text in texts]
        return [score for score, _ in self._loglikelihood_tokens(encoded, disable_tqdm)]

    def _loglikelihood_tokens(
        self,
        requests: list[tuple[tuple[str, str], list[int], list[int]]],
        disable_tqdm: bool = False,
        **options: Any,
    ) -> list[tuple[float, bool]]:
        """Sums over the tokens of each continuation, and whether all of them are the likeliest.

        A continuation longer than the window is scored in parts of that length; the sum over
        parts is its log-likelihood, each token with what context the window leaves it.
        """
        parts = [
            (number, part)
            for number, (_, context, continuation) in enumerate(requests)
            for part in self._parts(context or [self.eot_token_id], continuation)
        ]
        parts.sort(key=lambda part: -len(part[1][0]))  # little padding, and the largest first
        sums, greedy = [0.0] * len(requests), [True] * len(requests)
        for first in tqdm(range(0, len(parts), self.batch_size), disable=disable_tqdm):
            batch = parts[first : first + self.batch_size]
            scores = self._score([part for _, part in batch])
            for (number, _), (score, is_greedy) in zip(batch, scores, strict=True):
                sums[number] += score
                greedy[number] &= is_greedy
        return list(zip(sums, greedy, strict=True))

    def _parts(
        self, context: list[int], continuation: list[int]
    ) -> list[tuple[list[int], list[int]]]:
        """Inputs, at most ``max_length``, and the targets that stand for the last of them."""
        tokens, length = context + continuation, self.max_length
        parts = []
        for start in range(len(context), len(tokens), length):
            stop = min(start + length, len(tokens))
            parts.append((tokens[max(0, stop - 1 - length) : stop - 1], tokens[start:stop]))
        return parts

    def _score(self, parts: Sequence[tuple[list[int], list[int]]]) -> list[tuple[float, bool]]:
        longest = max(len(inputs) for inputs, _ in parts)
        # What stands to the right of a token has no part in what is read there.
        padded = [inputs + [0] * (longest - len(inputs)) for inputs, _ in parts]
        with self.trained.reading():
            hidden_BTD = self.decoder.hidden(torch.tensor(padded, device=self.trained.device))
            return [
                self._score_one(hidden_TD[len(inputs) - len(targets) : len(inputs)], targets)
                for hidden_TD, (inputs, targets) in zip(hidden_BTD, parts, strict=True)
            ]

    def _score_one(self, hidden_ND: Tensor, targets: list[int]) -> tuple[float, bool]:
        decoder = self.decoder
        logits_NV = F.linear(hidden_ND, decoder.head_weight, decoder.head_bias)
        targets_N = torch.tensor(targets, device=logits_NV.device)
        log_likelihoods = -F.cross_entropy(logits_NV.float(), targets_N, reduction="none")
        greedy = bool((logits_NV.argmax(-1) == targets_N).all())
        return float(log_likelihoods.double().sum()), greedy

    def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
        """Text after each context, up to a stop string, ``max_gen_toks`` or the document's end."""
        return [self._write(*request.args) for request in tqdm(requests, disable=disable_tqdm)]

    def _write(self, context: str, options: dict[str, Any]) -> str:
        until = options.get("until") or []
        stops = [until] if isinstance(until, str) else list(until)
        found: list[int] = []
        text = ""
        with self.trained.reading():
            for token in generate(
                self.decoder,
                self.tok_encode(context) or [self.eot_token_id],
                int(options.get("max_gen_toks", self.max_gen_toks)),
                temperature=options.get("temperature", 1.0) if options.get("do_sample") else 0.0,
                top_k=options.get("top_k"),
                window=self.max_length,
                vocabulary=self.own.tokenizer.get_vocab_size(),
            ):
                if token == self.eot_token_id:
                    break
                found.append(token)
                text = self.own.tokenizer.decode(found)
                if any(stop in text for stop in stops if stop):
                    break
        ends = [text.index(stop) for stop in stops if stop and stop in text]
        return text[: min(ends)] if ends else text
