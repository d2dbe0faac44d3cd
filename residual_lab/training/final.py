"""What a finished run is read back as: its trained model, its tokenizer and its corpus."""

import pickle

import torch
from torch import Tensor

from residual_lab.config.schema import Config
from residual_lab.data.corpus import TOKENIZER, Corpus, prepare
from residual_lab.data.tokenizer import TokenizerFile
from residual_lab.errors import DataError, LabError
from residual_lab.models import Model, build_model
from residual_lab.run_directory import RunDirectory
from residual_lab.training.checkpoints import FINAL


def final_model(run: RunDirectory, dtype: torch.dtype = torch.float32) -> Model:
    """The model with the run's final weights in ``dtype``, on the CPU.

    Raises LabError where they are not there, or not those of the run's configuration.
    """
    weights = final_weights(run)
    model = build_model(run.config).to(dtype)
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        raise LabError(f"{run.path}: not the weights of this run: {reason[:200]}") from None
    return model


def final_weights(run: RunDirectory) -> dict[str, Tensor]:
    """By name; raises LabError where they are not there or cannot be read."""
    path = run.checkpoints / FINAL
    if not path.is_file():
        raise LabError(f"{path}: the weights are not there; copy them there, or train the run anew")
    try:
        weights: dict[str, Tensor] = torch.load(
            path, map_location="cpu", weights_only=True, mmap=True
        )
    except (OSError, RuntimeError, pickle.UnpicklingError) as error:
        reason = " ".join(str(error).split())
        raise LabError(f"{path}: cannot be read: {reason[:200]}") from None
    return weights


def own_tokenizer(run: RunDirectory) -> TokenizerFile:
    """The tokenizer beside the final weights; of a run that has none there that of its corpus."""
    path = run.checkpoints / TOKENIZER
    return TokenizerFile.open(path) if path.is_file() else own_corpus(run).tokenizer_file


def own_corpus(run: RunDirectory, config: Config | None = None) -> Corpus:
    """The corpus of the run, with its tokenizer; ``config`` may name another cache.

    Raises DataError where it cannot be prepared, and where it has changed since.
    """
    corpus = prepare(config or run.config)
    check_data(
        run, corpus.fingerprint, "train the run anew, for its tokenizer may have changed too"
    )
    return corpus


def check_data(run: RunDirectory, fingerprint: str, or_else: str) -> None:
    """Raise DataError where the run was trained on data of another fingerprint."""
    if run.data_fingerprint not in (None, fingerprint):
        raise DataError(f"the data has changed since the run; restore it, or {or_else}")
