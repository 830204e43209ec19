"""Training lines, each changed a little, anew at every step.

The numbers are drawn by NumPy, which the trainer starts anew at every step, so that a step that is made again changes its
lines in the same way; the work on the pixels is done for the whole batch.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle
import paddle.nn.functional as F

from workers.recipes.text_lines.settings import AugmentationSettings
from workers.trainer.task import Floats, Rows


def augmented(pictures: Any, widths: Rows, settings: AugmentationSettings) -> Any:
    """[n, 1 or 3, height, width] from 0 to 255, changed as set; widths [n] stay what they are."""
    n = len(widths)
    with paddle.no_grad():
        if settings.tilt or settings.slant or settings.scale:
            places = source_places(widths, pictures.shape[2], pictures.shape[3], settings)
            pictures = F.grid_sample(
                pictures, paddle.to_tensor(places.astype(np.float32)), padding_mode="border", align_corners=True
            )
        if settings.blur:
            share = _column(np.random.uniform(0.0, settings.blur, n))
            # The edge is repeated, so that it does not grow dark.
            spread = F.avg_pool2d(F.pad(pictures, [1, 1, 1, 1], mode="replicate"), 3, 1)
            pictures = pictures + share * (spread - pictures)
        if settings.light:
            contrast = _column(1.0 + np.random.uniform(-settings.light, settings.light, n))
            shift = _column(127.5 * np.random.uniform(-settings.light, settings.light, n))
            pictures = (pictures - 127.5) * contrast + 127.5 + shift
        if settings.noise:
            size = (255.0 * np.random.uniform(0.0, settings.noise, (n, 1, 1, 1))).astype(np.float32)
            noise = np.random.standard_normal(pictures.shape).astype(np.float32)
            pictures = pictures + paddle.to_tensor(size * noise)
        return pictures.clip(0.0, 255.0)


def _column(values: Floats) -> Any:
    return paddle.to_tensor(values.astype(np.float32).reshape(-1, 1, 1, 1))


def source_places(widths: Rows, height: int, width: int, settings: AugmentationSettings) -> Floats:
    """[n, height, width, 2]: the place, from −1 to 1, that each pixel of the new picture shows of the old one. About the middle
    of each line, and never from beyond its width."""
    n = len(widths)

    def drawn(most: float) -> Floats:
        return np.random.uniform(-most, most, (n, 1, 1))

    last = (widths - 1).reshape(n, 1, 1).astype(np.float64)
    middle_x, middle_y = last / 2, (height - 1) / 2
    x = np.arange(width).reshape(1, 1, -1) - middle_x
    y = np.arange(height).reshape(1, -1, 1) - middle_y
    # In units of the line: at its ends x / reach is ±1.
    reach = np.maximum(middle_x, 1.0)
    from_x = x * (1.0 + drawn(settings.scale)) + y * drawn(settings.slant)
    from_y = y * (1.0 + drawn(settings.scale)) + drawn(settings.tilt) * height * x / reach
    from_x = np.clip(from_x + middle_x, 0.0, last) / max(width - 1, 1) * 2 - 1
    from_y = (from_y + middle_y) / max(height - 1, 1) * 2 - 1
    return np.stack(np.broadcast_arrays(from_x, from_y), axis=-1)
