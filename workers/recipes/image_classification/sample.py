"""Handwritten digits as PNGs of 8 × 8 pixels: scikit-learn's (UCI ML optical recognition of handwritten digits), a folder per digit.

python -m workers.recipes.image_classification.sample digits.zip
"""

from __future__ import annotations

import io
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO


def digits(count: int | None = None) -> Iterator[tuple[str, bytes, str]]:
    """(name, PNG file, label), 1,797 in all. Raises ModuleNotFoundError without scikit-learn."""
    # Not before: the web side, which offers them, needs none of these.
    import numpy as np
    from PIL import Image
    from sklearn.datasets import load_digits

    found = load_digits()
    for number, (pixels, label) in enumerate(zip(found.images[:count], found.target[:count], strict=True)):
        file = io.BytesIO()
        # From 0 to 16; ink is dark, as on paper.
        Image.fromarray((255 - np.round(pixels * 255 / 16)).astype(np.uint8)).save(file, "PNG", optimize=True)
        yield f"{label}/{number:04d}.png", file.getvalue(), str(label)


def write(file: BinaryIO) -> None:
    """A zip archive, the same bytes every time."""
    with zipfile.ZipFile(file, "w") as archive:
        for name, data, _label in digits():
            archive.writestr(zipfile.ZipInfo(name, (2026, 1, 1, 0, 0, 0)), data)


if __name__ == "__main__":
    with Path(sys.argv[1]).open("wb") as target:
        write(target)
