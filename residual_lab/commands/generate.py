"""``residual-lab generate``: text from a finished run."""

import math
import sys

from residual_lab.commands.table import paths_and_options
from residual_lab.costs.arguments import Arguments
from residual_lab.errors import LabError

OPTIONS = ("prompt", "tokens", "temperature", "top_k", "seed")

USAGE = """\
usage: residual-lab generate RUN [prompt=TEXT] [tokens=N] [temperature=T] [top_k=K] [seed=S]

Text from the final weights of a finished run, with its own tokenizer.

RUN          a run directory
TEXT         how the document begins; default: nothing
N            at most so many tokens more (default 200); the end of the document ends it
T            1 (default) draws as the model says, below 1 more cautiously; 0 takes the likeliest
K            draws among the K likeliest tokens only; default: all
S            another seed (default 0), another text; the same seed, the same text

Models with learned positions read the last tokens only beyond the length that they were trained
on, which takes longer; the others go on."""


def main(arguments: list[str]) -> int:
    if not arguments or "-h" in arguments or "--help" in arguments:
        print(USAGE)
        return 0 if arguments else 2
    paths, options = paths_and_options(arguments, OPTIONS)
    if len(paths) > 1:
        raise LabError(f"{' '.join(paths)}: {len(paths)} runs; name one")
    numbers = Arguments(options, ())
    tokens, top_k = numbers.whole_number("tokens", 200), numbers.whole_number("top_k", None)
    seed, temperature = numbers.whole_number("seed", 0, least=0), _temperature(options)
    assert tokens is not None and seed is not None

    from residual_lab.evaluation.generation import continuation, position_limit
    from residual_lab.evaluation.trained import Trained
    from residual_lab.training.final import own_tokenizer

    trained = Trained.load(paths[0])
    limit = position_limit(trained)  # also refuses a model that reads no text
    text, beyond = continuation(
        trained,
        own_tokenizer(trained.run),
        options.get("prompt", ""),
        tokens,
        temperature=temperature,
        top_k=top_k,
        seed=seed,
    )
    print(text)
    if beyond:
        print(f"longer than the {limit} trained positions: read the last {limit}", file=sys.stderr)
    return 0


def _temperature(options: dict[str, str]) -> float:
    text = options.get("temperature", "1")
    try:
        temperature = float(text)
    except ValueError:
        temperature = math.nan
    if not 0 <= temperature < math.inf:
        raise LabError(f"temperature={text}: must be a number ≥ 0")
    return temperature
