"""Text classification as the trainer sees it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import paddle
import paddle.nn.functional as F

from workers.contract.states import EndReason
from workers.contract.texts import Text
from workers.recipes.text_classification import data, export, inputs, metrics, model
from workers.recipes.text_classification.inputs import Inputs
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
        context.stage("reading data", dataset.name)
        folder = context.folder.dataset
        train = data.read(folder / "train.jsonl", settings.data, self.classes)
        dev = data.read(folder / "dev.jsonl", settings.data, self.classes)
        self.inputs = Inputs(
            context, {"train": train.texts, "dev": dev.texts}, {"train": train.seconds, "dev": dev.seconds}
        )
        self.labels: dict[Split, Rows] = {"train": train.labels, "dev": dev.labels}
        self.rows, self.lengths = self.inputs.rows, self.inputs.lengths
        self.weights: Floats = train.weights
        self.identity: dict[str, Any] = {"labels": self.classes, **self.inputs.identity}

    def build_model(self) -> Any:
        own = {
            "id2label": dict(enumerate(self.classes)),
            "label2id": {label: i for i, label in enumerate(self.classes)},
        }
        inputs = self.inputs
        built = model.build(
            self.settings, inputs.pretrained, inputs.tokenizer.vocab_size, "SequenceClassification", own
        )
        self.types = model.takes_types(built)
        return built

    def batch(self, split: Split, rows: Rows) -> Batch:
        return self.inputs.batch(split, rows, {"labels": self.labels[split]})

    def losses(self, model: Any, batch: Batch) -> tuple[Any, Any]:
        logits = model(*inputs.tensors(batch.arrays, self.types))
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
            "text": self.inputs.shown(int(batch.rows[i])),
            "label": self.classes[batch.arrays["labels"][i]],
            "predicted": self.classes[predicted],
            "probability": float(powers[predicted] / powers.sum()),
        }

    def export(self, model: Any, folder: Path) -> list[str]:
        sample = inputs.arguments(self.batch("dev", np.arange(min(8, self.rows["dev"]))).arrays, self.types)
        tokenizer, length = self.inputs.tokenizer, self.settings.data.max_length
        export.model_folder(model, tokenizer, folder / "model")
        about = export.About("text_classification", length, self.inputs.pairs, self.classes)
        export.inference_folder(model, tokenizer, about, sample, folder / "inference")
        return ["model", "inference"]
