"""The ERNIE model and its tokenizer, from wherever the settings say."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

from paddlenlp.transformers import ErnieConfig, ErnieForSequenceClassification, ErnieTokenizer

from workers.contract.states import EndReason
from workers.contract.texts import Text
from workers.recipes.text_classification.settings import ModelSource, TextClassificationSettings
from workers.trainer.task import Context, TrainingFailed

SAFE, SAFE_INDEX, PICKLED = "model.safetensors", "model.safetensors.index.json", "model_state.pdparams"
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?")


def source(context: Context) -> str | None:
    """What `from_pretrained` is given: a folder of this host or a hub name; None: random weights."""
    settings = context.settings.model
    if settings.source is ModelSource.SCRATCH:
        return None
    if settings.source is ModelSource.JOB:
        return str(_checked(context.folder.model, Text("The exported model of job %(job)d", job=settings.job)))
    if settings.source is ModelSource.FOLDER:
        return str(_below_a_root(settings.folder))
    name: str = settings.name
    if os.environ.get("HUB_ALLOWED") != "true":
        raise TrainingFailed(
            EndReason.MODEL_UNAVAILABLE,
            Text(
                "This host does not fetch models, so “%(name)s” is not to be had: its staff can set HUB_ALLOWED=true, "
                "or put the model's PaddleNLP folder below one of its model roots for jobs that start from “folder”.",
                name=name,
            ),
        )
    if name in ErnieForSequenceClassification.pretrained_init_configuration and not _pickle_allowed():
        raise TrainingFailed(
            EndReason.MODEL_UNAVAILABLE,
            Text(
                "PaddleNLP fetches “%(name)s” as pickled weights, which are read only where the host's staff has set "
                "ALLOW_PICKLE_MODELS=true. A hub repository with safetensors, or a folder of them, needs no such leave.",
                name=name,
            ),
        )
    if not _HUB_NAME.fullmatch(name) or ".." in name or Path(name).exists():
        raise TrainingFailed(
            EndReason.MODEL_UNAVAILABLE, Text("“%(name)s” is not a name that a hub can know.", name=name)
        )
    return name


def tokenizer_of(pretrained: str) -> Any:
    return _from_pretrained(ErnieTokenizer, pretrained)


def build(settings: TextClassificationSettings, pretrained: str | None, vocabulary: int, labels: list[str]) -> Any:
    """ErnieForSequenceClassification with one logit per label."""
    own = {
        "id2label": dict(enumerate(labels)),
        "label2id": {label: i for i, label in enumerate(labels)},
        "hidden_dropout_prob": settings.regularisation.dropout,
        "attention_probs_dropout_prob": settings.regularisation.dropout,
        "classifier_dropout": settings.regularisation.dropout,
    }
    if pretrained is not None:
        # Pickled weights can run code when read; staff may allow them on a host they trust.
        # The classifier of another task has other labels: it then starts from random weights.
        model = _from_pretrained(
            ErnieForSequenceClassification,
            pretrained,
            use_safetensors=None if _pickle_allowed() else True,
            ignore_mismatched_sizes=True,
            **own,
        )
        longest = model.config.max_position_embeddings
        if settings.data.max_length > longest:
            raise TrainingFailed(
                EndReason.BAD_SETTINGS,
                Text(
                    "The longest text is set to %(length)d tokens, but this model takes %(most)d at most.",
                    length=settings.data.max_length,
                    most=longest,
                ),
            )
        return model
    sizes = settings.model
    return ErnieForSequenceClassification(
        ErnieConfig(
            vocab_size=vocabulary,
            hidden_size=sizes.hidden_size,
            num_hidden_layers=sizes.layers,
            num_attention_heads=sizes.heads,
            intermediate_size=4 * sizes.hidden_size,
            max_position_embeddings=max(512, settings.data.max_length),
            type_vocab_size=2,
            **own,
        )
    )


def _below_a_root(folder: str) -> Path:
    roots = [Path(root).resolve() for root in os.environ.get("MODEL_ROOTS", "").split(",") if root]
    if not roots:
        raise TrainingFailed(
            EndReason.MODEL_UNAVAILABLE, Text("This host has no model roots: its MODEL_ROOTS names no folder.")
        )
    for root in roots:
        path = (root / folder).resolve()
        if path != root and path.is_relative_to(root) and path.is_dir():
            return _checked(path, Text("The model folder “%(folder)s”", folder=folder))
    raise TrainingFailed(
        EndReason.MODEL_UNAVAILABLE,
        Text(
            "There is no folder “%(folder)s” below this host's model roots. Give a path below one of them, such as "
            "ernie-3.0-base-zh.",
            folder=folder,
        ),
    )


def _checked(path: Path, what: Text) -> Path:
    if not (path / "config.json").exists():
        raise TrainingFailed(EndReason.MODEL_UNAVAILABLE, Text("%(what)s has no config.json.", what=what))
    if not _only_safetensors(path) and not ((path / PICKLED).exists() and _pickle_allowed()):
        raise TrainingFailed(
            EndReason.MODEL_UNAVAILABLE,
            Text(
                "%(what)s has no %(safe)s. Pickled weights (%(pickled)s) are read only where the host's staff has set "
                "ALLOW_PICKLE_MODELS=true.",
                what=what,
                safe=SAFE,
                pickled=PICKLED,
            ),
        )
    return path


def _only_safetensors(path: Path) -> bool:
    """Whether PaddleNLP will read nothing but safetensors here: it takes what it finds, in this order."""
    if (path / SAFE_INDEX).exists():
        try:
            shards = json.loads((path / SAFE_INDEX).read_text())["weight_map"].values()
            return all(str(shard).endswith(".safetensors") for shard in shards)
        except (ValueError, KeyError, AttributeError):
            return False
    return (path / SAFE).exists()


def _pickle_allowed() -> bool:
    return os.environ.get("ALLOW_PICKLE_MODELS") == "true"  # as the supervisor writes it


def _from_pretrained(what: Any, name: str, **options: Any) -> Any:
    try:
        return what.from_pretrained(name, **options)
    except Exception as error:
        if Path(name).is_dir():
            raise TrainingFailed(
                EndReason.MODEL_UNAVAILABLE,
                Text("The model folder cannot be loaded: %(error)s", error=_first_line(error)),
            ) from error
        raise TrainingFailed(
            EndReason.MODEL_UNAVAILABLE,
            Text(
                "“%(name)s” could not be fetched from the hub: %(error)s If this host is offline, put the model's "
                "PaddleNLP folder below one of its model roots and start from “folder”.",
                name=name,
                error=_first_line(error),
            ),
        ) from error


def _first_line(error: Exception) -> str:
    line = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return line if line.endswith(".") else line + "."
