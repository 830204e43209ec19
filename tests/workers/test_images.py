"""Pictures of a dataset: decoding whatever a file may hold, and the folder that recipes read."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from workers import images
from workers.images import Images, NoPicture, TooLarge, decode, thumbnail, verified


def file_of(picture: Image.Image, form: str = "PNG", **more: Any) -> bytes:
    file = io.BytesIO()
    picture.save(file, form, **more)
    return file.getvalue()


def plain(colour: Any = (200, 30, 40), size: tuple[int, int] = (6, 4), mode: str = "RGB") -> Image.Image:
    return Image.new(mode, size, colour)


@pytest.mark.parametrize("form", ["PNG", "JPEG", "BMP", "WEBP", "GIF"])
def test_every_format_is_decoded_to_height_width_channels(form: str) -> None:
    data = file_of(plain(), form)
    named, size, colours = verified(data)
    assert (named.upper(), size, colours) == (form, (6, 4), True)
    pixels = decode(data)
    assert pixels.shape == (4, 6, 3) and pixels.dtype == np.uint8
    assert np.abs(pixels[0, 0].astype(int) - (200, 30, 40)).max() <= 4
    assert decode(data, "L").shape == (4, 6, 1)


def test_a_picture_that_lies_on_its_side_is_turned_upright() -> None:
    picture = plain()
    picture.putpixel((0, 0), (0, 0, 255))
    exif = Image.Exif()
    exif[0x0112] = 6
    data = file_of(picture, "PNG", exif=exif)
    assert verified(data)[1] == (4, 6)
    pixels = decode(data)
    assert pixels.shape == (6, 4, 3)
    assert pixels[0, 3].tolist() == [0, 0, 255]


def test_transparent_pixels_are_white() -> None:
    assert decode(file_of(plain((9, 9, 9, 0), mode="RGBA")))[0, 0].tolist() == [255, 255, 255]
    assert decode(file_of(plain((9, 0), mode="LA")))[0, 0].tolist() == [255, 255, 255]
    palette = plain((255, 0, 0)).convert("P", palette=Image.Palette.ADAPTIVE)
    assert decode(file_of(palette, transparency=palette.getpixel((0, 0))))[0, 0].tolist() == [255, 255, 255]
    assert decode(file_of(palette))[0, 0].tolist() == [255, 0, 0]


def test_sixteen_bits_become_their_upper_eight() -> None:
    values = np.full((4, 6), 0x8001, np.uint16)
    data = file_of(Image.fromarray(values))
    assert decode(data, "L")[0, 0].tolist() == [0x80]
    assert decode(data)[0, 0].tolist() == [0x80, 0x80, 0x80]
    assert verified(data)[2] is False


def test_one_bit_and_cmyk_are_decoded() -> None:
    assert decode(file_of(plain(1, mode="1")), "L")[0, 0].tolist() == [255]
    assert decode(file_of(plain((0, 0, 0, 0), mode="CMYK"), "JPEG"))[0, 0].min() > 250


def test_of_an_animation_the_first_picture_counts() -> None:
    data = file_of(plain((255, 0, 0)), "GIF", save_all=True, append_images=[plain((0, 255, 0))])
    assert decode(data)[0, 0].tolist() == [255, 0, 0]


def test_what_is_no_picture_or_a_broken_one_is_refused() -> None:
    noise = np.random.default_rng(0).integers(0, 255, (40, 40, 3), np.uint8)
    whole = file_of(Image.fromarray(noise))
    for data in (b"", b"no picture", whole[: len(whole) // 2], file_of(plain(), "TIFF")):
        with pytest.raises(NoPicture):
            verified(data)
        with pytest.raises(NoPicture):
            decode(data)


def test_more_pixels_than_the_limit_are_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "MOST_PIXELS", 23)
    with pytest.raises(TooLarge, match="6 × 4"):
        decode(file_of(plain()))


def test_a_thumbnail_fits_and_has_nothing_of_the_file_but_its_look() -> None:
    exif = Image.Exif()
    exif[0x010E] = "where it was taken"
    exif[0x0112] = 6
    for form in ("JPEG", "PNG", "WEBP"):
        small = thumbnail(file_of(plain(size=(1600, 800)), form, exif=exif), 160)
        assert verified(small)[:2] == ("JPEG", (80, 160))
        assert np.abs(decode(small).astype(int) - (200, 30, 40)).max() <= 6
    assert b"where it was taken" not in small


def test_the_written_folder_has_each_picture_once_and_rows_that_find_it(tmp_path: Path) -> None:
    red, blue = file_of(plain()), file_of(plain((0, 0, 255), (3, 2)), "BMP")
    images.write_folder(
        tmp_path,
        {
            "train": [("a/1.png", red, {"label": "a"}), ("a/2.png", red, {"label": "a"})],
            "dev": [("b/文.bmp", blue, {"label": "b"})],
        },
    )
    rows = [
        json.loads(line)
        for split in ("train", "dev")
        for line in (tmp_path / f"{split}.jsonl").read_text("utf-8").splitlines()
    ]
    assert rows[0] == {"id": "a/1.png", "image": [0, len(red)], "size": [6, 4], "label": "a"}
    assert rows[1]["image"] == rows[0]["image"]
    assert rows[2] == {"id": "b/文.bmp", "image": [len(red), len(blue)], "size": [3, 2], "label": "b"}
    with Images(tmp_path) as pictures:
        assert len(pictures) == len(red) + len(blue)
        assert pictures.read(*rows[2]["image"]) == blue
        for offset, size in ((-1, 3), (len(red), len(blue) + 1), (0, -1)):
            with pytest.raises(ValueError, match="bytes at"):
                pictures.read(offset, size)
