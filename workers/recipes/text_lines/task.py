"""Text lines as the trainer sees them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import paddle

from workers.contract.states import EndReason
from workers.contract.texts import Text
from workers.contract.training import ModelSource
from workers.recipes.text_lines import ctc, data, export, metrics, model
from workers.recipes.text_lines.augment import augmented
from workers.recipes.text_lines.fitting import width_at
from workers.recipes.text_lines.settings import LossPer, Metric
from workers.trainer.task import Batch, Context, Floats, Rows, Split, TrainingFailed

SPLITS: tuple[Split, Split] = ("train", "dev")
CHARACTERS_NAMED = 20


def build(context: Context) -> TextLines:
    return TextLines(context)


class TextLines:
    def __init__(self, context: Context) -> None:
        settings, dataset, folder = context.settings, context.spec.dataset, context.folder.dataset
        self.settings = settings
        context.stage("reading data", dataset.name if dataset else "")
        self.lines: dict[Split, data.Lines] = {
            split: data.read(folder / f"{split}.jsonl", settings.data.weight_column) for split in SPLITS
        }
        self._refuse_or_leave_out(context)
        train = self.lines["train"]
        self.rows: dict[Split, int] = {split: len(self.lines[split]) for split in SPLITS}
        self.characters = data.characters(train.texts)
        known = {character: i for i, character in enumerate(self.characters, 1)}
        self.labels = {split: [data.encoded(text, known) for text in self.lines[split].texts] for split in SPLITS}
        self._tell_of_unknown(context, known)
        self.weights: Floats = train.weights
        self.widths = {split: self._widths(split) for split in SPLITS}
        wide = int((self.widths["train"] == settings.data.max_width).sum())
        if wide:
            context.stage("reading data", f"{wide} training lines are squeezed to {settings.data.max_width} pixels")
        self.lengths: Rows | None = self.widths["train"] if len(np.unique(self.widths["train"])) > 1 else None
        # Lines of like width next to each other: less padding in evaluation.
        self.dev_order = np.argsort(self.widths["dev"], kind="stable")
        self.pictures = data.Pictures(folder, self.lines, settings)
        by_cer = settings.data.best_by is Metric.CER
        self.best_by, self.lower_is_better = ("cer", True) if by_cer else ("accuracy", False)
        self.baselines = self._baselines() if all(self.rows.values()) else {}
        self.exported = context.folder.model if settings.model.source is ModelSource.JOB else None
        self.configuration = model.Configuration.of(settings)
        self.identity: dict[str, Any] = {
            "characters": "".join(self.characters),
            "height": settings.data.height,
            "colour": settings.data.colour,
            "reduction": settings.model.reduction,
        }

    def _refuse_or_leave_out(self, context: Context) -> None:
        """Before anything is trained: CTC's kernel dies of an empty label, and learns nothing of one that is too long."""
        found = {split: data.impossible(self.lines[split], self.settings) for split in SPLITS}
        if not any(found.values()):
            return
        if not self.settings.data.leave_out:
            texts = [data.refusal(split, self.lines[split], found[split], self.settings) for split in SPLITS]
            advice = Text(
                "Repair them, leave such rows out (data.leave_out), or give a text more steps: fewer pixels per step."
            )
            raise TrainingFailed(EndReason.BAD_DATA, Text.joined(*texts, advice))
        for split in SPLITS:
            left_out = {*found[split].empty, *found[split].too_long}
            self.lines[split] = self.lines[split].without(left_out)
            if left_out:
                empty, too_long = len(found[split].empty), len(found[split].too_long)
                context.stage(
                    "reading data", f"left out of {split}: {empty} without a text, {too_long} with a text too long"
                )

    def _tell_of_unknown(self, context: Context, known: dict[str, int]) -> None:
        """Characters that only dev has can't be read right; its rows stay, and count as what they are."""
        unknown = [set(text) - known.keys() for text in self.lines["dev"].texts]
        counts = Counter(character for of_row in unknown for character in of_row)
        if counts:
            named = " ".join(sorted(counts)[:CHARACTERS_NAMED]) + (" …" if len(counts) > CHARACTERS_NAMED else "")
            rows = sum(map(bool, unknown))
            context.stage("reading data", f"{rows} dev rows have characters that no training row has: {named}")

    def _widths(self, split: Split) -> Rows:
        height, most = self.settings.data.height, self.settings.data.max_width
        return np.array([width_at(size, height, most) for size in self.lines[split].sizes], np.int64)

    def _baselines(self) -> dict[str, float]:
        """Of who always reads what is written most often."""
        texts = self.lines["dev"].texts
        commonest = Counter(self.lines["train"].texts).most_common(1)[0][0]
        read = metrics.metrics(metrics.tally([commonest] * len(texts), texts, 0.0))
        return {"commonest_text": read[self.best_by]}

    def build_model(self) -> Any:
        return model.build(self.configuration, self.characters, self.settings.regularisation.dropout, self.exported)

    def batch(self, split: Split, rows: Rows) -> Batch:
        if split == "dev":
            rows = self.dev_order[rows]
        pictures, widths = data.side_by_side([self.pictures.of(split, row) for row in rows.tolist()])
        labels, lengths = data.padded([self.labels[split][row] for row in rows.tolist()])
        arrays: dict[str, Any] = {"pictures": pictures, "widths": widths, "labels": labels, "lengths": lengths}
        return Batch(arrays, rows, None, {"texts": [self.lines[split].texts[row] for row in rows.tolist()]})

    def losses(self, model: Any, batch: Batch) -> tuple[Any, Any]:
        arrays = batch.arrays
        pictures = paddle.to_tensor(arrays["pictures"]).astype("float32")
        if model.training:  # evaluations see lines as they are
            pictures = augmented(pictures, arrays["widths"], self.settings.augmentation)
        logits, steps = model(pictures, paddle.to_tensor(arrays["widths"]))
        # In float32, whatever the layers were computed in.
        losses = ctc.losses(logits, steps, paddle.to_tensor(arrays["labels"]), arrays["lengths"])
        if self.settings.model.loss_per is LossPer.CHARACTER:
            losses = losses / paddle.to_tensor(np.maximum(arrays["lengths"], 1).astype(np.float32))
        return (logits, steps), losses

    def _read(self, outputs: Any, rows: list[int]) -> list[ctc.Reading]:
        logits, steps = outputs[0].astype("float32"), outputs[1].numpy()
        probabilities = paddle.nn.functional.softmax(logits, axis=-1).numpy()
        return [ctc.read(probabilities[i, : steps[i]], self.characters) for i in rows]

    def tally(self, outputs: Any, losses: Any, batch: Batch) -> Floats:
        read = [reading.text for reading in self._read(outputs, list(range(len(batch.rows))))]
        return metrics.tally(read, batch.extras["texts"], float(losses.sum()))

    def tally_of_nothing(self) -> Floats:
        return np.zeros(5)

    def metrics(self, tally: Floats) -> dict[str, Any]:
        return metrics.metrics(tally)

    def shown(self, outputs: Any, batch: Batch, i: int) -> dict[str, Any]:
        row, text = int(batch.rows[i]), batch.extras["texts"][i]
        (reading,) = self._read(outputs, [i])
        return {
            "image": list(self.lines["dev"].places[row]),
            "id": self.lines["dev"].ids[row],
            "text": text,
            "read": reading.text,
            "edits": metrics.edits(reading.text, text),
            "probability": reading.confidence,
        }

    def export(self, model: Any, folder: Path) -> list[str]:
        sample = self.batch("dev", np.arange(min(8, self.rows["dev"]))).arrays
        export.model_folder(model, folder / "model")
        export.inference_folder(model, sample["pictures"].astype(np.float32), sample["widths"], folder / "inference")
        return ["model", "inference"]
