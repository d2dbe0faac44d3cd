"""Keys of images, and of the models that read them, that do not go together."""

from collections.abc import Callable, Iterator
from pathlib import Path

from residual_lab.config.data import ImageDataConfig
from residual_lab.config.models import ResNetConfig, ViTConfig
from residual_lab.config.schema import ResidualConfig


def inside_blocks(residual: ResidualConfig, model: ResNetConfig) -> Iterator[str]:
    """What the blocks of a ResNet ask of a connection."""
    from residual_lab.residuals import find_connection

    kind = find_connection(residual.connection)
    if kind.separate_inputs or kind.edits_values:
        return  # said already
    if not kind.pre_norm:
        yield (
            f"residual.connection={residual.connection}: does without the layers' norms, which a "
            "ResNet cannot; choose another residual or model"
        )
    elif model.relu == "after_addition" and not kind.takes_relu:
        yield (
            f"residual.connection={residual.connection}: has no one sum for the ReLU after each "
            "addition; set model.relu=before_convolutions, or choose another residual"
        )


def stages(model: ResNetConfig) -> Iterator[str]:
    if min(model.depths) < 1:
        yield (
            f"model.stages={list(model.stages)}: the first block of a stage that changes the shape "
            "has no connection, so it needs 2 blocks at least"
        )


def image_size(model: ResNetConfig | ViTConfig, data: ImageDataConfig) -> Iterator[str]:
    size = data.image_size
    if isinstance(model, ViTConfig):
        if size % model.patch_size:
            patch = model.patch_size
            yield f"data.image_size={size}: must be a multiple of model.patch_size={patch}"
    elif size < 2 * model.stride:
        yield (
            f"data.image_size={size}: too small for {len(model.stages)} stages, of which the last "
            f"sees one pixel of {model.stride}; at least {2 * model.stride}"
        )


def images(data: ImageDataConfig) -> Iterator[str]:
    for key in ("mean", "std"):
        values = getattr(data, key)
        if len(values) != data.channels or (key == "std" and min(values) <= 0):
            bound = " > 0" if key == "std" else ""
            yield (
                f"data.{key}={list(values)}: must be {data.channels} numbers{bound}, one a channel"
            )
    if data.source == "digits" and (data.path is not None or data.image_size != 8):
        yield "data.source=digits: has images of 8 × 8 and reads no path; choose data=cifar10"
    if data.source != "digits" and data.path is None and data.repository is None:
        yield "data.path=null: must be where the images are; or give data.repository=NAME"
    if data.path is not None and not Path(data.path).exists():
        yield f"data.path={data.path}: there is no such file or folder"
    if data.resize is not None and data.resize < data.image_size:
        yield f"data.resize={data.resize}: must be at least data.image_size={data.image_size}"
    if data.source != "images" and data.resize is not None:
        yield f"data.resize={data.resize}: the images of {data.name} have one size; must be null"


RULES: tuple[Callable[..., Iterator[str]], ...] = (inside_blocks, stages, image_size, images)
