"""inspection.json: what a trained model's depth looks like, from which pictures are drawn.

    {"weights": {name: numbers over depth, null where there is none},
     "cosine_to_embedding": [of what each layer reads, and of the output]}

Weights are those of ``Connection.weights_over_depth``. Cosines are means over tokens, between
what a layer reads (what its queries read, where inputs differ) and the token's embedding, as in
DenseFormer's figure 6 (arXiv 2402.02622); null for models without tokens.
"""

import json
import logging
import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from residual_lab.config.schema import Config
from residual_lab.data import Corpus, TextDataModule
from residual_lab.errors import DataError
from residual_lab.files import write_atomically
from residual_lab.models import Decoder
from residual_lab.run_directory import RunDirectory
from residual_lab.training.final import final_model, own_corpus

FILE = "inspection.json"
_TOKENS = 4096  # of the validation set, the first so many, in whole sequences
log = logging.getLogger(__name__)


class Inspection(pl.Callback):
    """Writes the file once a run has been tested; the run's own numbers do not depend on it."""

    def __init__(self, run: RunDirectory, config: Config) -> None:
        self.run, self.config = run, config

    def on_test_end(self, trainer: pl.Trainer, pl_module: Any) -> None:
        if not trainer.is_global_zero:
            return
        later = f"`residual-lab inspect {self.run.path}` makes it from the final weights"
        if pl_module.shards:
            log.info("no %s: each process has a part of the weights; %s", FILE, later)
            return
        data = trainer.datamodule  # type: ignore[attr-defined]
        corpus = data.corpus if isinstance(data, TextDataModule) else None
        try:
            write(self.run.path, inspect(pl_module.model, self.config, corpus))
        except Exception:  # what was trained and measured is worth more than a picture
            log.warning("no %s; %s", FILE, later, exc_info=True)


def write(folder: Path, inspection: dict[str, Any]) -> None:
    """Write the file into the run directory ``folder``, whole or not at all."""
    write_atomically(folder / FILE, json.dumps(inspection, ensure_ascii=False) + "\n")


def inspect(model: nn.Module, config: Config, corpus: Corpus | None) -> dict[str, Any]:
    """Return what the file holds. The model is left as it was, and no random stream is read."""
    connection: Any = model.connection
    weights = connection.weights_over_depth()
    cosines = None
    if isinstance(model, Decoder) and corpus is not None:
        device = model.embedding.weight.device
        batches = (batch.to(device) for batch in _sequences(corpus, config))
        cosines = [round(value, 6) for value in cosine_to_embedding(model, batches)]
    return {
        "weights": {name: _plain(values.tolist()) for name, values in weights.items()},
        "cosine_to_embedding": cosines,
    }


def inspect_final(run: RunDirectory) -> tuple[dict[str, Any], str | None]:
    """The same from the final weights of a run, on the CPU, and why there are no cosines, if so.

    Raises LabError where the weights are not those of the run's configuration.
    """
    model = final_model(run)
    corpus, problem = None, None
    if isinstance(model, Decoder):
        try:
            corpus = own_corpus(run)
        except DataError as error:
            problem = str(error)
    return inspect(model, run.config, corpus), problem


def _sequences(corpus: Corpus, config: Config) -> Iterable[Tensor]:
    """The first validation sequences, in batches no larger than those of the validation."""
    length = config.data.sequence_length
    count = min(max(1, _TOKENS // length), corpus.validation.windows(length))
    for first in range(0, count, config.evaluation.batch_sequences):
        last = min(count, first + config.evaluation.batch_sequences)
        windows = [corpus.validation.window(index, length)[:-1] for index in range(first, last)]
        yield torch.stack([torch.from_numpy(window) for window in windows])


@torch.no_grad()
def cosine_to_embedding(model: Decoder, batches: Iterable[Tensor]) -> list[float]:
    """Return the mean cosines to the embedding, of what each layer reads and of the output.

    The embedding is what the connection is handed, positions included. ``batches`` are token ids
    (B, T); layers or branches, as the connection sees them, L + 1 numbers.
    """
    observer = _Observer()
    training = model.training
    model.eval()
    hooks = (
        model.connection.register_forward_pre_hook(observer.before),
        model.connection.register_forward_hook(observer.after),
    )
    try:
        for batch in batches:
            model.hidden(batch)  # not the loss, which may be compiled without hooks
    finally:
        for hook in hooks:
            hook.remove()
        model.train(training)
    return [total / observer.tokens for total in torch.stack(observer.sums).tolist()]


class _Observer:
    """Stands between a connection and its layers and sums cosines of what passes."""

    def __init__(self) -> None:
        self.sums: list[Tensor] = []
        self.tokens = 0

    def before(self, connection: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        self.embedding, layers = inputs
        self.tokens += self.embedding[..., 0].numel()
        self.place = 0
        return self.embedding, [partial(self._layer, layer) for layer in layers]

    def _layer(
        self,
        layer: Callable[..., Tensor],
        x: Tensor,
        q: Tensor | None = None,
        *rest: Any,
        **more: Any,
    ) -> Tensor:
        self._add(x if q is None else q)
        return layer(x, q, *rest, **more)

    def after(self, connection: nn.Module, inputs: Sequence[Any], output: Tensor) -> None:
        self._add(output)

    def _add(self, x: Tensor) -> None:
        cosine = F.cosine_similarity(x.float(), self.embedding.float(), dim=-1).sum()
        if self.place == len(self.sums):
            self.sums.append(cosine)
        else:
            self.sums[self.place] = self.sums[self.place] + cosine
        self.place += 1


def _plain(numbers: Any) -> Any:
    """Nested lists with as many digits as a 32-bit number has, and None for NaN."""
    if isinstance(numbers, list):
        return [_plain(number) for number in numbers]
    return float(f"{numbers:.7g}") if math.isfinite(numbers) else None
