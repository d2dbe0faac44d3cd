"""Keys that do not go together: one function a rule, its parameters the sections that it reads."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, get_args, get_type_hints

from pydantic import BaseModel, ConfigDict, create_model

from residual_lab.config import image_conflicts
from residual_lab.config.data import DataConfig, LinearMapConfig, TextDataConfig
from residual_lab.config.models import (
    DecoderConfig,
    LowRankLinearConfig,
    ModelConfig,
    ResNetConfig,
    TransformerConfig,
    stacks,
)
from residual_lab.config.schema import BudgetConfig, HardwareConfig, ResidualConfig, StartConfig
from residual_lab.errors import ConfigError, LabError


def conflicts(sections: Mapping[str, BaseModel]) -> Iterator[str]:
    """Yield a line for each broken rule whose sections are all there, and of its kinds."""
    for rule in _RULES:
        kinds = {name: kind for name, kind in get_type_hints(rule).items() if name != "return"}
        if all(isinstance(sections.get(name), kind) for name, kind in kinds.items()):
            yield from rule(**{name: sections[name] for name in kinds})


# What each family of models reads, the sources of such data, and an example.
_READS = {
    "decoder": ("text", ("python", "files", "hub"), "data=python_source"),
    "low_rank_linear": ("vectors", ("synthetic",), "data=linear_map"),
    "resnet": ("images", ("digits", "cifar", "images"), "data=digits"),
    "vit": ("images", ("digits", "cifar", "images"), "data=digits"),
}


def unreadable(family: str, source: str) -> str | None:
    """A line if models of ``family`` cannot read data from ``source``."""
    what, sources, example = _READS[family]
    if source in sources:
        return None
    return (
        f"model.family={family}: reads {what}, not data.source={source}; give data such as "
        f"{example}, or another model"
    )


def _family(model: ModelConfig, data: DataConfig) -> Iterator[str]:
    line = unreadable(model.family, data.source)
    if line is not None:
        yield line


def _features(model: LowRankLinearConfig, data: LinearMapConfig) -> Iterator[str]:
    if data.width != model.width:
        yield f"data.width={data.width}: must be model.width={model.width}"


def _heads(model: TransformerConfig) -> Iterator[str]:
    width, heads = model.attention_width or model.width, model.heads
    if width % heads:
        near = " or ".join(map(str, _nearest_divisors(width, heads)))
        yield (
            f"model.heads={heads}: must divide the attention width {width} "
            f"(model.attention_width, or model.width where that is null); nearest: {near}"
        )
    elif isinstance(model, DecoderConfig) and model.positions == "rotary" and width // heads % 2:
        yield (
            f"model.heads={heads}: rotary positions need an even width of each head, not "
            f"{width}/{heads} = {width // heads}; change model.heads or model.positions"
        )


def _positions(model: DecoderConfig, data: TextDataConfig) -> Iterator[str]:
    if model.positions != "learned":
        return
    rows = model.max_sequence_length
    if rows is None:
        yield (
            "model.max_sequence_length=null: learned positions need it; give at least "
            f"{data.sequence_length}, the value of data.sequence_length"
        )
    elif data.sequence_length > rows:
        yield (
            f"data.sequence_length={data.sequence_length}: longer than the {rows} learned positions"
            f"; at most {rows}, or raise model.max_sequence_length"
        )


def _share(model: DecoderConfig) -> Iterator[str]:
    if model.layers % model.share:
        near = " or ".join(map(str, _nearest_divisors(model.layers, model.share)))
        yield f"model.share={model.share}: must divide model.layers={model.layers}; nearest: {near}"


def _vocabulary(model: DecoderConfig, data: TextDataConfig) -> Iterator[str]:
    if data.tokenizer == "bpe" and data.vocabulary < 257:
        yield (
            f"data.vocabulary={data.vocabulary}: a byte-level BPE has at least 257 pieces, the "
            "bytes and the end of a text"
        )
    if data.vocabulary > model.vocabulary:
        yield (
            f"data.vocabulary={data.vocabulary}: more tokens than the model has "
            f"(model.vocabulary={model.vocabulary}); lower it or raise model.vocabulary"
        )


def _source(data: TextDataConfig) -> Iterator[str]:
    if (data.name == "python_source") != (data.source == "python"):
        yield (
            f"data.source={data.source}: data.name={data.name} would be a wrong label; choose the "
            "corpus by its group, data=text, or give data.name too"
        )
    if data.source == "python" and data.path is not None:
        yield f"data.path={data.path}: data.source=python reads no path; choose data=text"
    if data.source == "files" and data.path is None:
        yield "data.path=null: must be a file or a folder of text; give data.path=PATH"
    if data.source == "hub" and data.path is None and data.repository is None:
        yield "data.repository=null: must name a data set on the hub; or give data.path=PATH"
    if data.path is not None and not Path(data.path).exists():
        yield f"data.path={data.path}: there is no such file or folder"


def _budget(budget: BudgetConfig) -> Iterator[str]:
    tokens, steps, batch = budget.tokens, budget.steps, budget.batch_tokens
    if tokens is not None and steps is not None:
        yield (
            f"budget.steps={steps}: budget.tokens={tokens} is given too; set one of them to null"
        )
    elif tokens is None and steps is None:
        yield "budget.tokens=null: give budget.tokens=N or budget.steps=N"
    elif tokens is not None and tokens % batch:
        below = tokens // batch * batch
        near = f"{below} or {below + batch}" if below else str(batch)
        yield (
            f"budget.tokens={tokens}: must be a multiple of budget.batch_tokens={batch}; "
            f"nearest: {near}"
        )


def _batches(budget: BudgetConfig, data: DataConfig, hardware: HardwareConfig) -> Iterator[str]:
    batch, length = budget.batch_tokens, data.sequence_length
    if batch % length:
        below = batch // length * length
        near = f"{below} or {below + length}" if below else str(length)
        yield (
            f"budget.batch_tokens={batch}: must be a multiple of data.sequence_length={length}; "
            f"nearest: {near}"
        )
        return
    devices = (1 if hardware.devices == "auto" else hardware.devices) * hardware.nodes
    sequences, parts = batch // length, devices * hardware.accumulate
    if sequences % parts:
        yield (
            f"hardware.accumulate={hardware.accumulate}: the {sequences} sequences of a step "
            f"(budget.batch_tokens / data.sequence_length) do not divide into accumulate × devices "
            f"= {hardware.accumulate} × {devices} equal parts; change one of them"
        )


def unsupported_precision(hardware: HardwareConfig) -> Iterator[str]:
    """What Lightning would refuse, or silently replace; ``auto`` is what the machine decides."""
    every = get_args(HardwareConfig.model_fields["precision"].annotation)
    if hardware.accelerator == "tpu":
        where, there = "hardware.accelerator=tpu", {"32-true", "bf16-true"}
    elif hardware.strategy == "fsdp":
        where, there = "hardware.strategy=fsdp", {"32-true", "bf16-mixed", "bf16-true"}
    elif hardware.accelerator == "cpu":
        where, there = "hardware.accelerator=cpu", {*every} - {"16-mixed"}
    else:
        return
    if hardware.precision not in {"auto", *there}:
        choices = ", ".join(name for name in every if name in there and name != "auto")
        yield f"hardware.precision={hardware.precision}: {where} has {choices}; choose one of them"


# Keys of a model that say how it trains or begins, not what its weights mean.
_NOT_OF_WEIGHTS = ("name", "dropout", "init", "embedding_std")


def _start(start: StartConfig, model: ModelConfig) -> Iterator[str]:
    """Weights of a run that has none, or of another model."""
    from residual_lab.run_directory import RunDirectory

    if start.run is None:
        return
    try:
        other = RunDirectory.open(start.run)
        status = other.status
    except LabError as error:
        yield f"start.run: {error}"
        return
    if status != "finished":
        yield f"start.run={start.run}: it is {status}; must be the directory of a finished run"
    theirs, ours = (dict(config) for config in (other.config.model, model))
    keys = [key for key in ours if key not in _NOT_OF_WEIGHTS and ours[key] != theirs.get(key)]
    if keys:
        its, own = (
            ", ".join(f"{key}={values.get(key)}" for key in keys) for values in (theirs, ours)
        )
        yield f"start.run={start.run}: its model has {its}, this one {own}; they must be the same"


def _inside_layers(
    residual: ResidualConfig, model: LowRankLinearConfig | ResNetConfig
) -> Iterator[str]:
    """What only the layers of a transformer have."""
    from residual_lab.residuals import find_connection

    kind = find_connection(residual.connection)
    if kind.separate_inputs or kind.edits_values:
        yield (
            f"residual.connection={residual.connection}: acts on queries, keys or values, and "
            f"model.family={model.family} has no attention; choose another residual or model"
        )
    if residual.granularity == "branch":
        yield (
            f"residual.granularity=branch: a layer of model.family={model.family} has no branches; "
            "must be layer"
        )


def _residual(residual: ResidualConfig, model: ModelConfig) -> Iterator[str]:
    """The connection itself knows which of its options go together."""
    import torch

    from residual_lab.residuals import build_connection

    options = options_of(residual)
    try:
        with torch.device("meta"):  # allocates nothing and draws nothing
            for depth, width in stacks(model, residual.granularity):
                build_connection(residual.connection, depth, width, options)
    except ConfigError as error:
        yield from error.problems


_RULES: tuple[Callable[..., Iterator[str]], ...] = (
    _family,
    _features,
    _heads,
    _positions,
    _share,
    _vocabulary,
    _source,
    _budget,
    _batches,
    unsupported_precision,
    _start,
    _inside_layers,
    *image_conflicts.RULES,
    _residual,
)


def _nearest_divisors(number: int, wanted: int) -> list[int]:
    """The divisors of ``number`` next to ``wanted``, below and above."""
    divisors = [d for d in range(1, number + 1) if number % d == 0]
    below = [d for d in divisors if d < wanted][-1:]
    return below + [d for d in divisors if d > wanted][:1]


def options_of(residual: ResidualConfig) -> dict[str, Any]:
    """What the connection is constructed with, in the types it declares: 0 may be a float."""
    return dict(option_schema(residual.connection).model_validate(residual.options))


@lru_cache
def option_schema(connection: str) -> type[BaseModel]:
    """The options of a connection as a pydantic model, read from its constructor's signature.

    Raises ConfigError when ``connection``, such as ``plain:Plain``, names no class.
    """
    from residual_lab.residuals import find_connection

    constructor = find_connection(connection).__init__
    hints = get_type_hints(constructor, include_extras=True)
    fields: dict[str, Any] = {
        name: (hints.get(name, Any), ... if p.default is p.empty else p.default)
        for name, p in inspect.signature(constructor).parameters.items()
        if p.kind is p.KEYWORD_ONLY
    }
    return create_model(
        "Options", __config__=ConfigDict(extra="forbid", allow_inf_nan=False), **fields
    )
