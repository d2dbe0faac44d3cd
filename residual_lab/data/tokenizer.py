"""The tokenizer of a corpus: trained on it, read from a file, or named on the hub."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from residual_lab.data.hub import TIMEOUT_SECONDS, hub_error
from residual_lab.errors import DataError

END_OF_TEXT = "<|endoftext|>"
# How the well-known tokenizers call the token that ends a document.
END_TOKENS = (END_OF_TEXT, "</s>", "<|end_of_text|>", "<eos>", "<|im_end|>", "[SEP]")
SAMPLE_CHARACTERS = 2**23  # of training text that a BPE is trained on


@dataclass(frozen=True)
class TokenizerFile:
    """A tokenizer and the file that it was read from; ``end_of_text`` stands after a document."""

    path: Path
    tokenizer: Tokenizer
    end_of_text: int

    @classmethod
    def open(cls, path: Path) -> "TokenizerFile":
        """Raises DataError for what is none."""
        tokenizer = usable(load_tokenizer(str(path)))
        return cls(path, tokenizer, end_of_text(tokenizer, str(path)))


def train_bpe(documents: Iterable[str], vocabulary: int) -> Tokenizer:
    """A byte-level BPE with GPT-2's pre-tokenisation, of at most ``vocabulary`` pieces.

    Deterministic: equal documents give an equal tokenizer, whatever the number of threads.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_sample(documents), trainer)
    return tokenizer


def _sample(documents: Iterable[str]) -> Iterator[str]:
    characters = 0
    for text in documents:
        yield text[: SAMPLE_CHARACTERS - characters]
        characters += len(text)
        if characters >= SAMPLE_CHARACTERS:
            return


def load_tokenizer(spec: str) -> Tokenizer:
    """The tokenizer in a `tokenizers` JSON file, or of a repository on the hub."""
    path = Path(spec) if is_file(spec) else _fetch(spec)
    if not path.is_file():
        raise DataError(f"data.tokenizer={spec} does not exist: give a tokenizer.json, or bpe")
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception
        reason = str(error).splitlines()[0]
        raise DataError(f"data.tokenizer={spec} is no tokenizers file ({reason})") from None


def is_file(spec: str) -> bool:
    """Whether ``data.tokenizer`` names a file rather than ``bpe`` or a repository."""
    return spec.endswith(".json") or Path(spec).is_file()


def _fetch(name: str) -> Path:
    """The hub's tokenizer.json, or the copy that an earlier download left on this machine."""
    from huggingface_hub import HfApi, hf_hub_download

    try:
        HfApi().model_info(name, timeout=TIMEOUT_SECONDS)
        return Path(hf_hub_download(name, "tokenizer.json"))
    except Exception as error:
        try:
            return Path(hf_hub_download(name, "tokenizer.json", local_files_only=True))
        except Exception:
            raise hub_error(
                error,
                "data.tokenizer",
                name,
                at_hand="data.tokenizer=bpe",
                elsewhere="or give its file: data.tokenizer=FILE.json",
            ) from None


def usable(tokenizer: Tokenizer) -> Tokenizer:
    """Set for corpora: no padding or truncation, and no text is taken for a special token."""
    tokenizer.no_padding()
    tokenizer.no_truncation()
    tokenizer.encode_special_tokens = True
    return tokenizer


def end_of_text(tokenizer: Tokenizer, spec: str) -> int:
    """The id of the token that stands after each document."""
    for token in END_TOKENS:
        if (number := tokenizer.token_to_id(token)) is not None:
            return int(number)
    raise DataError(
        f"data.tokenizer={spec} has no end-of-text token: add one of {', '.join(END_TOKENS)}"
    )
