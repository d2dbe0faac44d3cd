"""The typed configuration: every key, its type and its bounds.

Hydra composes the YAML files of ``conf/``; this module says what the result may hold. A
:class:`Config` is what the rest of the package receives and what a run directory's
``config.yaml`` holds, plain and fully resolved. It imports neither torch nor Hydra.
"""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

Count = Annotated[int, Field(gt=0)]
Fraction = Annotated[float, Field(ge=0, le=1)]
NonNegative = Annotated[float, Field(ge=0)]


def absolute(path: str) -> str:
    """The path from the root, so that a saved configuration works from any folder."""
    return str(Path(path).expanduser().absolute())


class Section(BaseModel):
    """Unknown keys are refused; nothing changes after validation."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class ModelConfig(Section):
    """A decoder-only transformer (``residual_lab/models/decoder.py``)."""

    name: str
    layers: Count
    width: Count
    heads: Count
    attention_width: Count | None = None  # width of queries, keys and values; null: `width`
    mlp: Literal["gelu", "relu", "swiglu"] = "gelu"
    mlp_width: Count | None = None  # null: 4·width, for SwiGLU 8·width/3
    norm: Literal["layernorm", "rmsnorm"] = "layernorm"
    norm_bias: bool = False
    norm_epsilon: Annotated[float, Field(gt=0)] = 1e-5
    positions: Literal["rotary", "learned", "sinusoidal"] = "rotary"
    max_sequence_length: Count | None = None  # rows of the learned table
    bias: bool = False  # in the linear maps of attention and MLP
    attention_bias: bool | None = None  # in those of attention; null: `bias`
    tied_head: bool = True
    head_bias: bool = False
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    vocabulary: Count
    share: Count = 1  # consecutive layers that share one set of weights
    init: Literal["gpt2", "xavier"] = "gpt2"
    embedding_std: Annotated[float, Field(gt=0)] | None = None  # null: 0.02; of xavier 1/√width

    @field_validator("attention_width", mode="after")
    @classmethod
    def _attention_width(cls, value: int | None, info: ValidationInfo) -> int | None:
        return value if value is not None else info.data.get("width")

    @field_validator("attention_bias", mode="after")
    @classmethod
    def _attention_bias(cls, value: bool | None, info: ValidationInfo) -> bool | None:
        return value if value is not None else info.data.get("bias")

    @field_validator("mlp_width", mode="after")
    @classmethod
    def _mlp_width(cls, value: int | None, info: ValidationInfo) -> int | None:
        width, mlp = info.data.get("width"), info.data.get("mlp")
        if value is not None or width is None:
            return value
        return width * 8 // 3 if mlp == "swiglu" else 4 * width

    model_config = ConfigDict(validate_default=True)


class ResidualConfig(BaseModel):
    """The residual connection; further keys are the options of its class."""

    model_config = ConfigDict(extra="allow", frozen=True)

    name: str
    connection: (
        str  # module:Class in residual_lab.residuals, package.module:Class, or file.py:Class
    )
    granularity: Literal["layer", "branch"] = "layer"

    @field_validator("connection", mode="after")
    @classmethod
    def _absolute_file(cls, value: str) -> str:
        module, colon, name = value.rpartition(":")
        return f"{absolute(module)}:{name}" if colon and module.endswith(".py") else value

    @property
    def options(self) -> dict[str, Any]:
        return dict(self.model_extra or {})


class BudgetConfig(Section):
    """How long a run is: one of ``tokens`` and ``steps``; exact in both."""

    tokens: Count | None = None
    steps: Count | None = None
    batch_tokens: Count  # tokens per optimizer step, over all devices and accumulated batches


class EvaluationConfig(Section):
    """Validation during the run and the test at its end; whole sets, token-weighted."""

    every_steps: Count
    batch_sequences: Count


class DataConfig(Section):
    """A corpus, its tokenizer and the length of a training sequence."""

    name: str
    source: Literal["python", "files", "hub"]
    path: str | None = None  # a file or folder, for `files`; a local copy of the files, for `hub`
    repository: str | None = None  # on the Hugging Face hub
    revision: str | None = None  # a commit, branch or tag of the hub's data set; null: the newest
    subset: str | None = None
    text_field: str = "text"
    tokenizer: str = "bpe"  # bpe (trained on the corpus), a tokenizer.json, or a name on the hub
    vocabulary: Count
    sequence_length: Count
    train_tokens: Count | None = None  # null: the whole corpus; from the hub: what the budget needs
    validation_tokens: Count | None = None  # the first so many of the split; null: all of it
    test_tokens: Count | None = None
    validation_fraction: Annotated[float, Field(gt=0, lt=0.5)] = 0.02
    test_fraction: Annotated[float, Field(gt=0, lt=0.5)] = 0.02
    workers: Count | None = None  # processes that tokenise; null: one a core
    cache_dir: str | None = None  # null: ~/.cache/residual-lab

    @field_validator("path", "cache_dir", mode="after")
    @classmethod
    def _absolute(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value is None and info.field_name == "cache_dir":
            value = "~/.cache/residual-lab"
        return None if value is None else absolute(value)

    @field_validator("tokenizer", mode="after")
    @classmethod
    def _absolute_file(cls, value: str) -> str:
        return absolute(value) if value.endswith(".json") or Path(value).is_file() else value

    model_config = ConfigDict(validate_default=True)


class OptimConfig(Section):
    """AdamW and its schedule; a connection's parameters are groups of their own."""

    name: str
    lr: Annotated[float, Field(gt=0)]
    betas: tuple[Fraction, Fraction] = (0.9, 0.95)
    epsilon: Annotated[float, Field(gt=0)] = 1e-8
    weight_decay: NonNegative = 0.1
    decay: Literal["matrices", "all"] = "matrices"  # which base parameters decay
    clip_norm: Annotated[float, Field(gt=0)] | None = 1.0
    schedule: Literal["constant", "cosine", "inverse_sqrt", "wsd", "one_cycle"] = "cosine"
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    initial_lr_factor: Fraction = 0.0  # the learning rate starts at this share of its peak
    final_lr_factor: Fraction = 0.1  # and ends at this one
    decay_fraction: Annotated[float, Field(gt=0, le=1)] = 0.2  # of the steps, for `wsd`
    connection_lr_factor: Annotated[float, Field(gt=0)] = 1.0
    connection_weight_decay: NonNegative = 0.0
    connection_start_step: Annotated[int, Field(ge=0)] = 0  # a connection trains from here on


class HardwareConfig(Section):
    """Where a run executes; Lightning's strategies."""

    name: str
    accelerator: Literal["auto", "cpu", "gpu", "tpu"] = "auto"
    devices: Count | Literal["auto"] = 1
    nodes: Count = 1
    strategy: Literal["auto", "ddp", "fsdp"] = "auto"
    precision: Literal["auto", "32-true", "64-true", "bf16-mixed", "bf16-true", "16-mixed"] = "auto"
    accumulate: Count = 1  # micro-batches to an optimizer step
    compile: bool = False
    checkpoint_layers: bool = False  # recompute a layer's activations in backward
    deterministic: bool = False
    threads: Count | None = None  # CPU threads a process; null: cores / processes


class LoggerConfig(Section):
    """A mirror of the run's files; tables never read it."""

    name: Literal["none", "wandb", "csv", "tensorboard"]
    project: str = "residual-lab"
    entity: str | None = None
    group: str | None = None  # null: the sweep or table that the run belongs to
    tags: tuple[str, ...] = ()
    mode: Literal["auto", "online", "offline"] = "auto"  # auto: online where W&B has a key


class DebugConfig(Section):
    """Helps to find a fault; ``conf/debug`` sets these."""

    name: str = "none"
    detect_anomaly: bool = False
    overfit: bool = False  # train on one batch again and again
    profile: bool = False  # write torch.profiler's trace of a few steps


class MeasureConfig(Section):
    """The measuring protocol's own numbers (docs/measuring.md)."""

    warmup_steps: Annotated[int, Field(ge=0)] = 5  # neither timed nor in the peak of memory
    window_steps: Count = 10  # steps between two synchronisations of the clock


class RunConfig(Section):
    """Where run directories are made and how often they are saved."""

    dir: str = "runs"
    checkpoint_every_steps: Count
    fail_fast: bool = False  # a sweep stops at its first failure

    @field_validator("dir", mode="after")
    @classmethod
    def _absolute(cls, value: str) -> str:
        return absolute(value)


class Config(Section):
    """One run, whole: what ``config.yaml`` of a run directory holds."""

    seed: Annotated[int, Field(ge=0, lt=2**32)]
    model: ModelConfig
    residual: ResidualConfig
    data: DataConfig
    budget: BudgetConfig
    optim: OptimConfig
    evaluation: EvaluationConfig
    hardware: HardwareConfig
    logger: LoggerConfig
    debug: DebugConfig = DebugConfig()
    measure: MeasureConfig = MeasureConfig()
    run: RunConfig

    @property
    def name(self) -> str:
        return f"{self.model.name}-{self.residual.name}-{self.data.name}"

    @property
    def steps(self) -> int:
        """Optimizer steps of the whole run."""
        if self.budget.steps is not None:
            return self.budget.steps
        assert self.budget.tokens is not None
        return self.budget.tokens // self.budget.batch_tokens

    @property
    def tokens(self) -> int:
        """Tokens trained on in the whole run: steps × tokens per step."""
        return self.steps * self.budget.batch_tokens

    @property
    def batch_sequences(self) -> int:
        """Sequences per optimizer step, over all devices and accumulated batches."""
        return self.budget.batch_tokens // self.data.sequence_length
