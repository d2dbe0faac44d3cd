"""Keys of images, and of the models that read them, that do not go together."""

from collections.abc import Callable, Iterator
from pathlib import Path

from residual_lab.config.data import CIFAR_CLASSES, ImageDataConfig
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
    """A connection needs an increment at least, and an increment weights that can train."""
    if min(model.depths) < 1:
        yield (
            f"model.stages={list(model.stages)}: the first block of a stage that changes the shape "
            "has no connection, so it needs 2 blocks at least"
        )
    if model.zero_gamma and model.relu == "before_convolutions":
        yield (
            "model.zero_gamma=true: the ReLU behind a norm that starts at zero passes no gradient, "
            "so no block would ever train; must be false, or set model.relu=after_addition"
        )


def image_size(model: ResNetConfig | ViTConfig, data: ImageDataConfig) -> Iterator[str]:
    """A ViT cuts whole patches; the last stage of a ResNet sees more than one pixel."""
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


def model_and_images(model: ResNetConfig | ViTConfig, data: ImageDataConfig) -> Iterator[str]:
    """The model reads the images' channels and has an output for each class."""
    if model.channels != data.channels:
        yield f"model.channels={model.channels}: must be data.channels={data.channels}"
    if model.classes < data.classes:
        yield f"model.classes={model.classes}: must be at least data.classes={data.classes}"


def channels(data: ImageDataConfig) -> Iterator[str]:
    """What is given for each channel, and what is done to images in colour alone."""
    for key in ("mean", "std"):
        values = getattr(data, key)
        if len(values) != data.channels or (key == "std" and min(values) <= 0):
            bound = " > 0" if key == "std" else ""
            yield (
                f"data.{key}={list(values)}: must be {data.channels} numbers{bound}, one a channel"
            )
    if data.randaugment and data.channels == 1:
        yield (
            f"data.randaugment={data.randaugment}: changes colours, which images of "
            "data.channels=1 do not have; must be 0, or set data.channels=3"
        )


def images(data: ImageDataConfig) -> Iterator[str]:
    """Where the images are, and of what size."""
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


def labels(data: ImageDataConfig) -> Iterator[str]:
    """An archive of CIFAR has labels of its own; the field tells which archive it is, too."""
    if data.source != "cifar" or data.path is None:
        return
    classes = CIFAR_CLASSES.get(data.label_field)
    if classes is None:
        yield (
            f"data.label_field={data.label_field}: the archives of CIFAR have label (CIFAR-10), "
            "fine_label and coarse_label (CIFAR-100); must be one of these"
        )
    elif classes != data.classes:
        yield (
            f"data.classes={data.classes}: data.label_field={data.label_field} of CIFAR's archives "
            f"has {classes}; change one of them"
        )


RULES: tuple[Callable[..., Iterator[str]], ...] = (
    inside_blocks,
    stages,
    image_size,
    model_and_images,
    channels,
    images,
    labels,
)
