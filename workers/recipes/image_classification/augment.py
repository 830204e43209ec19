"""Training pictures, each changed a little: the numbers are drawn on the host, the work on the pictures is done in batches.

All random numbers are NumPy's, which the trainer starts anew at every step, so that a step that is made again changes its
pictures in the same way.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import paddle
import paddle.nn.functional as F

from workers.recipes.image_classification.settings import AugmentationSettings, Crop

Numbers = npt.NDArray[np.float64]
# Of enlarged parts (width to height), and what random erasing takes, as in the papers.
RATIO = (3 / 4, 4 / 3)
ERASED_AREA, ERASED_RATIO = (0.02, 0.33), (0.3, 3.3)


@dataclass(frozen=True)
class Mixed:
    """Each loss is `share` of that of its own label, and the rest of that of the partner's."""

    share: float
    partners: npt.NDArray[np.int64]


def augmented(pictures: Any, settings: AugmentationSettings, mean: Any) -> tuple[Any, Mixed | None]:
    """[n, 3, size, size] from 0 to 1, changed as set. What has no pixel gets the colour `mean` [1, 3, 1, 1]."""
    count, _, side, _ = pictures.shape
    with paddle.no_grad():
        if settings.brightness or settings.contrast:
            pictures = _lit(pictures, settings)
        if settings.crop is not Crop.NONE or settings.flip or settings.rotation:
            grid = F.affine_grid(
                paddle.to_tensor(maps(count, side, settings)), list(pictures.shape), align_corners=False
            )
            # What lies outside is 0, which then is the mean.
            pictures = F.grid_sample(pictures - mean, grid, padding_mode="zeros", align_corners=False) + mean
        if settings.erasing:
            kept = paddle.to_tensor(kept_pixels(count, side, settings.erasing))
            pictures = (pictures - mean) * kept + mean
        if settings.mixup:
            mixed = Mixed(float(np.random.beta(settings.mixup, settings.mixup)), np.random.permutation(count))
            others = pictures[paddle.to_tensor(mixed.partners)]
            return mixed.share * pictures + (1 - mixed.share) * others, mixed
    return pictures, None


def maps(count: int, side: int, settings: AugmentationSettings) -> npt.NDArray[np.float32]:
    """[n, 2, 3]: from each place of a new picture to the place of the old one that it shows, both from -1 to 1."""
    width, height = np.ones(count), np.ones(count)
    right, down = np.zeros(count), np.zeros(count)
    if settings.crop is Crop.SHIFT:
        most = round(settings.padding * side)
        # Whole pixels: nothing is blurred.
        right, down = (np.random.randint(-most, most + 1, count) * 2 / side for _ in range(2))
    elif settings.crop is Crop.RESIZE:
        area = np.random.uniform(settings.least_area, 1.0, count)
        ratio = np.exp(np.random.uniform(math.log(RATIO[0]), math.log(RATIO[1]), count))
        width, height = np.minimum(np.sqrt(area * ratio), 1.0), np.minimum(np.sqrt(area / ratio), 1.0)
        right, down = (np.random.uniform(-1.0, 1.0, count) * (1.0 - length) for length in (width, height))
    if settings.flip:
        width = width * np.random.choice([-1.0, 1.0], count)
    angle = np.zeros(count)
    if settings.rotation:
        angle = np.random.uniform(-settings.rotation, settings.rotation, count) * np.pi / 180
    cosine, sine = np.cos(angle), np.sin(angle)
    rows = [[cosine * width, -sine * height, right], [sine * width, cosine * height, down]]
    found: npt.NDArray[np.float32] = np.stack([np.stack(row, axis=-1) for row in rows], axis=1).astype(np.float32)
    return found


def kept_pixels(count: int, side: int, share: float) -> npt.NDArray[np.float32]:
    """[n, 1, size, size]: 0 where a rectangle is erased, in about `share` of the pictures."""
    area = np.random.uniform(*ERASED_AREA, count)
    ratio = np.exp(np.random.uniform(math.log(ERASED_RATIO[0]), math.log(ERASED_RATIO[1]), count))
    chosen = np.random.random(count) < share
    places = np.arange(side)
    inside = []
    for length in (np.sqrt(area * ratio), np.sqrt(area / ratio)):
        pixels = np.clip(np.round(length * side), 1, side)
        first = np.floor(np.random.random(count) * (side - pixels + 1))
        inside.append((places >= first[:, None]) & (places < (first + pixels)[:, None]))
    erased = inside[0][:, :, None] & inside[1][:, None, :] & chosen[:, None, None]
    kept: npt.NDArray[np.float32] = (~erased)[:, None].astype(np.float32)
    return kept


def _lit(pictures: Any, settings: AugmentationSettings) -> Any:
    """Brighter or darker, with more or less contrast; still from 0 to 1."""
    shape = (len(pictures), 1, 1, 1)
    light, contrast = (
        paddle.to_tensor((1.0 + np.random.uniform(-most, most, shape)).astype(np.float32))
        for most in (settings.brightness, settings.contrast)
    )
    pictures = pictures * light
    middle = pictures.mean(axis=[1, 2, 3], keepdim=True)
    return ((pictures - middle) * contrast + middle).clip(0.0, 1.0)
