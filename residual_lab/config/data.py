"""The kinds of data, each with keys of its own; ``data.source`` tells which it is."""

from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import ConfigDict, Field, ValidationInfo, field_validator

from residual_lab.config.section import Count, Fraction, NonNegative, Section, absolute


class TextDataConfig(Section):
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


class LinearMapConfig(Section):
    """Random vectors and what a linear map makes of them (``residual_lab/data/linear_map.py``)."""

    name: str
    source: Literal["synthetic"]
    width: Count  # features of a vector
    target: Literal["identity", "random"] = "random"  # x itself, or A x + b
    target_seed: Annotated[int, Field(ge=0)] = 0  # of A, b and the two sets; not the run's
    validation_examples: Count = 1000
    test_examples: Count = 10_000
    sequence_length: ClassVar[int] = 1  # an example counts as one token


class ImageDataConfig(Section):
    """Labelled images, and how they are changed for training and cut for evaluation."""

    name: str
    source: Literal["digits", "cifar", "images"]
    path: str | None = None  # cifar: archive or folder; images: folder of class folders
    repository: str | None = None  # on the Hugging Face hub, where there is no path
    revision: str | None = None  # a commit, branch or tag of it; null: the newest
    image_field: str = "image"
    label_field: str = "label"
    classes: Annotated[int, Field(gt=1)]
    channels: Literal[1, 3]
    image_size: Count  # pixels along each side, as the model reads them
    validation_images: Count  # of the training set, held out; always the same ones
    mean: tuple[float, ...]  # of each channel, in units of white; subtracted
    std: tuple[float, ...]  # of each channel; divided by
    crop: Literal["none", "padded", "random_resized"] = "none"  # of training images
    crop_padding: Annotated[int, Field(ge=0)] = 4  # of padded: pixels on each side
    crop_area: Fraction = 0.08  # of random_resized: the least share of the image
    flip: bool = False  # half of the training images, left to right
    randaugment: Annotated[int, Field(ge=0, le=15)] = 0  # operations on a training image, of 15
    randaugment_magnitude: Annotated[int, Field(ge=1, le=29)] = 10  # between 0 and 30
    mixup: NonNegative = 0.0  # two images are mixed in shares from Beta(p, p); 0: none
    label_smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.0  # of the training loss alone
    resize: Count | None = None  # for evaluation: the shorter side before the centre crop
    workers: Annotated[int, Field(ge=0)] = 0  # processes that read; 0: the training process
    sequence_length: ClassVar[int] = 1  # an image counts as one token

    @field_validator("path", mode="after")
    @classmethod
    def _absolute(cls, value: str | None) -> str | None:
        return None if value is None else absolute(value)


CIFAR_CLASSES = {"label": 10, "fine_label": 100, "coarse_label": 20}
"""By ``label_field``, in the archives: that of CIFAR-10, and the two of CIFAR-100."""

SOURCES: dict[str, type[TextDataConfig] | type[LinearMapConfig] | type[ImageDataConfig]] = {
    "python": TextDataConfig,
    "files": TextDataConfig,
    "hub": TextDataConfig,
    "synthetic": LinearMapConfig,
    "digits": ImageDataConfig,
    "cifar": ImageDataConfig,
    "images": ImageDataConfig,
}
DataConfig = Annotated[
    TextDataConfig | LinearMapConfig | ImageDataConfig, Field(discriminator="source")
]
