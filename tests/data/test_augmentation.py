"""What is done to training images depends on seed and place alone."""

import numpy as np
import pytest

from residual_lab.config.data import ImageDataConfig
from residual_lab.data.augmentation import augmented, mixing_partners, mixing_share

PICTURE = np.random.default_rng(0).integers(0, 256, (16, 24, 3), np.uint8)
SQUARE = np.ascontiguousarray(PICTURE[:, :16])


def data(**options: object) -> ImageDataConfig:
    made = {
        "name": "made",
        "source": "images",
        "path": ".",
        "classes": 2,
        "channels": 3,
        "image_size": 16,
        "validation_images": 1,
        "mean": (0, 0, 0),
        "std": (1, 1, 1),
    }
    return ImageDataConfig.model_validate({**made, **options})


@pytest.mark.parametrize(
    "options", [{"crop": "padded", "flip": True}, {"crop": "random_resized"}, {"randaugment": 2}]
)
def test_a_function_of_seed_and_place(options: dict[str, object]) -> None:
    if "randaugment" in options:
        pytest.importorskip("kornia")
    made = [augmented(SQUARE, data(**options), 0, place) for place in range(8)]
    again = [augmented(SQUARE, data(**options), 0, place) for place in reversed(range(8))][::-1]
    assert all(np.array_equal(*pair) for pair in zip(made, again, strict=True))
    assert all(pixels.shape == (16, 16, 3) and pixels.dtype == np.uint8 for pixels in made)
    assert len({pixels.tobytes() for pixels in made}) > 4
    other = [augmented(SQUARE, data(**options), 1, place) for place in range(8)]
    assert not all(np.array_equal(*pair) for pair in zip(made, other, strict=True))


@pytest.mark.parametrize(("operations", "magnitude"), [(1, 1), (15, 29)])
def test_kornia_takes_all_that_the_configuration_does(operations: int, magnitude: int) -> None:
    pytest.importorskip("kornia")
    options = data(randaugment=operations, randaugment_magnitude=magnitude)
    assert augmented(SQUARE, options, 0, 0).shape == (16, 16, 3)


def test_padded_crops_are_windows_of_the_padded_image_and_all_of_them_occur() -> None:
    padded = np.pad(SQUARE, ((1, 1), (1, 1), (0, 0)))
    windows = {
        padded[top : top + 16, left : left + 16].tobytes() for top in range(3) for left in range(3)
    }
    options = data(crop="padded", crop_padding=1)
    found = {augmented(SQUARE, options, 0, place).tobytes() for place in range(100)}
    assert found == windows


def test_half_of_the_images_are_mirrored() -> None:
    options, mirrored = data(flip=True), 0
    for place in range(200):
        pixels = augmented(SQUARE, options, 0, place)
        assert np.array_equal(pixels, SQUARE) or np.array_equal(pixels, SQUARE[:, ::-1])
        mirrored += not np.array_equal(pixels, SQUARE)
    assert 75 < mirrored < 125


def test_random_resized_crops_have_the_areas_that_are_asked_for() -> None:
    """Of a picture whose colours are its coordinates, so that a crop says where it is from."""
    side = 240
    rows, columns = np.mgrid[:side, :side]
    picture = np.stack([rows, columns, 0 * rows], -1).astype(np.uint8)
    options, areas, aspects = data(crop="random_resized", crop_area=0.25, image_size=64), [], []
    for place in range(300):
        pixels = augmented(picture, options, 0, place).astype(float)
        height, width = (np.ptp(pixels[..., axis]) * 64 / 63 for axis in (0, 1))
        areas.append(height * width / side**2)
        aspects.append(width / height)
    assert 0.22 < min(areas) < 0.32 and 0.85 < max(areas) < 1.05
    assert abs(np.mean(areas) - 0.625) < 0.08  # less where wide or high ones do not fit
    assert 0.72 < min(aspects) < 0.8 and 1.25 < max(aspects) < 1.38


def test_shares_of_mixup_are_of_a_beta_distribution_folded_at_a_half() -> None:
    shares = [mixing_share(0.2, 0, number) for number in range(2000)]
    assert min(shares) >= 0.5 and max(shares) <= 1
    # max(b, 1 − b) = ½ + |b − ½|; a variance of 1/(4(2p + 1)) bounds the mean from above
    assert np.mean(np.square(np.array(shares) - 0.5)) == pytest.approx(1 / (4 * 1.4), rel=0.03)
    assert mixing_share(0.2, 0, 7) == shares[7] != mixing_share(0.2, 1, 7)
    assert mixing_partners(np.arange(8), 4).tolist() == [3, 0, 1, 2, 7, 4, 5, 6]
