"""Lines as on receipts and cards, made up and drawn with free fonts: for the demo and for trying things out.

python -m workers.recipes.text_lines.sample > lines.zip
"""

from __future__ import annotations

import importlib.util
import io
import random
import sys
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    import numpy as np
    from PIL import ImageFont

LABELS = "labels.txt"
DATE = (2026, 1, 1, 0, 0, 0)
# Packages that hold nothing but fonts, and the files in them: for letters and digits, and for Chinese.
LATIN = (
    ("font_source_sans_pro", "files/SourceSansPro-Regular.ttf"),
    ("font_source_sans_pro", "files/SourceSansPro-Semibold.ttf"),
    ("font_source_sans_pro", "files/SourceSansPro-It.ttf"),
    ("font_source_serif_pro", "files/SourceSerifPro-Regular.ttf"),
    ("font_source_serif_pro", "files/SourceSerifPro-Bold.ttf"),
)
CHINESE = (("paperang_p2_fonts_cjk", "fonts/wqy-microhei.ttc"),)
GOODS = [
    "Coffee",
    "Espresso",
    "Tea",
    "Water",
    "Juice",
    "Milk",
    "Butter",
    "Cheese",
    "Bread",
    "Roll",
    "Cake",
    "Sugar",
    "Salt",
    "Rice",
    "Pasta",
    "Soup",
    "Salad",
    "Apple",
    "Banana",
    "Grapes",
    "Lemon",
    "Tomato",
    "Onion",
    "Potato",
    "Garlic",
    "Egg",
    "Chicken",
    "Fish",
    "Notebook",
    "Pencil",
    "Envelope",
    "Stamp",
    "Ticket",
    "Parking",
    "Charger",
    "Battery",
    "Soap",
    "Shampoo",
    "Towel",
    "Flowers",
    "Umbrella",
]
KINDS = [
    "small",
    "large",
    "fresh",
    "dried",
    "green",
    "black",
    "organic",
    "double",
    "half",
    "family",
    "refill",
    "classic",
]
HEADS = ("Receipt", "Invoice", "Order", "Table", "Terminal", "Cashier", "Ref.", "Member")
SUMS = ("TOTAL", "Subtotal", "Discount", "Change", "Cash", "VAT 19%", "VAT 7%", "Card", "Rounding", "Tip")
GOODS_ZH = [
    "咖啡",
    "绿茶",
    "红茶",
    "牛奶",
    "面包",
    "米饭",
    "面条",
    "鸡蛋",
    "苹果",
    "香蕉",
    "葡萄",
    "西瓜",
    "白菜",
    "土豆",
    "番茄",
    "豆腐",
    "牛肉",
    "鱼片",
    "水饺",
    "酸奶",
    "果汁",
    "毛巾",
    "肥皂",
    "电池",
]
SUMS_ZH = ["合计", "小计", "应付", "实付", "找零", "优惠", "现金", "刷卡", "税额", "金额"]
HEADS_ZH = ["单号", "日期", "时间", "店员", "会员", "桌号", "流水号", "终端号"]


def _money(draw: random.Random) -> str:
    return f"{draw.choice([draw.uniform(0.5, 20), draw.uniform(10, 400), draw.uniform(100, 9000)]):.2f}"


def _goods(draw: random.Random) -> str:
    goods = draw.choice(GOODS)
    if draw.random() < 0.5:
        goods = f"{goods} {draw.choice(KINDS)}"
    many = f"{draw.randint(2, 12)} x " if draw.random() < 0.4 else ""
    return f"{many}{goods} {_money(draw)}"


def _sum(draw: random.Random) -> str:
    currency = draw.choice(["", " EUR", " USD", " €", " $"])
    return f"{draw.choice(SUMS)} {_money(draw)}{currency}"


def _date(draw: random.Random) -> str:
    year, month, day = draw.randint(1998, 2031), draw.randint(1, 12), draw.randint(1, 28)
    time = f"{draw.randint(0, 23):02d}:{draw.randint(0, 59):02d}"
    date = draw.choice(
        [f"{year}-{month:02d}-{day:02d}", f"{day:02d}/{month:02d}/{year}", f"{day:02d}.{month:02d}.{year}"]
    )
    return draw.choice([date, f"{date} {time}", f"{time}:{draw.randint(0, 59):02d}"])


def _card(draw: random.Random) -> str:
    """Groups of digits as on a card; no number of a real one: those begin with 1 to 6."""
    groups = [f"{draw.choice('0789')}{draw.randint(0, 999):03d}"] + [f"{draw.randint(0, 9999):04d}" for _ in range(3)]
    if draw.random() < 0.4:
        groups[1:3] = ["****", "****"]
    return " ".join(groups)


def _head(draw: random.Random) -> str:
    number = draw.choice(
        [f"{draw.randint(1, 99999)}", f"{draw.choice('ABCDEFGHKLMNPRSTVWXYZ')}-{draw.randint(100, 99999)}"]
    )
    return f"{draw.choice(HEADS)} {draw.choice(['No. ', '#', ''])}{number}"


def _chinese(draw: random.Random) -> str:
    which = draw.randrange(4)
    if which == 0:
        return f"{draw.choice(SUMS_ZH)}：{_money(draw)}元"
    if which == 1:
        return f"{draw.choice(GOODS_ZH)} {draw.randint(1, 9)}份 {_money(draw)}"
    if which == 2:
        return f"{draw.choice(HEADS_ZH)}：{draw.randint(1, 999999)}"
    return f"{draw.randint(2008, 2031)}年{draw.randint(1, 12)}月{draw.randint(1, 28)}日"


WRITERS: tuple[tuple[Callable[[random.Random], str], float], ...] = (
    (_goods, 0.3),
    (_sum, 0.2),
    (_date, 0.15),
    (_card, 0.15),
    (_head, 0.2),
)


@dataclass(frozen=True)
class Line:
    name: str
    picture: bytes  # PNG
    text: str


def lines(count: int = 2400, seed: int = 2026, chinese: float = 0.2) -> Iterator[Line]:
    """`chinese`: the share of Chinese lines. Raises ModuleNotFoundError without Pillow and the packages of fonts."""
    import numpy as np  # not before: the web side, which offers them, has no Pillow

    draw, noise = random.Random(seed), np.random.Generator(np.random.PCG64(seed))
    latin, han = [_file(*one) for one in LATIN], [_file(*one) for one in CHINESE] if chinese else []
    kinds, shares = zip(*WRITERS, strict=True)
    for number in range(1, count + 1):
        is_chinese = draw.random() < chinese
        text = _chinese(draw) if is_chinese else draw.choices(kinds, shares)[0](draw)
        picture = drawn(text, draw.choice(han if is_chinese else latin), draw, noise)
        yield Line(f"lines/{number:05d}.png", picture, text)


def _file(package: str, path: str) -> str:
    found = importlib.util.find_spec(package)  # only located
    if found is None or found.origin is None:
        raise ModuleNotFoundError(f"the package {package}, which carries a font, is not installed")
    return str(Path(found.origin).parent / path)


@lru_cache(maxsize=256)
def _font(file: str, size: int) -> ImageFont.FreeTypeFont:
    from PIL import ImageFont

    return ImageFont.truetype(file, size)


def drawn(text: str, font_file: str, draw: random.Random, noise: np.random.Generator) -> bytes:
    """PNG in grey: ink on paper of some brightness, a little turned, a little blurred, with noise."""
    import numpy as np
    from PIL import Image, ImageDraw

    size = draw.randint(20, 34)
    font = _font(font_file, size)
    left, top, right, bottom = font.getbbox(text)
    edge = size // 2
    # Drawn with room around, turned, then cut to what a careful crop of a line would be.
    whole = Image.new("L", (round(right - left) + 2 * edge, round(bottom - top) + 2 * edge), 0)
    ImageDraw.Draw(whole).text((edge - left, edge - top), text, fill=255, font=font)
    whole = whole.rotate(draw.uniform(-1.2, 1.2), Image.Resampling.BICUBIC, expand=True)
    box = whole.getbbox() or (0, 0, *whole.size)
    room = [draw.randint(1, max(size // 4, 2)) for _ in range(4)]
    box = (
        max(box[0] - room[0], 0),
        max(box[1] - room[1], 0),
        min(box[2] + room[2], whole.width),
        min(box[3] + room[3], whole.height),
    )
    ink = np.asarray(whole.crop(box), np.float32) / 255
    if draw.random() < 0.4:  # a little out of focus
        ink = (np.roll(ink, 1, 0) + np.roll(ink, -1, 0) + np.roll(ink, 1, 1) + np.roll(ink, -1, 1) + 2 * ink) / 6
    paper, dark = draw.uniform(170, 255), draw.uniform(0, 90)
    shade = np.linspace(0, draw.uniform(-25, 25), ink.shape[1], dtype=np.float32)
    pixels = paper + shade - ink * (paper - dark)
    pixels += noise.standard_normal(ink.shape, dtype=np.float32) * draw.choice([0.0, 4.0, 9.0])
    file = io.BytesIO()
    Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8)).save(file, "PNG")
    return file.getvalue()


def write(file: BinaryIO, count: int = 2400, seed: int = 2026, chinese: float = 0.2) -> None:
    """A zip of pictures with a label file as PaddleOCR's, `path<TAB>text` in each line; the same bytes every time."""
    labels = []
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for line in lines(count, seed, chinese):
            archive.writestr(zipfile.ZipInfo(line.name, DATE), line.picture)
            labels.append(f"{line.name}\t{line.text}\n")
        archive.writestr(zipfile.ZipInfo(LABELS, DATE), "".join(labels))


if __name__ == "__main__":
    write(sys.stdout.buffer)
