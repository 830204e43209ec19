"""Numeric sequences as the trainer sees them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import paddle
import paddle.nn.functional as F

from workers.contract.states import EndReason
from workers.contract.texts import Text
from workers.contract.training import ModelSource
from workers.recipes.sequences import data, export, metrics, model
from workers.recipes.sequences.settings import Goal, Loss
from workers.recipes.text_classification import metrics as of_labels
from workers.trainer.task import Batch, Context, Floats, Rows, Split, TrainingFailed

SPLITS: tuple[Split, Split] = ("train", "dev")
MOST_SHOWN = 12  # time steps of a sequence that people see


def build(context: Context) -> Sequences:
    return Sequences(context)


class Sequences:
    def __init__(self, context: Context) -> None:
        settings, dataset = context.settings, context.spec.dataset
        self.settings, self.goal = settings, settings.data.goal
        self.numbers = self.goal is not Goal.CLASSIFICATION
        self.classes = [] if self.numbers or dataset is None else list(dataset.labels)
        if not self.numbers and len(self.classes) < 2:
            raise TrainingFailed(EndReason.BAD_DATA, Text("Classification needs a dataset with two labels or more."))
        self.exported = context.folder.model if settings.model.source is ModelSource.JOB else None
        context.stage("reading data", dataset.name if dataset else "")
        folder = context.folder.dataset
        self.sequences = {split: data.read(folder / f"{split}.jsonl", settings.data, self.classes) for split in SPLITS}
        train, dev = self.sequences["train"], self.sequences["dev"]
        if train.features != dev.features:
            raise TrainingFailed(EndReason.BAD_DATA, Text("Training and dev rows have different features."))
        self.samples = {split: data.samples(self.sequences[split], settings.data) for split in SPLITS}
        self.rows: dict[Split, int] = {split: len(self.samples[split]) for split in SPLITS}
        found = self.samples["train"]
        self.normalisation = data.normalisation(train, found, settings.data)
        # Each sample of a sequence counts as much as that does.
        self.weights: Floats = train.weights[found.sequences]
        self.lengths: Rows | None = found.lengths if len(np.unique(found.lengths)) > 1 else None
        # Samples of like length next to each other: less padding in evaluation.
        self.dev_order = np.argsort(self.samples["dev"].lengths, kind="stable")
        self.best_by, self.lower_is_better = ("mae", True) if self.numbers else ("accuracy", False)
        self.baselines = self._baselines() if all(self.rows.values()) else {}
        self.identity: dict[str, Any] = {
            "goal": str(self.goal),
            "features": list(train.features),
            "labels": self.classes,
            "normalisation": [self.normalisation.shift, self.normalisation.scale],
        }

    def _baselines(self) -> dict[str, float]:
        """Of who always says the same, and of who says that nothing will change."""
        train, dev = self.samples["train"], self.samples["dev"]
        if not self.numbers:
            commonest = int(np.bincount(train.classes).argmax())
            return {"majority": float((dev.classes == commonest).mean())}
        found = {"median": metrics.of_constant(dev.targets, float(np.nanmedian(train.targets)))}
        if self.goal is Goal.NEXT_VALUE:
            sequences = self.sequences["dev"]
            feature = data.predicted_feature(self.settings.data, sequences.features)
            last = sequences.values[dev.starts + dev.lengths - 1, feature]
            found["last_value"] = float(np.abs(dev.targets - last).mean())
        return found

    def build_model(self) -> Any:
        settings, features = self.settings, self.sequences["train"].features
        predicts = features[data.predicted_feature(settings.data, features)] if self.goal is Goal.NEXT_VALUE else ""
        configuration = model.Configuration(
            goal=str(self.goal),
            features=list(features),
            cell=str(settings.model.cell),
            hidden_size=settings.model.hidden_size,
            layers=settings.model.layers,
            bidirectional=settings.model.bidirectional,
            max_length=settings.data.max_length,
            normalisation=self.normalisation,
            labels=self.classes,
            predicts=predicts,
            linear_steps=settings.model.linear_steps,
        )
        return model.build(configuration, settings.model, settings.regularisation.dropout, self.exported)

    def batch(self, split: Split, rows: Rows) -> Batch:
        if split == "dev":
            rows = self.dev_order[rows]
        found = self.samples[split]
        lengths = found.lengths[rows]
        arrays: dict[str, Any] = {
            "values": data.gather(self.sequences[split].values, found.starts[rows], lengths),
            "lengths": lengths,
        }
        if self.numbers:
            arrays["targets"] = found.targets[rows]
        else:
            arrays["labels"] = found.classes[rows]
        return Batch(arrays, rows, None)

    def losses(self, model: Any, batch: Batch) -> tuple[Any, Any]:
        arrays = batch.arrays
        outputs = model(paddle.to_tensor(arrays["values"]), paddle.to_tensor(arrays["lengths"])).astype("float32")
        if not self.numbers:
            # Softmax and logarithm in float32, whatever the layers were computed in.
            labels = paddle.to_tensor(arrays["labels"])
            # Evaluations see the labels as they are.
            smoothing = self.settings.regularisation.label_smoothing if model.training else 0.0
            losses = F.cross_entropy(outputs, labels, reduction="none", label_smoothing=smoothing)
            return outputs, losses.squeeze(-1)
        # Subtracted in float64: targets may be large beside what they differ by.
        targets = (arrays["targets"] - self.normalisation.target_shift) / self.normalisation.target_scale
        error = outputs - paddle.to_tensor(targets.astype(np.float32))
        if self.settings.model.loss is Loss.SQUARED:
            return outputs, error.square()
        size = error.abs()
        if self.settings.model.loss is Loss.ABSOLUTE:
            return outputs, size
        return outputs, paddle.where(size <= 1.0, 0.5 * error.square(), size - 0.5)

    def _in_units(self, outputs: Any) -> Floats:
        said: Floats = outputs.numpy().astype(np.float64)
        return said * self.normalisation.target_scale + self.normalisation.target_shift

    def tally(self, outputs: Any, losses: Any, batch: Batch) -> Floats:
        loss = float(losses.sum())
        if not self.numbers:
            predicted = outputs.numpy().argmax(axis=-1)
            return of_labels.tally(predicted, batch.arrays["labels"], loss, len(self.classes))
        return metrics.tally(self._in_units(outputs), batch.arrays["targets"], loss, self.normalisation.target_shift)

    def tally_of_nothing(self) -> Floats:
        return np.zeros(6 if self.numbers else 1 + len(self.classes) ** 2)

    def metrics(self, tally: Floats) -> dict[str, Any]:
        return metrics.metrics(tally) if self.numbers else of_labels.metrics(tally, self.classes)

    def shown(self, outputs: Any, batch: Batch, i: int) -> dict[str, str | int | float | bool | None]:
        found, sequences = self.samples["dev"], self.sequences["dev"]
        sample = int(batch.rows[i])
        end = int(found.starts[sample] + found.lengths[sample])
        newest = sequences.values[max(int(found.starts[sample]), end - MOST_SHOWN) : end, 0]
        about: dict[str, str | int | float | bool | None] = {
            "sequence": sequences.ids[int(found.sequences[sample])],
            "values": ("… " if found.lengths[sample] > MOST_SHOWN else "")
            + " ".join(f"{value:.4g}" for value in newest),
        }
        if self.numbers:
            said = float(self._in_units(outputs[i]))
            return {**about, "label": float(batch.arrays["targets"][i]), "predicted": said}
        logits = outputs[i].numpy().astype(np.float64)
        predicted = int(logits.argmax())
        return {
            **about,
            "label": self.classes[int(batch.arrays["labels"][i])],
            "predicted": self.classes[predicted],
            "probability": float(1 / np.exp(logits - logits[predicted]).sum()),
        }

    def export(self, model: Any, folder: Path) -> list[str]:
        sample = self.batch("dev", np.arange(min(8, self.rows["dev"]))).arrays
        export.model_folder(model, folder / "model")
        export.inference_folder(model, sample["values"], sample["lengths"], folder / "inference")
        return ["model", "inference"]
