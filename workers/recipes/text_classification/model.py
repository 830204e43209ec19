"""A model and its tokenizer, from wherever the settings say: any that PaddleNLP has for the kind of task."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any, Literal

import paddlenlp.transformers as paddlenlp
from paddlenlp.transformers import AutoTokenizer, BertTokenizer, ErnieTokenizer

from workers.contract.states import EndReason
from workers.contract.texts import Text, clause
from workers.recipes import drop_path
from workers.recipes.text_classification.settings import Architecture, ModelSource
from workers.trainer.task import Context, TrainingFailed

SAFE, SAFE_INDEX, PICKLED = "model.safetensors", "model.safetensors.index.json", "model_state.pdparams"
Kind = Literal["SequenceClassification", "TokenClassification"]
# What a folder is that does not say what it is.
DEFAULT = "Ernie"
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
    if _is_built_in(name) and not _pickle_allowed():
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


def _is_built_in(name: str) -> bool:
    known = paddlenlp.AutoModelForSequenceClassification._pretrained_model_dict
    return any(name in names for names in known)


def tokenizer_of(pretrained: str) -> Any:
    says = (Path(pretrained) / "tokenizer_config.json").exists() or not Path(pretrained).is_dir()
    return _from_pretrained(AutoTokenizer if says else ErnieTokenizer, pretrained)


def tokenizer_from_scratch(architecture: Architecture, vocabulary: Path) -> Any:
    of = BertTokenizer if architecture is Architecture.BERT else ErnieTokenizer
    return of(str(vocabulary))


def build(settings: Any, pretrained: str | None, vocabulary: int, kind: Kind, own: dict[str, Any]) -> Any:
    """A model for `kind` of task, with dropout and DropPath as set. `own` goes over its configuration."""
    dropout = settings.regularisation.dropout
    own = {
        "hidden_dropout_prob": dropout,
        "attention_probs_dropout_prob": dropout,
        "classifier_dropout": dropout,
        **own,
    }
    if pretrained is not None:
        # Pickled weights can run code when read; staff may allow them on a host they trust.
        # The classifier of another task has other labels: it then starts from random weights.
        model = _from_pretrained(
            _class_of(pretrained, kind),
            pretrained,
            use_safetensors=None if _pickle_allowed() else True,
            ignore_mismatched_sizes=True,
            **own,
        )
        longest = _longest(model)
        if longest is not None and settings.data.max_length > longest:
            raise TrainingFailed(
                EndReason.BAD_SETTINGS,
                Text(
                    "The longest text is set to %(length)d tokens, but this model takes %(most)d at most.",
                    length=settings.data.max_length,
                    most=longest,
                ),
            )
    else:
        sizes = settings.model
        name = "Bert" if sizes.architecture is Architecture.BERT else "Ernie"
        configuration = getattr(paddlenlp, f"{name}Config")(
            vocab_size=vocabulary,
            hidden_size=sizes.hidden_size,
            num_hidden_layers=sizes.layers,
            num_attention_heads=sizes.heads,
            intermediate_size=4 * sizes.hidden_size,
            max_position_embeddings=max(512, settings.data.max_length),
            type_vocab_size=2,
            **own,
        )
        model = getattr(paddlenlp, f"{name}For{kind}")(configuration)
    _with_drop_path(model, settings.regularisation.drop_path)
    return model


def takes_types(model: Any) -> bool:
    """Whether the model can tell the second text of a pair from the first by more than the mark between them."""
    return int(getattr(model.config, "type_vocab_size", 0) or 0) > 1


def _class_of(pretrained: str, kind: Kind) -> Any:
    """PaddleNLP's Auto class, which goes by the folder's configuration; ERNIE where that says nothing."""
    config = Path(pretrained) / "config.json"
    if config.exists():
        try:
            said = json.loads(config.read_text(encoding="utf-8"))
        except ValueError:
            said = {}
        if not said.get("architectures") and not said.get("init_class"):
            return getattr(paddlenlp, f"{DEFAULT}For{kind}")
    return getattr(paddlenlp, f"AutoModelFor{kind}")


def _longest(model: Any) -> int | None:
    most: int | None = getattr(model.config, "max_position_embeddings", None)
    if most is not None and type(model).__name__.startswith("Roberta"):
        most -= model.config.pad_token_id + 1  # where its positions begin
    return most


def _with_drop_path(model: Any, highest: float) -> None:
    if highest == 0.0:
        return
    encoder = getattr(getattr(model, model.base_model_prefix, None), "encoder", None)
    layers = getattr(encoder, "layers", None)
    if not layers or not all(hasattr(layer, "dropout1") and hasattr(layer, "dropout2") for layer in layers):
        raise TrainingFailed(
            EndReason.BAD_SETTINGS,
            Text("DropPath cannot be put into a %(model)s: set it to 0.", model=type(model).__name__),
        )
    drop_path.into_transformer(layers, highest)


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
                Text("The model folder cannot be loaded: %(error)s.", error=_first_line(error)),
            ) from error
        raise TrainingFailed(
            EndReason.MODEL_UNAVAILABLE,
            Text(
                "“%(name)s” could not be fetched from the hub: %(error)s. If this host is offline, put the model's "
                "PaddleNLP folder below one of its model roots and start from “folder”.",
                name=name,
                error=_first_line(error),
            ),
        ) from error


def _first_line(error: Exception) -> str:
    return clause(next((line for line in str(error).splitlines() if line.strip()), type(error).__name__))
