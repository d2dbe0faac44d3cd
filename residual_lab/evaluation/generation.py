"""Text from a decoder, token by token, with a key-value cache."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from residual_lab.data.tokenizer import TokenizerFile
from residual_lab.evaluation.trained import Trained
from residual_lab.models import Decoder
from residual_lab.models.attention import KeyValueCache


def generate(
    model: Decoder,
    tokens: Sequence[int],
    count: int,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    generator: torch.Generator | None = None,
    window: int | None = None,
    vocabulary: int | None = None,
) -> Iterator[int]:
    """Yield ``count`` tokens that follow ``tokens``, of which there is one at least.

    Temperature 0 takes the likeliest; otherwise ``generator``, of the CPU, draws among the
    ``top_k`` likeliest, or all. Each token sees at most ``window`` before it; beyond that number
    the window slides, and every token is read anew, since its position is another. ``vocabulary``:
    how many of the model's tokens there are.
    """
    tokens = list(tokens)
    caches = model.new_caches() if model.config.share == 1 else None
    unread = tokens
    for _ in range(count):
        if caches is None or (window is not None and len(tokens) > window):
            logits = _next_logits(model, tokens[-(window or 0) :], None)
        else:
            logits = _next_logits(model, unread, caches)
        token = _choose(logits[:vocabulary], temperature, top_k, generator)
        yield token
        unread = [token]
        tokens.append(token)


def _next_logits(
    model: Decoder, tokens: Sequence[int], caches: dict[torch.nn.Module, KeyValueCache] | None
) -> Tensor:
    """Of the token that follows ``tokens``: (V,), float32 or better, on the CPU."""
    tokens_BT = torch.tensor([tokens], device=model.embedding.weight.device)
    hidden_D = model.hidden(tokens_BT, caches)[0, -1]
    logits = F.linear(hidden_D, model.head_weight, model.head_bias).cpu()
    return logits if logits.dtype == torch.float64 else logits.float()


def _choose(
    logits: Tensor, temperature: float, top_k: int | None, generator: torch.Generator | None
) -> int:
    if temperature == 0:
        return int(logits.argmax())
    logits, places = logits.topk(min(top_k or len(logits), len(logits)))
    relative = (logits - logits[0]) / temperature  # no overflow, however cold
    chosen = torch.multinomial(relative.softmax(0), 1, generator=generator)
    return int(places[chosen])


def position_limit(trained: Trained) -> int | None:
    """The most tokens that have a trained position each; None where there is no limit.

    A learned table has none beyond the length of the training sequences.
    """
    learned = trained.decoder.config.positions == "learned"
    return trained.config.data.sequence_length if learned else None


def continuation(
    trained: Trained,
    own: TokenizerFile,
    prompt: str,
    count: int,
    *,
    temperature: float,
    top_k: int | None,
    seed: int,
) -> tuple[str, bool]:
    """``prompt`` and at most ``count`` tokens more, up to the end of the document.

    Also whether that went beyond :func:`position_limit`. The prompt is read as the beginning of a
    document: after an end-of-text token.
    """
    window = position_limit(trained)
    encoded = own.tokenizer.encode(prompt, add_special_tokens=False).ids
    found = []
    with trained.reading():
        for token in generate(
            trained.decoder,
            [own.end_of_text, *encoded],
            count,
            temperature=temperature,
            top_k=top_k,
            generator=torch.Generator().manual_seed(seed),
            window=window,
            vocabulary=own.tokenizer.get_vocab_size(),
        ):
            if token == own.end_of_text:
                break
            found.append(token)
    tokens = [*encoded, *found]
    return own.tokenizer.decode(tokens), window is not None and len(tokens) > window
