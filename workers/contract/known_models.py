"""Sizes of models that are known by name, so that memory and disk can be estimated before anything is downloaded.

From the configurations that PaddleNLP 2.8 ships with; a folder counts as what it is called."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Shape:
    hidden: int
    layers: int
    heads: int
    vocabulary: int
    # Rows of the tables for positions, segments and tasks together.
    other_embeddings: int = 514
    intermediate: int = 0  # 0: four times the width

    @property
    def parameters(self) -> int:
        width, inner = self.hidden, self.intermediate or 4 * self.hidden
        embeddings = width * (self.vocabulary + self.other_embeddings + 2)
        per_layer = 4 * (width**2 + width) + 2 * width * inner + width + inner + 4 * width
        return embeddings + self.layers * per_layer + width**2 + width


# Positions 2048, segments 4, tasks 3 or 16.
_ERNIE_3 = {
    "xbase": Shape(1024, 20, 16, 40_000, 2068),
    "base": Shape(768, 12, 12, 40_000, 2055),
    "medium": Shape(768, 6, 12, 40_000, 2068),
    "mini": Shape(384, 6, 12, 40_000, 2068),
    "micro": Shape(384, 4, 12, 40_000, 2068),
    "nano": Shape(312, 4, 12, 40_000, 2068),
    "pico": Shape(128, 3, 2, 40_000, 2068),
}
_BASE, _LARGE = Shape(768, 12, 12, 21_128), Shape(1024, 24, 16, 21_128)

SHAPES: dict[str, Shape] = {
    **{f"ernie-3.0-{size}-zh": shape for size, shape in _ERNIE_3.items() if size != "pico"},
    **{
        f"ernie-3.0-tiny-{size}-{version}-zh": shape
        for size, shape in _ERNIE_3.items()
        for version in ("v1", "v2")
        if size != "xbase" and (size, version) != ("pico", "v1")
    },
    "ernie-1.0": Shape(768, 12, 12, 18_000, 515),
    "ernie-1.0-base-zh": Shape(768, 12, 12, 18_000, 515),
    "ernie-1.0-base-zh-cw": Shape(768, 12, 12, 40_000, 519),
    "ernie-1.0-large-zh-cw": Shape(1024, 24, 16, 18_000, 514, 3072),
    "ernie-tiny": Shape(1024, 3, 16, 50_006, 602),
    "ernie-2.0-base-zh": Shape(768, 12, 12, 18_000, 517),
    "ernie-2.0-large-zh": Shape(1024, 24, 16, 12_800, 516),
    "ernie-2.0-base-en": Shape(768, 12, 12, 30_522, 516),
    "ernie-2.0-large-en": Shape(1024, 24, 16, 30_522, 516),
    "bert-base-uncased": Shape(768, 12, 12, 30_522),
    "bert-large-uncased": Shape(1024, 24, 16, 30_522),
    "bert-base-cased": Shape(768, 12, 12, 28_996),
    "bert-large-cased": Shape(1024, 24, 16, 28_996),
    "bert-base-multilingual-cased": Shape(768, 12, 12, 119_547),
    "bert-base-multilingual-uncased": Shape(768, 12, 12, 105_879),
    "bert-base-chinese": _BASE,
    "bert-wwm-chinese": _BASE,
    "bert-wwm-ext-chinese": _BASE,
    "macbert-base-chinese": _BASE,
    "macbert-large-chinese": _LARGE,
    "roberta-wwm-ext": _BASE,
    "roberta-wwm-ext-large": _LARGE,
}


def shape_of(name: str) -> Shape | None:
    """By the last part of a name or path, whatever its case: "hfl/roberta-wwm-ext", "models/ernie-3.0-base-zh"."""
    return SHAPES.get(name.rstrip("/").rpartition("/")[2].lower())
