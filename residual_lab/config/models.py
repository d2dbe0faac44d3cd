"""The families of models, each with keys of its own; ``model.family`` tells which it is."""

from typing import Annotated, Any, Literal

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


FAMILIES: dict[str, type[DecoderConfig] | type[LowRankLinearConfig]] = {
    "decoder": DecoderConfig,
    "low_rank_linear": LowRankLinearConfig,
}


def _family(model: Any) -> Any:
    if isinstance(model, dict):
        return model.get("family", "decoder")
    return getattr(model, "family", None)


ModelConfig = Annotated[
    Annotated[DecoderConfig, Tag("decoder")]
    | Annotated[LowRankLinearConfig, Tag("low_rank_linear")],
    Discriminator(_family),
]
