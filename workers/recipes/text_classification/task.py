"""Text classification as the trainer sees it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import paddle
import paddle.nn.functional as F
from paddlenlp.transformers import ErnieTokenizer
from paddlenlp.transformers.bert.tokenizer import BasicTokenizer

from workers.contract.states import EndReason
from workers.contract.texts import Text
from workers.recipes import drop_path
from workers.recipes.text_classification import data, export, metrics, model
from workers.trainer.task import Batch, Context, Floats, Rows, Split, TrainingFailed


def build(context: Context) -> TextClassification:
    return TextClassification(context)


class TextClassification:
    best_by, lower_is_better = "accuracy", False
    # Measured when the dataset is checked.
    baselines: dict[str, float] = {}

    def __init__(self, context: Context) -> None:
        settings, dataset = context.settings, context.spec.dataset
        if dataset is None or len(dataset.labels) < 2:
            raise TrainingFailed(
                EndReason.BAD_DATA, Text("Text classification needs a dataset with two labels or more.")
            )
        self.settings, self.classes = settings, list(dataset.labels)
        self.pretrained = model.source(context)
        context.stage("reading data", dataset.name)
        folder = context.folder.dataset
        train = data.read(folder / "train.jsonl", settings.data, self.classes)
        dev = data.read(folder / "dev.jsonl", settings.data, self.classes)
        self.tokenizer = self._tokenizer(context, train.texts)

        context.stage("turning texts into tokens", "")
        encode = data.encoder(self.tokenizer, settings.data.max_length)
        texts = train.texts + dev.texts
        ids = data.encode_all(texts, encode, lambda done: context.stage("turning texts into tokens", done))
        self.ids: dict[Split, list[Rows]] = {"train": ids[: len(train.texts)], "dev": ids[len(train.texts) :]}
        self.labels: dict[Split, Rows] = {"train": train.labels, "dev": dev.labels}
        self.rows: dict[Split, int] = {"train": len(train.texts), "dev": len(dev.texts)}
        self.dev_texts = dev.texts
        self.weights: Floats = train.weights
        self.lengths: Rows | None = np.array([len(row) for row in self.ids["train"]])
        # Rows of like length next to each other: less padding in evaluation.
        self.dev_order = np.argsort([len(row) for row in self.ids["dev"]], kind="stable")
        self.identity: dict[str, Any] = {
            "labels": self.classes,
            "vocabulary": data.fingerprint(self.tokenizer.get_vocab()),
        }

    def _tokenizer(self, context: Context, texts: list[str]) -> Any:
        if self.pretrained is not None:
            return model.tokenizer_of(self.pretrained)
        context.stage("building the vocabulary", "")
        words = data.words_of(BasicTokenizer(do_lower_case=True))
        tokens = data.vocabulary(texts, words, self.settings.model.vocabulary_size)
        folder = context.folder.path / "vocabulary"
        folder.mkdir(exist_ok=True)
        path = folder / f"rank{context.rank}.txt"
        path.write_text("\n".join(tokens) + "\n", encoding="utf-8")
        return ErnieTokenizer(str(path))

    def build_model(self) -> Any:
        built = model.build(self.settings, self.pretrained, self.tokenizer.vocab_size, self.classes)
        drop_path.into_transformer(built.ernie.encoder.layers, self.settings.regularisation.drop_path)
        return built

    def batch(self, split: Split, rows: Rows) -> Batch:
        if split == "dev":
            rows = self.dev_order[rows]
        texts = [self.ids[split][row] for row in rows]
        ids = np.full((len(texts), max(map(len, texts))), self.tokenizer.pad_token_id, np.int64)
        for i, text in enumerate(texts):
            ids[i, : len(text)] = text
        return Batch({"input_ids": ids, "labels": self.labels[split][rows]}, rows, sum(map(len, texts)))

    def losses(self, model: Any, batch: Batch) -> tuple[Any, Any]:
        logits = model(paddle.to_tensor(batch.arrays["input_ids"]))
        labels = paddle.to_tensor(batch.arrays["labels"])
        # Softmax and logarithm in float32, whatever the layers were computed in. Evaluations see the labels as they are.
        smoothing = self.settings.regularisation.label_smoothing if model.training else 0.0
        losses = F.cross_entropy(logits.astype("float32"), labels, reduction="none", label_smoothing=smoothing)
        return logits, losses.squeeze(-1)

    def tally(self, outputs: Any, losses: Any, batch: Batch) -> Floats:
        predicted = outputs.numpy().argmax(axis=-1)
        return metrics.tally(predicted, batch.arrays["labels"], float(losses.sum()), len(self.classes))

    def tally_of_nothing(self) -> Floats:
        return np.zeros(1 + len(self.classes) ** 2)

    def metrics(self, tally: Floats) -> dict[str, Any]:
        return metrics.metrics(tally, self.classes)

    def shown(self, outputs: Any, batch: Batch, i: int) -> dict[str, str | int | float | bool | None]:
        logits = outputs[i].numpy().astype(np.float64)
        predicted = int(logits.argmax())
        powers = np.exp(logits - logits[predicted])
        return {
            "text": self.dev_texts[batch.rows[i]],
            "label": self.classes[batch.arrays["labels"][i]],
            "predicted": self.classes[predicted],
            "probability": float(powers[predicted] / powers.sum()),
        }

    def export(self, model: Any, folder: Path) -> list[str]:
        sample = self.batch("dev", np.arange(min(8, self.rows["dev"])))
        export.model_folder(model, self.tokenizer, folder / "model")
        length, ids = self.settings.data.max_length, sample.arrays["input_ids"]
        export.inference_folder(model, self.tokenizer, self.classes, length, ids, folder / "inference")
        return ["model", "inference"]
