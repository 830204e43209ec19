"""Image classification as the trainer sees it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import paddle
import paddle.nn.functional as F

from workers.contract.states import EndReason
from workers.contract.texts import Text
from workers.recipes.image_classification import data, export, metrics, model
from workers.recipes.image_classification.augment import augmented
from workers.recipes.image_classification.settings import ModelSource, Normalisation
from workers.trainer.task import Batch, Context, Floats, Rows, Split, TrainingFailed


def build(context: Context) -> ImageClassification:
    return ImageClassification(context)


class ImageClassification:
    best_by, lower_is_better = "accuracy", False
    # Measured when the dataset is checked.
    baselines: dict[str, float] = {}
    lengths: Rows | None = None

    def __init__(self, context: Context) -> None:
        settings, dataset = context.settings, context.spec.dataset
        if dataset is None or len(dataset.labels) < 2:
            raise TrainingFailed(
                EndReason.BAD_DATA, Text("Image classification needs a dataset with two labels or more.")
            )
        self.settings, self.classes = settings, list(dataset.labels)
        context.stage("reading data", dataset.name)
        folder, chosen = context.folder.dataset, settings.data
        self.splits: dict[Split, data.Split] = {
            "train": data.read(folder / "train.jsonl", self.classes, chosen.weight_column),
            "dev": data.read(folder / "dev.jsonl", self.classes),
        }
        self.rows = {split: len(rows) for split, rows in self.splits.items()}
        self.weights: Floats = self.splits["train"].weights
        self.pictures = data.Pictures(folder, self.splits, chosen.size, chosen.fit, chosen.cache_gib, chosen.decoders)
        if not self.pictures.kept and context.rank == 0:
            sizes = {"needed": self.pictures.bytes / 2**30, "limit": chosen.cache_gib}
            print(_NOT_KEPT % sizes, flush=True)
        context.stage("measuring colours", "")
        self.exported = context.folder.model if settings.model.source is ModelSource.JOB else None
        sizes_of_model = model.sizes(settings.model, chosen.size, self.exported)
        mean, deviation = self._normalisation()
        self.configuration = model.Configuration(
            labels=self.classes,
            size=chosen.size,
            fit=str(chosen.fit),
            mean=mean,
            deviation=deviation,
            **sizes_of_model,
        )
        self.identity: dict[str, Any] = {
            "labels": self.classes,
            "picture": f"{chosen.size} {chosen.fit}",
            "model": self.configuration.shape,
            "normalisation": [mean, deviation],
        }

    def _normalisation(self) -> tuple[list[float], list[float]]:
        wanted, source = self.settings.data.normalisation, self.settings.model.source
        if wanted is Normalisation.AUTO and self.exported is not None:
            return model.normalisation_of(self.exported)
        if wanted is Normalisation.IMAGENET or (wanted is Normalisation.AUTO and source is ModelSource.PRETRAINED):
            return data.IMAGENET
        return self.pictures.measured()

    def build_model(self) -> Any:
        built = model.build(self.configuration, self.settings, self.exported)
        self.mean = paddle.to_tensor(self.configuration.mean, "float32").reshape([1, 3, 1, 1])
        return built

    def batch(self, split: Split, rows: Rows) -> Batch:
        return Batch(
            {"pictures": self.pictures.of(split, rows), "labels": self.splits[split].labels[rows]},
            rows,
            None,
            {"split": split},
        )

    def losses(self, model: Any, batch: Batch) -> tuple[Any, Any]:
        pictures = paddle.to_tensor(batch.arrays["pictures"]).astype("float32").transpose([0, 3, 1, 2]) / 255.0
        labels = paddle.to_tensor(batch.arrays["labels"])
        # Evaluations see pictures and labels as they are.
        mixed, smoothing = None, 0.0
        if model.training:
            pictures, mixed = augmented(pictures, self.settings.augmentation, self.mean)
            smoothing = self.settings.regularisation.label_smoothing
        # Softmax and logarithm in float32, whatever the layers were computed in.
        logits = model(pictures).astype("float32")

        def losses_of(labels: Any) -> Any:
            # Of a single picture Paddle's has no axis.
            return F.cross_entropy(logits, labels, reduction="none", label_smoothing=smoothing).reshape([-1])

        losses = losses_of(labels)
        if mixed is not None:
            partners = paddle.to_tensor(batch.arrays["labels"][mixed.partners])
            losses = mixed.share * losses + (1 - mixed.share) * losses_of(partners)
        return logits, losses

    def tally(self, outputs: Any, losses: Any, batch: Batch) -> Floats:
        return metrics.tally(outputs.numpy(), batch.arrays["labels"], float(losses.sum()))

    def tally_of_nothing(self) -> Floats:
        return metrics.of_nothing(len(self.classes))

    def metrics(self, tally: Floats) -> dict[str, Any]:
        return metrics.metrics(tally, self.classes)

    def shown(self, outputs: Any, batch: Batch, i: int) -> dict[str, Any]:
        logits = outputs[i].numpy().astype(np.float64)
        rows, row = self.splits["dev"], int(batch.rows[i])
        predicted = int(logits.argmax())
        return {
            "image": list(rows.places[row]),
            "id": rows.ids[row],
            "label": self.classes[batch.arrays["labels"][i]],
            "predicted": self.classes[predicted],
            "probability": float(1 / np.exp(logits - logits[predicted]).sum()),
        }

    def export(self, model: Any, folder: Path) -> list[str]:
        sample = self.batch("dev", np.arange(min(8, self.rows["dev"]))).arrays["pictures"]
        export.model_folder(model, self.configuration, folder / "model")
        export.inference_folder(model, self.configuration, sample, folder / "inference")
        return ["model", "inference"]


_NOT_KEPT = "The pictures take %(needed).1f GiB decoded, more than the %(limit)g GiB that are set: they are decoded again for every batch."
