"""The typed configuration: every key, its type and its bounds.

Hydra composes the YAML files of ``conf/``; this module says what the result may hold. A
:class:`Config` is what the rest of the package receives and what a run directory's
``config.yaml`` holds, plain and fully resolved. It imports neither torch nor Hydra.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from residual_lab.config.data import DataConfig
from residual_lab.config.models import ModelConfig
from residual_lab.config.section import BelowOne, Count, Fraction, NonNegative, Section, absolute


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


class StartConfig(Section):
    """The weights that a run starts from, where they are not drawn from its seed."""

    run: str | None = None  # the directory of a finished run

    @field_validator("run", mode="after")
    @classmethod
    def _absolute(cls, value: str | None) -> str | None:
        return None if value is None else absolute(value)


class EvaluationConfig(Section):
    """Validation during the run and the test at its end; whole sets, token-weighted."""

    every_steps: Count
    batch_sequences: Count


class OptimConfig(Section):
    """The optimizer and its schedule; a connection's parameters are groups of their own."""

    name: str
    optimizer: Literal["adamw", "sgd"] = "adamw"
    lr: Annotated[float, Field(gt=0)]
    momentum: BelowOne = 0.0  # of SGD
    betas: tuple[BelowOne, BelowOne] = (0.9, 0.95)  # of AdamW, as epsilon
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

    @property
    def needs_launcher(self) -> bool:
        """Whether processes run on other hosts too, which torchrun or SLURM must start."""
        return self.nodes > 1 and self.accelerator != "tpu"


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
    start: StartConfig = StartConfig()
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
