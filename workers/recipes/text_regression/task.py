"""Text regression as the trainer sees it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import paddle

from workers.contract.states import EndReason
from workers.contract.texts import Text
from workers.recipes.sequences.metrics import of_constant
from workers.recipes.sequences.settings import Loss
from workers.recipes.text_classification import data, export, inputs, model
from workers.recipes.text_classification.inputs import Inputs
from workers.recipes.text_regression import metrics
from workers.trainer.evaluation import train_sample
from workers.trainer.task import Batch, Context, Floats, Rows, Split, TrainingFailed

# Spearman's correlation needs the rows themselves: of more dev rows than these, evenly chosen ones.
MOST_RANKED = 20_000


def build(context: Context) -> TextRegression:
    return TextRegression(context)


class TextRegression:
    best_by, lower_is_better = "mae", True

    def __init__(self, context: Context) -> None:
        self.settings = settings = context.settings
        context.stage("reading data", context.spec.dataset.name if context.spec.dataset else "")
        folder = context.folder.dataset
        train = data.read(folder / "train.jsonl", settings.data, None)
        dev = data.read(folder / "dev.jsonl", settings.data, None)
        self.inputs = Inputs(
            context, {"train": train.texts, "dev": dev.texts}, {"train": train.seconds, "dev": dev.seconds}
        )
        self.targets: dict[Split, Floats] = {"train": train.numbers, "dev": dev.numbers}
        self.rows, self.lengths = self.inputs.rows, self.inputs.lengths
        self.weights: Floats = train.weights
        finite = train.numbers[np.isfinite(train.numbers)]
        if not len(finite):
            raise TrainingFailed(EndReason.BAD_DATA, Text("No training row has a finite number."))
        self.shift, self.scale = (float(finite.mean()), float(finite.std())) if settings.data.normalise else (0.0, 1.0)
        if not np.isfinite(self.scale) or self.scale < 1e-12 * max(1.0, abs(self.shift)):
            self.scale = 1.0
        self.baselines = {"median": of_constant(dev.numbers, float(np.median(finite)))}
        self.identity: dict[str, Any] = {**self.inputs.identity, "normalisation": [self.shift, self.scale]}
        self._slots, self._ranked = self._places()

    def _places(self) -> tuple[dict[Split, Rows], int]:
        """Of each row its place among those that are ranked, or −1."""
        places = {split: np.full(self.rows[split], -1, np.int64) for split in inputs.SPLITS}
        ranked = np.arange(0, self.rows["dev"], -(-self.rows["dev"] // MOST_RANKED))
        places["dev"][ranked] = np.arange(len(ranked))
        measured = train_sample(self)[: len(ranked)]
        places["train"][measured] = np.arange(len(measured))
        return places, len(ranked)

    def build_model(self) -> Any:
        own = {"num_labels": 1, "target_shift": self.shift, "target_scale": self.scale}
        found = self.inputs
        before = _normalisation_of(found.pretrained)
        built = model.build(self.settings, found.pretrained, found.tokenizer.vocab_size, "SequenceClassification", own)
        if before is not None:
            _renormalise(built, before, (self.shift, self.scale))
        self.types = model.takes_types(built)
        return built

    def batch(self, split: Split, rows: Rows) -> Batch:
        return self.inputs.batch(split, rows, {"targets": self.targets[split]})

    def losses(self, model: Any, batch: Batch) -> tuple[Any, Any]:
        outputs = model(*inputs.tensors(batch.arrays, self.types)).astype("float32").squeeze(-1)
        # Subtracted in float64: targets may be large beside what they differ by.
        targets = (batch.arrays["targets"] - self.shift) / self.scale
        error = outputs - paddle.to_tensor(targets.astype(np.float32))
        if self.settings.model.loss is Loss.SQUARED:
            return outputs, error.square()
        size = error.abs()
        if self.settings.model.loss is Loss.ABSOLUTE:
            return outputs, size
        return outputs, paddle.where(size <= 1.0, 0.5 * error.square(), size - 0.5)

    def tally(self, outputs: Any, losses: Any, batch: Batch) -> Floats:
        said = outputs.numpy().astype(np.float64) * self.scale + self.shift
        slots = self._slots[batch.extras["split"]][batch.rows]
        return metrics.tally(said, batch.arrays["targets"], float(losses.sum()), self.shift, slots, self._ranked)

    def tally_of_nothing(self) -> Floats:
        return metrics.nothing(self._ranked)

    def metrics(self, tally: Floats) -> dict[str, Any]:
        return metrics.metrics(tally)

    def shown(self, outputs: Any, batch: Batch, i: int) -> dict[str, str | int | float | bool | None]:
        return {
            "text": self.inputs.shown(int(batch.rows[i])),
            "label": float(batch.arrays["targets"][i]),
            "predicted": float(outputs[i]) * self.scale + self.shift,
        }

    def export(self, model: Any, folder: Path) -> list[str]:
        sample = inputs.arguments(self.batch("dev", np.arange(min(8, self.rows["dev"]))).arrays, self.types)
        tokenizer, length = self.inputs.tokenizer, self.settings.data.max_length
        export.model_folder(model, tokenizer, folder / "model", _README)
        about = export.About("text_regression", length, self.inputs.pairs, output="values")
        in_units = InUnits(model, self.shift, self.scale)
        in_units.eval()
        export.inference_folder(in_units, tokenizer, about, sample, folder / "inference")
        return ["model", "inference"]


class InUnits(paddle.nn.Layer):  # type: ignore[misc]
    """The model, in the units of the data."""

    def __init__(self, model: Any, shift: float, scale: float) -> None:
        super().__init__()
        self.model, self.shift, self.scale = model, shift, scale

    def forward(self, input_ids: Any, token_type_ids: Any = None) -> Any:
        return self.model(input_ids, token_type_ids).squeeze(-1) * self.scale + self.shift


def _normalisation_of(pretrained: str | None) -> tuple[float, float] | None:
    """Of a model that a job of this recipe exported."""
    path = Path(pretrained or "") / "config.json"
    if pretrained is None or not path.exists():
        return None
    said = json.loads(path.read_text(encoding="utf-8"))
    return (said["target_shift"], said["target_scale"]) if "target_scale" in said else None


def _renormalise(built: Any, before: tuple[float, float], now: tuple[float, float]) -> None:
    """Has the last layer say the same numbers under another normalisation."""
    (last,) = [one for one in built.sublayers() if isinstance(one, paddle.nn.Linear) and one.weight.shape[-1] == 1][-1:]
    factor = before[1] / now[1]
    last.weight.set_value(last.weight * factor)
    last.bias.set_value(last.bias * factor + (before[0] - now[0]) / now[1])


_README = """It says one number per row, normalised: times `target_scale` plus `target_shift` of `config.json` it is in the units of the data.
"""
