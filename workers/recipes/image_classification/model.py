"""A network from wherever the settings say."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import paddle
import paddle.nn.functional as F
from paddle.vision.models.resnet import model_urls
from safetensors.numpy import load_file

from workers.contract.states import EndReason
from workers.contract.texts import Text, clause
from workers.recipes import drop_path
from workers.recipes.image_classification import networks
from workers.recipes.image_classification.settings import (
    SMALL_PICTURE,
    Architecture,
    ModelSettings,
    ModelSource,
    Stem,
)
from workers.trainer.task import TrainingFailed

WEIGHTS, CONFIGURATION = "model.safetensors", "config.json"


@dataclass(frozen=True)
class Configuration:
    """All that is needed to build the network again; `config.json` of an exported one."""

    architecture: str
    labels: list[str]
    size: int
    fit: str
    mean: list[float]
    deviation: list[float]
    # Of a ResNet.
    width: int
    small_stem: bool
    norm: str
    # Of a ViT.
    patch: int
    hidden_size: int
    layers: int
    heads: int

    def dump(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def shape(self) -> dict[str, Any]:
        """What the weights depend on, but for the last layer and the positions."""
        names = (
            ("patch", "hidden_size", "layers", "heads")
            if self.architecture == Architecture.VIT
            else ("width", "small_stem", "norm")
        )
        return {"architecture": self.architecture, **{name: getattr(self, name) for name in names}}


def sizes(settings: ModelSettings, size: int, exported: Path | None) -> dict[str, Any]:
    """The part of the configuration that says what the network is; of an exported one it is that one's."""
    if exported is not None:
        try:
            said = json.loads((exported / CONFIGURATION).read_text(encoding="utf-8"))
            kept = ("architecture", "width", "small_stem", "norm", "patch", "hidden_size", "layers", "heads")
            found = {name: said[name] for name in kept}
        except (OSError, ValueError, KeyError) as error:
            raise TrainingFailed(
                EndReason.MODEL_UNAVAILABLE,
                Text("The exported model cannot be read: %(problem)s.", problem=clause(str(error))),
            ) from None
        if found["architecture"] == Architecture.VIT and size % found["patch"]:
            raise TrainingFailed(
                EndReason.BAD_SETTINGS,
                Text(
                    "The patch (%(patch)d) of the model of job %(job)d must divide the picture size (%(size)d).",
                    patch=found["patch"],
                    job=settings.job,
                    size=size,
                ),
            )
        return found
    pretrained = settings.source is ModelSource.PRETRAINED
    small = settings.stem is Stem.SMALL or (settings.stem is Stem.AUTO and size <= SMALL_PICTURE)
    return {
        "architecture": str(settings.architecture),
        "width": 64 if pretrained else settings.width,
        "small_stem": small and not pretrained,
        "norm": "batch" if pretrained else str(settings.norm),
        "patch": settings.patch,
        "hidden_size": settings.hidden_size,
        "layers": settings.layers,
        "heads": settings.heads,
    }


def normalisation_of(exported: Path) -> tuple[list[float], list[float]]:
    """What a model was trained with."""
    said = json.loads((exported / CONFIGURATION).read_text(encoding="utf-8"))
    return said["mean"], said["deviation"]


def build(configuration: Configuration, settings: Any, exported: Path | None) -> Any:
    """With random weights, paddle.vision's, or those of the folder `exported`. A last layer for other labels stays random."""
    regularisation = settings.regularisation
    model = networks.build(configuration.dump(), regularisation.dropout)
    if isinstance(model, networks.ResNet):
        blocks = model.blocks
        for block, rate in zip(blocks, drop_path.rates(regularisation.drop_path, len(blocks)), strict=True):
            block.drop_path = drop_path.DropPath(rate)
    else:
        drop_path.into_transformer(model.encoder.layers, regularisation.drop_path)
    if exported is not None:
        try:
            _take(model, load_file(exported / WEIGHTS), str(settings.model.job))
        except OSError as error:
            raise TrainingFailed(
                EndReason.MODEL_UNAVAILABLE,
                Text("The exported model cannot be read: %(problem)s.", problem=clause(str(error))),
            ) from None
    elif settings.model.source is ModelSource.PRETRAINED:
        name = configuration.architecture
        theirs = pretrained(name)
        _take(model, {ours: theirs.get(networks.vision_name(ours)) for ours in model.state_dict()}, name)
    return model


def _take(model: Any, weights: dict[str, Any], source: str) -> None:
    """The weights by their name. Mean and deviation stay this dataset's, the last layer too if it is for other labels."""
    for name, own in model.state_dict().items():
        if name in ("mean", "deviation"):
            continue
        value = weights.get(name)
        there, here = None if value is None else list(value.shape), list(own.shape)
        if name == "position" and there and there != here and there[2:] == here[2:]:
            value, there = _positions(value, here[1]), here
        if there != here and name.startswith("head."):
            continue
        if value is None or there != here:
            raise TrainingFailed(
                EndReason.MODEL_UNAVAILABLE,
                Text(
                    "The weights of “%(source)s” do not fit: “%(name)s” is %(there)s there and %(here)s here.",
                    source=source,
                    name=name,
                    there=str(there),
                    here=str(here),
                ),
            )
        own.set_value(value)


def _positions(learnt: Any, count: int) -> Any:
    """Of pictures of another size: between the learnt ones (Dosovitskiy et al. 2020, 3.2)."""
    before, now = (round(n**0.5) for n in (learnt.shape[1], count))
    grid = paddle.to_tensor(learnt).reshape([1, before, before, -1]).transpose([0, 3, 1, 2])
    grid = F.interpolate(grid, [now, now], mode="bicubic", align_corners=False)
    return grid.transpose([0, 2, 3, 1]).reshape([1, now * now, -1]).numpy()


# --- what paddle.vision has trained ---------------------------------------------------------


def pretrained(name: str) -> dict[str, Any]:
    """paddle.vision's weights on ImageNet: a file below one of the host's model roots, or else fetched."""
    roots = [Path(root) for root in os.environ.get("MODEL_ROOTS", "").split(",") if root]
    for root in roots:
        if (root / f"{name}.safetensors").is_file():
            found: dict[str, Any] = load_file(root / f"{name}.safetensors")
            return found
    pickles = os.environ.get("ALLOW_PICKLE_MODELS") == "true"  # as the supervisor writes it
    there = next((path for root in roots if (path := root / f"{name}.pdparams").is_file()), None)
    if there is None and os.environ.get("HUB_ALLOWED") != "true":
        raise TrainingFailed(
            EndReason.MODEL_UNAVAILABLE,
            Text(
                "This host does not fetch models, so “%(name)s” is not to be had: its staff can set HUB_ALLOWED=true, or put "
                "%(name)s.safetensors or %(name)s.pdparams into one of its model roots.",
                name=name,
            ),
        )
    if not pickles:
        raise TrainingFailed(
            EndReason.MODEL_UNAVAILABLE,
            Text(
                "paddle.vision has “%(name)s” as pickled weights, which are read only where the host's staff has set "
                "ALLOW_PICKLE_MODELS=true. %(name)s.safetensors in one of its model roots needs no such leave.",
                name=name,
            ),
        )
    try:
        weights = paddle.load(str(there) if there else _fetched(name), return_numpy=True)
    except Exception as error:
        raise TrainingFailed(
            EndReason.MODEL_UNAVAILABLE,
            Text(
                "The weights of “%(name)s” could not be had: %(error)s If this host is offline, put %(name)s.safetensors or "
                "%(name)s.pdparams into one of its model roots.",
                name=name,
                error=_first_line(error),
            ),
        ) from error
    return dict(weights)


def _fetched(name: str) -> str:
    from paddle.utils.download import get_weights_path_from_url

    path: str = get_weights_path_from_url(*model_urls[name])
    return path


def _first_line(error: Exception) -> str:
    line = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return line if line.endswith(".") else line + "."
