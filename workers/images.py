"""Pictures of a dataset (`images.bin`) and how one is decoded: by checks, recipes and trials alike.

Needs Pillow and NumPy, so it is not for the web side.
"""

from __future__ import annotations

import hashlib
import io
import json
import mmap
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Literal

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps, UnidentifiedImageError

from workers.contract.datasets import IMAGES, MOST_PIXELS, SPLITS

Pixels = npt.NDArray[np.uint8]
Mode = Literal["RGB", "L"]

# As Pillow calls them, and as pages do.
FORMATS = {"PNG": "PNG", "JPEG": "JPEG", "MPO": "JPEG", "BMP": "BMP", "WEBP": "WebP", "GIF": "GIF"}
_OPENED = ("PNG", "JPEG", "BMP", "WEBP", "GIF")
_MAGIC = ((b"\x89PNG", "PNG"), (b"\xff\xd8", "JPEG"), (b"GIF8", "GIF"), (b"BM", "BMP"), (b"RIFF", "WebP"))
# EXIF orientations that lie on their side.
_LYING = (5, 6, 7, 8)
_ORIENTATION = 0x0112
_EIGHT_BITS = {"I;16": 8, "I;16B": 8, "I;16L": 8, "I;16N": 8, "I": 8}

# `opened` has a limit of its own, and says what is wrong where Pillow would warn.
Image.MAX_IMAGE_PIXELS = None


class NoPicture(ValueError):
    """The bytes are no picture of a known format, or a broken one. The text says why."""


class TooLarge(NoPicture):
    """More than MOST_PIXELS, which are not decoded."""

    def __init__(self, width: int, height: int) -> None:
        super().__init__(f"{width} × {height} pixels, of at most {MOST_PIXELS // 10**6} million")
        self.width, self.height = width, height


class Images:
    """The pictures of a prepared dataset by place: rows have `"image": [offset, bytes]`. Safe to read from many threads."""

    def __init__(self, folder: Path) -> None:
        with (folder / IMAGES).open("rb") as file:
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def __len__(self) -> int:
        """Bytes."""
        return len(self._map)

    def read(self, offset: int, size: int) -> bytes:
        """Raises ValueError if that is not in the file."""
        if not 0 <= offset <= offset + size <= len(self._map):
            raise ValueError(f"there are no {size} bytes at {offset} of {len(self._map)}")
        return self._map[offset : offset + size]

    def close(self) -> None:
        self._map.close()

    def __enter__(self) -> Images:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def opened(data: bytes) -> Image.Image:
    """The picture, not yet decoded. Raises NoPicture, TooLarge."""
    try:
        picture = Image.open(io.BytesIO(data), formats=_OPENED)
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001  # Pillow's readers raise whatever broken bytes lead to
        raise NoPicture(_said(error, data)) from None
    width, height = picture.size
    if width * height > MOST_PIXELS:
        raise TooLarge(width, height)
    return picture


def _said(error: Exception, data: bytes) -> str:
    if isinstance(error, UnidentifiedImageError):
        if known := next((name for magic, name in _MAGIC if data.startswith(magic)), ""):
            return f"a broken {known}"
        return f"not a picture; it begins with {data[:8]!r}" if data else "empty"
    return f"{error}" or type(error).__name__


def verified(data: bytes) -> tuple[str, tuple[int, int], bool]:
    """Decodes all of it: the format, (width, height) as it is seen, and whether it has colours. Raises NoPicture, TooLarge."""
    picture = opened(data)
    try:
        picture.load()
        lying = picture.getexif().get(_ORIENTATION) in _LYING
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001
        raise NoPicture(_said(error, data)) from None
    width, height = picture.size
    colours = picture.mode not in ("1", "L", "LA", "La", *_EIGHT_BITS)
    return FORMATS[picture.format or ""], (height, width) if lying else (width, height), colours


def decode(data: bytes, mode: Mode = "RGB") -> Pixels:
    """uint8 [height, width, 3], or [height, width, 1] of mode "L"; upright by its EXIF orientation, transparent pixels on
    white, of 16 bits the upper 8, of an animation the first picture. Raises NoPicture, TooLarge."""
    pixels = np.asarray(upright(data).convert(mode))
    return pixels if pixels.ndim == 3 else pixels[:, :, None]


def upright(data: bytes, side: int = 0) -> Image.Image:
    """Decoded, in mode RGB or L; with `side` a large JPEG to no more than is needed for that many pixels, which is far faster.
    Raises NoPicture, TooLarge."""
    picture = opened(data)
    try:
        if side:
            picture.draft("RGB", (2 * side, 2 * side))
        picture.load()
        picture = ImageOps.exif_transpose(picture)
        if picture.mode in _EIGHT_BITS:
            picture = Image.fromarray((np.asarray(picture).astype(np.int64) >> 8).clip(0, 255).astype(np.uint8))
        if picture.mode == "P" and "transparency" not in picture.info:
            picture = picture.convert("RGB")
        if picture.has_transparency_data:
            seen = picture.convert("RGBA")
            white = Image.new("RGBA", seen.size, "white")
            picture = Image.alpha_composite(white, seen).convert("RGB")
        return picture if picture.mode in ("RGB", "L") else picture.convert("L" if picture.mode == "1" else "RGB")
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001
        raise NoPicture(_said(error, data)) from None


def thumbnail(data: bytes, side: int) -> bytes:
    """At most `side` pixels wide and high, encoded anew as JPEG: nothing of the file but its look. Raises NoPicture."""
    picture = upright(data, side)
    picture.thumbnail((side, side))
    file = io.BytesIO()
    picture.save(file, "JPEG", quality=85)
    return file.getvalue()


# --- writing ---------------------------------------------------------------------------------


class ImagesWriter:
    """Appends pictures to `images.bin` in a folder; the same bytes only once."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / IMAGES
        self._file: BinaryIO = self._path.open("w+b")
        self._places: dict[bytes, tuple[int, int]] = {}
        self._digest = hashlib.sha256()
        self.bytes = 0

    def add(self, data: bytes) -> tuple[int, int]:
        """Offset and bytes."""
        digest = hashlib.sha256(data).digest()
        place = self._places.get(digest)
        if place is None:
            place = self._places[digest] = (self.bytes, len(data))
            self._file.write(data)
            self._digest.update(data)
            self.bytes += len(data)
        return place

    def read(self, offset: int, size: int) -> bytes:
        """Of what was added."""
        self._file.flush()
        return os.pread(self._file.fileno(), size, offset)

    @property
    def digest(self) -> str:
        """SHA-256 of all that is written so far."""
        return self._digest.hexdigest()

    def close(self) -> None:
        """Flushed to disk; never written again."""
        if not self._file.closed:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            self._path.chmod(0o444)


def write_folder(folder: Path, splits: Mapping[str, Iterable[tuple[str, bytes, Mapping[str, Any]]]]) -> None:
    """A prepared folder of picture datasets from rows per split, (name, picture file, {"label": …} or {"text": …}): what a
    check makes of the same rows, for demos, benches and tests. Raises NoPicture."""
    pictures = ImagesWriter(folder)
    try:
        for split in SPLITS:
            with (folder / f"{split}.jsonl").open("w", encoding="utf-8") as lines:
                for name, data, more in splits.get(split, ()):
                    _format, size, _colours = verified(data)
                    lines.write(row_line(name, pictures.add(data), size, more))
    finally:
        pictures.close()


def row_line(name: str, place: tuple[int, int], size: tuple[int, int], more: Mapping[str, Any]) -> str:
    """A line of a split: `{"id": name, "image": [offset, bytes], "size": [width, height], "label" or "text": …}`."""
    return json.dumps({"id": name, "image": place, "size": size, **more}, ensure_ascii=False) + "\n"
