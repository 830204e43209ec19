"""ResNets made of paddle.vision's blocks, and a Vision Transformer. Needs nothing but Paddle: exported models bring this file along.

    network = build(json.load(open("config.json")))

Pictures are float32 [n, 3, size, size], RGB from 0 to 1; the normalisation is part of the network. What comes out are logits [n, classes].
"""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle
from paddle.vision.models.resnet import BasicBlock, BottleneckBlock

# Depth -> block, and how many of it each stage has.
RESNETS: dict[str, tuple[Any, tuple[int, ...]]] = {
    "resnet18": (BasicBlock, (2, 2, 2, 2)),
    "resnet34": (BasicBlock, (3, 4, 6, 3)),
    "resnet50": (BottleneckBlock, (3, 4, 6, 3)),
    "resnet101": (BottleneckBlock, (3, 4, 23, 3)),
    "resnet152": (BottleneckBlock, (3, 8, 36, 3)),
}


class Network(paddle.nn.Layer):  # type: ignore[misc]
    """What both kinds share: mean and deviation of each colour."""

    def __init__(self, mean: list[float], deviation: list[float]) -> None:
        super().__init__()
        self.register_buffer("mean", paddle.to_tensor(mean, "float32").reshape([1, 3, 1, 1]))
        self.register_buffer("deviation", paddle.to_tensor(deviation, "float32").reshape([1, 3, 1, 1]))

    def normalised(self, pictures: Any) -> Any:
        return (pictures - self.mean) / self.deviation


class Basic(BasicBlock):  # type: ignore[misc]
    """paddle.vision's, with a layer at the end of the branch beside the residual."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.drop_path = paddle.nn.Identity()

    @property
    def last_norm(self) -> Any:
        return self.bn2

    def forward(self, x: Any) -> Any:
        beside = x if self.downsample is None else self.downsample(x)
        branch = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        return self.relu(self.drop_path(branch) + beside)


class Bottleneck(BottleneckBlock):  # type: ignore[misc]
    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.drop_path = paddle.nn.Identity()

    @property
    def last_norm(self) -> Any:
        return self.bn3

    def forward(self, x: Any) -> Any:
        beside = x if self.downsample is None else self.downsample(x)
        branch = self.relu(self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x))))))
        return self.relu(self.drop_path(self.bn3(self.conv3(branch))) + beside)


class Stem(paddle.nn.Layer):  # type: ignore[misc]
    def __init__(self, channels: int, small: bool, norm: Any) -> None:
        super().__init__()
        size, stride, padding = (3, 1, 1) if small else (7, 2, 3)
        self.conv = paddle.nn.Conv2D(3, channels, size, stride=stride, padding=padding, bias_attr=False)
        self.norm = norm(channels)
        self.relu = paddle.nn.ReLU()
        self.pool = paddle.nn.Identity() if small else paddle.nn.MaxPool2D(3, stride=2, padding=1)

    def forward(self, x: Any) -> Any:
        return self.pool(self.relu(self.norm(self.conv(x))))


class ResNet(Network):
    """He et al. 2015. With a width of 64, the large stem and BatchNorm it is paddle.vision's; `vision_name` says what that calls a weight."""

    def __init__(
        self,
        architecture: str,
        classes: int,
        mean: list[float],
        deviation: list[float],
        width: int = 64,
        small_stem: bool = False,
        norm: str = "batch",
        dropout: float = 0.0,
    ) -> None:
        super().__init__(mean, deviation)
        kind, counts = RESNETS[architecture]
        block = Basic if kind is BasicBlock else Bottleneck
        made = paddle.nn.BatchNorm2D if norm == "batch" else _group_norm
        self.stem = Stem(width, small_stem, made)
        inside = width
        self.stages = []
        for number, count in enumerate(counts, 1):
            planes, layers = width * 2 ** (number - 1), []
            for i in range(count):
                stride = 2 if i == 0 and number > 1 else 1
                beside = None
                if stride != 1 or inside != planes * block.expansion:
                    beside = paddle.nn.Sequential(
                        paddle.nn.Conv2D(inside, planes * block.expansion, 1, stride=stride, bias_attr=False),
                        made(planes * block.expansion),
                    )
                layers.append(block(inside, planes, stride, beside, norm_layer=made))
                inside = planes * block.expansion
            self.stages.append(self.add_sublayer(f"stage{number}", paddle.nn.Sequential(*layers)))
        self.pool = paddle.nn.AdaptiveAvgPool2D(1)
        self.dropout = paddle.nn.Dropout(dropout)
        self.head = paddle.nn.Linear(inside, classes)
        # Each block begins as what goes beside its branch (Goyal et al. 2017, 5.1): gradients of the first steps are several times
        # smaller [measured], and few of them overflow in fp16 or are clipped.
        for block in self.blocks:
            block.last_norm.weight.set_value(paddle.zeros_like(block.last_norm.weight))

    @property
    def blocks(self) -> list[Any]:
        return [block for stage in self.stages for block in stage]

    def forward(self, pictures: Any) -> Any:
        x = self.stem(self.normalised(pictures))
        for stage in self.stages:
            x = stage(x)
        return self.head(self.dropout(self.pool(x).flatten(1)))


class VisionTransformer(Network):
    """Dosovitskiy et al. 2020 in the plain form of Beyer et al. 2022: patches as tokens, positions that are learnt and begin as sines
    and cosines, normalisation before each branch, the mean of the tokens at the end."""

    def __init__(
        self,
        classes: int,
        mean: list[float],
        deviation: list[float],
        size: int,
        patch: int,
        hidden_size: int,
        layers: int,
        heads: int,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(mean, deviation)
        begin = paddle.nn.initializer.Assign(positions(size // patch, hidden_size))
        self.position = self.create_parameter([1, (size // patch) ** 2, hidden_size], default_initializer=begin)
        self.patches = paddle.nn.Conv2D(3, hidden_size, patch, stride=patch)
        self.dropout = paddle.nn.Dropout(dropout)
        layer = paddle.nn.TransformerEncoderLayer(
            hidden_size, heads, 4 * hidden_size, dropout=dropout, activation="gelu", normalize_before=True
        )
        self.encoder = paddle.nn.TransformerEncoder(layer, layers, norm=paddle.nn.LayerNorm(hidden_size))
        self.head = paddle.nn.Linear(hidden_size, classes)

    def forward(self, pictures: Any) -> Any:
        tokens = self.patches(self.normalised(pictures)).flatten(2).transpose([0, 2, 1])
        seen = self.encoder(self.dropout(tokens + self.position))
        return self.head(seen.mean(axis=1))


def positions(side: int, width: int) -> Any:
    """[1, side², width]: sines and cosines of a patch's row and column, of wavelengths from 2π to 20,000π; what is left over is 0."""
    found = np.zeros((side, side, width), np.float32)
    count = width // 4
    angles = np.arange(side)[:, None] / 10000 ** (np.arange(count) / max(count - 1, 1))
    for i, wave in enumerate((np.sin(angles), np.cos(angles))):
        found[:, :, i * count : (i + 1) * count] = wave[:, None]
        found[:, :, (2 + i) * count : (3 + i) * count] = wave[None]
    return found.reshape(1, side * side, width)


class RawPictures(paddle.nn.Layer):  # type: ignore[misc]
    """The network as a program that is exported: uint8 [n, size, size, 3], as pictures are decoded, to logits."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.network = network

    def forward(self, pictures: Any) -> Any:
        return self.network(pictures.astype("float32").transpose([0, 3, 1, 2]) / 255.0)


def build(configuration: dict[str, Any], dropout: float = 0.0) -> Any:
    """With random weights, from what `config.json` says."""
    about = configuration
    common = (len(about["labels"]), about["mean"], about["deviation"])
    if about["architecture"] == "vit":
        sizes = {name: about[name] for name in ("size", "patch", "hidden_size", "layers", "heads")}
        return VisionTransformer(*common, **sizes, dropout=dropout)
    return ResNet(about["architecture"], *common, about["width"], about["small_stem"], about["norm"], dropout=dropout)


def vision_name(name: str) -> str:
    """What paddle.vision's ResNet calls a weight."""
    for ours, theirs in (("stem.conv.", "conv1."), ("stem.norm.", "bn1."), ("stage", "layer"), ("head.", "fc.")):
        if name.startswith(ours):
            return theirs + name[len(ours) :]
    return name


def _group_norm(channels: int) -> Any:
    """About 16 channels a group: fewer would leave too little to normalise where a stage has one pixel left."""
    groups = next(count for count in range(max(channels // 16, 1), 0, -1) if channels % count == 0)
    return paddle.nn.GroupNorm(groups, channels)
