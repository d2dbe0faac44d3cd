"""The families of models, each with keys of its own; ``model.family`` tells which it is."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import ConfigDict, Discriminator, Field, Tag, ValidationInfo, field_validator

from residual_lab.config.section import Count, Section


class DecoderConfig(Section):
    """A decoder-only transformer (``residual_lab/models/decoder.py``)."""

    name: str
    family: Literal["decoder"] = "decoder"
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
    causal: ClassVar[bool] = True  # a token reads none that comes later

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


class LowRankLinearConfig(Section):
    """Linear layers of low rank (``residual_lab/models/low_rank_linear.py``)."""

    name: str
    family: Literal["low_rank_linear"]
    layers: Count
    width: Count
    rank: Count  # of each layer


class ResNetConfig(Section):
    """A residual network of convolutions (``residual_lab/models/resnet.py``)."""

    name: str
    family: Literal["resnet"]
    block: Literal["bottleneck", "basic"]
    stages: Annotated[tuple[Count, ...], Field(min_length=1)]  # blocks of each
    base_width: Count  # channels of the first stage's 3×3 convolutions; each further has twice
    stem: Literal["imagenet", "cifar"]  # 7×7 of stride 2 and a max-pool; or 3×3
    relu: Literal["after_addition", "before_convolutions"] = "after_addition"
    shortcut: Literal["projection", "padding"] = "projection"  # of transitions between stages
    zero_gamma: bool = False  # the last norm of a block starts at zero
    channels: Count  # of an image
    classes: Count

    @property
    def expansion(self) -> int:
        """Channels of a stage's output over those of its 3×3 convolutions."""
        return 4 if self.block == "bottleneck" else 1

    @property
    def widths(self) -> list[int]:
        """Channels of each stage's output."""
        return [self.base_width * 2**stage * self.expansion for stage in range(len(self.stages))]

    @property
    def depths(self) -> list[int]:
        """Increments of each stage: its blocks, without the one that changes the shape."""
        changes = [self.base_width != self.widths[0], *([True] * (len(self.stages) - 1))]
        return [blocks - change for blocks, change in zip(self.stages, changes, strict=True)]

    @property
    def layers(self) -> int:
        return sum(self.depths)

    @property
    def width(self) -> int:
        """Channels of the last stage, which the head reads."""
        return self.widths[-1]

    @property
    def stride(self) -> int:
        """Pixels of an image to one of the last stage, along each side."""
        first: int = 4 if self.stem == "imagenet" else 1
        return first * 2 ** (len(self.stages) - 1)


class ViTConfig(Section):
    """A vision transformer (``residual_lab/models/vit.py``)."""

    name: str
    family: Literal["vit"]
    patch_size: Count  # pixels along each side
    layers: Count
    width: Annotated[int, Field(gt=0, multiple_of=4)]  # sines and cosines of two coordinates
    heads: Count
    mlp_width: Count | None = None  # null: 4·width
    rep_size: Count | None = None  # of a layer with tanh before the head; null: none
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    channels: Count  # of an image
    classes: Count

    # What Attention and MLP read beside these.
    mlp: ClassVar[Literal["gelu_tanh"]] = "gelu_tanh"
    norm: ClassVar[Literal["layernorm"]] = "layernorm"
    norm_bias: ClassVar[bool] = True
    norm_epsilon: ClassVar[float] = 1e-6
    bias: ClassVar[bool] = True
    attention_bias: ClassVar[bool] = True
    init: ClassVar[Literal["xavier"]] = "xavier"
    embedding_std: ClassVar[None] = None
    causal: ClassVar[bool] = False

    @property
    def attention_width(self) -> int:
        return self.width

    @field_validator("mlp_width", mode="after")
    @classmethod
    def _mlp_width(cls, value: int | None, info: ValidationInfo) -> int | None:
        width = info.data.get("width")
        return 4 * width if value is None and width is not None else value

    model_config = ConfigDict(validate_default=True)


TransformerConfig = DecoderConfig | ViTConfig

FAMILIES: dict[
    str, type[DecoderConfig] | type[LowRankLinearConfig] | type[ResNetConfig] | type[ViTConfig]
] = {
    "decoder": DecoderConfig,
    "low_rank_linear": LowRankLinearConfig,
    "resnet": ResNetConfig,
    "vit": ViTConfig,
}


def _family(model: Any) -> Any:
    if isinstance(model, dict):
        return model.get("family", "decoder")
    return getattr(model, "family", None)


ModelConfig = Annotated[
    Annotated[DecoderConfig, Tag("decoder")]
    | Annotated[LowRankLinearConfig, Tag("low_rank_linear")]
    | Annotated[ResNetConfig, Tag("resnet")]
    | Annotated[ViTConfig, Tag("vit")],
    Discriminator(_family),
]


def stacks(model: ModelConfig, granularity: str) -> list[tuple[int, int]]:
    """Depth and width of each stack of layers: a connection carries each by itself."""
    if isinstance(model, ResNetConfig):
        return list(zip(model.depths, model.widths, strict=True))
    return [(model.layers * (2 if granularity == "branch" else 1), model.width)]
