"""Token classification as the trainer sees it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import paddle
import paddle.nn.functional as F

from workers.contract.states import EndReason
from workers.contract.texts import Text
from workers.datasets import tagging
from workers.datasets.tagging import Tags
from workers.recipes.text_classification import data as of_texts
from workers.recipes.text_classification import export, inputs, model
from workers.recipes.token_classification import data, metrics
from workers.trainer.task import Batch, Context, Floats, Rows, Split, TrainingFailed

# Of marks, padding, and all pieces of a token but the first.
IGNORED = -100
SHOWN_CHARACTERS = 200


def build(context: Context) -> TokenClassification:
    return TokenClassification(context)


class TokenClassification:
    lower_is_better = False
    # Measured when the dataset is checked.
    baselines: dict[str, float] = {}

    def __init__(self, context: Context) -> None:
        settings, dataset = context.settings, context.spec.dataset
        if dataset is None or len(dataset.labels) < 2:
            raise TrainingFailed(
                EndReason.BAD_DATA, Text("Token classification needs a dataset with two tags or more.")
            )
        self.settings, self.tags = settings, Tags(dataset.labels)
        self.best_by = "accuracy" if self.tags.scheme == "none" else "f1"
        context.stage("reading data", dataset.name)
        self.read: dict[Split, data.Tagged] = {
            split: data.read(context.folder.dataset / f"{split}.jsonl", self.tags.names, settings.data.weight_column)
            for split in inputs.SPLITS
        }
        self.rows: dict[Split, int] = {split: len(found.tokens) for split, found in self.read.items()}
        self.pretrained = model.source(context)
        self.tokenizer = inputs.tokenizer(context, self.pretrained, map(" ".join, self.read["train"].tokens))

        def told(done: str) -> None:
            context.stage("turning texts into tokens", done)

        told("")
        encode = data.encoder(self.tokenizer, settings.data.max_length)
        self.encoded: dict[Split, list[data.Encoded]] = {
            split: list(of_texts.told(map(encode, found.tokens), len(found.tokens), told))
            for split, found in self.read.items()
        }
        self.labels: dict[Split, list[Rows]] = {
            split: [row.labels(tags, IGNORED) for row, tags in zip(rows, self.read[split].tags, strict=True)]
            for split, rows in self.encoded.items()
        }
        # A row counts for as many tokens as carry a tag, so that every token of a batch counts alike but for its row's weight.
        labelled = np.array([len(row.at) for row in self.encoded["train"]], np.float64)
        if not labelled.any():
            raise TrainingFailed(EndReason.BAD_DATA, Text("No training row has a token that the model can read."))
        self.weights: Floats = labelled * self.read["train"].weights
        self.lengths: Rows | None = np.array([len(row.ids) for row in self.encoded["train"]])
        # Rows of like length next to each other: less padding in evaluation.
        self.dev_order = np.argsort([len(row.ids) for row in self.encoded["dev"]], kind="stable")
        self.identity: dict[str, Any] = {
            "labels": self.tags.names,
            "vocabulary": of_texts.fingerprint(self.tokenizer.get_vocab()),
        }

    def build_model(self) -> Any:
        own = {
            "id2label": dict(enumerate(self.tags.names)),
            "label2id": {name: i for i, name in enumerate(self.tags.names)},
        }
        built = model.build(self.settings, self.pretrained, self.tokenizer.vocab_size, "TokenClassification", own)
        # It sums up whole texts, which nothing here asks for: without a gradient it is no part of training.
        pooler = getattr(getattr(built, built.base_model_prefix), "pooler", None)
        for parameter in pooler.parameters() if pooler is not None else ():
            parameter.stop_gradient = True
        return built

    def batch(self, split: Split, rows: Rows) -> Batch:
        """Ids and labels [rows, the longest]."""
        if split == "dev":
            rows = self.dev_order[rows]
        ids = [self.encoded[split][row].ids for row in rows]
        arrays = {
            "input_ids": inputs.padded(ids, self.tokenizer.pad_token_id),
            "labels": inputs.padded([self.labels[split][row] for row in rows], IGNORED),
        }
        return Batch(arrays, rows, sum(map(len, ids)), {"split": split})

    def losses(self, model: Any, batch: Batch) -> tuple[Any, Any]:
        """A row's loss is the mean over its tokens with a tag, 0 if it has none; with `weights` the mean over all of a batch."""
        logits = model(*inputs.tensors(batch.arrays, False))
        known = batch.arrays["labels"] != IGNORED
        labels = paddle.to_tensor(np.where(known, batch.arrays["labels"], 0))
        # Softmax and logarithm in float32, whatever the layers were computed in. Evaluations see the tags as they are.
        smoothing = self.settings.regularisation.label_smoothing if model.training else 0.0
        losses = F.cross_entropy(logits.astype("float32"), labels, reduction="none", label_smoothing=smoothing)
        losses = losses.reshape(labels.shape)
        losses = paddle.where(paddle.to_tensor(known), losses, paddle.zeros_like(losses)).sum(axis=1)
        return logits, losses / paddle.to_tensor(np.maximum(known.sum(axis=1), 1).astype(np.float32))

    def tally(self, outputs: Any, losses: Any, batch: Batch) -> Floats:
        split: Split = batch.extras["split"]
        labelled = (batch.arrays["labels"] != IGNORED).sum(axis=1)
        loss_sum = float((losses.numpy().astype(np.float64) * labelled).sum())
        said = self._said(outputs.numpy().argmax(axis=-1), batch)
        actual = [self.read[split].tags[row] for row in batch.rows]
        return metrics.tally(self.tags, actual, said, loss_sum, int(labelled.sum()))

    def _said(self, numbers: Rows, batch: Batch) -> list[Rows]:
        """Of each row a tag for each of its tokens, `border` for those that the model did not read."""
        split: Split = batch.extras["split"]
        said = []
        for row, of_row in zip(batch.rows, numbers, strict=True):
            encoded = self.encoded[split][row]
            tags = np.full(len(self.read[split].tags[row]), self.tags.border, np.int64)
            tags[encoded.tokens] = of_row[encoded.at]
            said.append(tags)
        return said

    def tally_of_nothing(self) -> Floats:
        return metrics.nothing(self.tags)

    def metrics(self, tally: Floats) -> dict[str, Any]:
        return metrics.metrics(tally, self.tags)

    def shown(self, outputs: Any, batch: Batch, i: int) -> dict[str, Any]:
        """The row with its own spans and with those of the model, each as [text, type] parts."""
        row = int(batch.rows[i])
        tokens, actual = self.read["dev"].tokens[row], self.read["dev"].tags[row]
        (said,) = self._said(
            outputs[i : i + 1].numpy().argmax(axis=-1), Batch({}, batch.rows[i : i + 1], None, batch.extras)
        )
        names = [*self.tags.names, tagging.OUTSIDE]
        return {
            "wrong": int((actual != np.where(said == self.tags.border, self.tags.outside, said)).sum()),
            "tagged": self._parts(tokens, [names[tag] for tag in actual]),
            "said": self._parts(tokens, [names[tag] for tag in said]),
        }

    def _parts(self, tokens: list[str], tags: list[str]) -> list[list[str]]:
        # Half of a surrogate pair is nothing that JSON could hold.
        return [
            [text.encode("utf-8", "replace").decode(), kind]
            for text, kind in tagging.segments(tokens, tags, SHOWN_CHARACTERS)
        ]

    def export(self, model: Any, folder: Path) -> list[str]:
        sample = inputs.arguments(self.batch("dev", np.arange(min(8, self.rows["dev"]))).arrays, False)
        characters = tagging.by_characters(self.read["train"].tokens)
        about = export.About(
            "token_classification",
            self.settings.data.max_length,
            labels=self.tags.names,
            tokens=tagging.CHARACTERS if characters else tagging.WORDS,
        )
        export.model_folder(model, self.tokenizer, folder / "model")
        export.inference_folder(_traceable(model), self.tokenizer, about, sample, folder / "inference")
        return ["model", "inference"]


def _traceable(model: Any) -> Any:
    """Paddle 3.3.1 cannot make a program of the forward pass of PaddleNLP's RobertaForTokenClassification."""
    if not type(model).__name__.startswith("Roberta"):
        return model
    simple = _OverBackbone(model)
    simple.eval()
    return simple


class _OverBackbone(paddle.nn.Layer):  # type: ignore[misc]
    """The same as `model`, without what it does with labels."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Any) -> Any:
        hidden = getattr(self.model, self.model.base_model_prefix)(input_ids)[0]
        return self.model.classifier(self.model.dropout(hidden))
