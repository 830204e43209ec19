"""The finished model in two forms: a PaddleNLP folder, and a program for Paddle Inference."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import paddle
from paddle.static import InputSpec

from workers.contract.states import EndReason
from workers.contract.texts import Text
from workers.trainer.task import TrainingFailed

# The traced program may order sums differently than the model does.
TOLERANCE = 1e-4
ABOUT = "inference.json"


def model_folder(model: Any, tokenizer: Any, folder: Path) -> None:
    """Weights as safetensors, configuration, vocabulary: what `from_pretrained(folder)` takes."""
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(str(folder), safe_serialization=True)
    tokenizer.save_pretrained(str(folder))
    (folder / "README.md").write_text(_MODEL_README, encoding="utf-8")


def inference_folder(model: Any, tokenizer: Any, labels: list[str], max_length: int, sample: Any, folder: Path) -> None:
    """The traced program with its weights, and all that it takes to use it. TrainingFailed if it does not give the model's own logits
    on `sample` (token ids [n, length])."""
    folder.mkdir(parents=True, exist_ok=True)
    with paddle.no_grad():
        expected = model(paddle.to_tensor(sample)).numpy()
    static = paddle.jit.to_static(
        model, input_spec=[InputSpec([None, None], "int64", name="input_ids")], full_graph=True
    )
    paddle.jit.save(static, str(folder / "model"))
    tokenizer.save_pretrained(str(folder))
    (folder / "labels.json").write_text(json.dumps(labels, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
    about = {"recipe": "text_classification", "max_length": max_length, "input": "input_ids", "output": "logits"}
    (folder / ABOUT).write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")
    readme = _INFERENCE_README.format(labels=", ".join(labels), max_length=max_length)
    (folder / "README.md").write_text(readme, encoding="utf-8")
    difference = float(np.abs(run(folder, sample) - expected).max())
    if not difference <= TOLERANCE * max(1.0, float(np.abs(expected).max())):
        raise TrainingFailed(
            EndReason.TRAINER_ERROR,
            Text(
                "The exported program gives other logits than the model (by %(difference).3g); it was not published.",
                difference=difference,
            ),
        )


def run(folder: Path, ids: Any) -> Any:
    """Logits [n, labels] of the exported program for token ids [n, length]."""
    return predictor(folder)(ids)


def predictor(folder: Path) -> Callable[[Any], Any]:
    """The exported program as a function from token ids [n, length] to logits [n, labels], by Paddle Inference on CPU."""
    import paddle.inference as inference

    program = folder / "model.json"  # Paddle 3; earlier versions wrote model.pdmodel
    config = inference.Config(
        str(program if program.exists() else folder / "model.pdmodel"), str(folder / "model.pdiparams")
    )
    config.disable_glog_info()
    made = inference.create_predictor(config)
    entry = made.get_input_handle(made.get_input_names()[0])
    exit = made.get_output_handle(made.get_output_names()[0])

    def logits(ids: Any) -> Any:
        entry.copy_from_cpu(np.ascontiguousarray(ids))
        made.run()
        return exit.copy_to_cpu()

    return logits


_MODEL_README = """# A PaddleNLP model folder

    from paddlenlp.transformers import ErnieForSequenceClassification, ErnieTokenizer

    tokenizer = ErnieTokenizer.from_pretrained("path/of/this/folder")
    model = ErnieForSequenceClassification.from_pretrained("path/of/this/folder")
    model.eval()

The names of the labels are in `config.json` (`id2label`).
"""

_INFERENCE_README = """# A program for Paddle Inference

It takes `input_ids` (int64, [texts, tokens], padded with 0) and gives logits, float32 [texts, labels].
Softmax makes probabilities of them. Labels, in this order: {labels} (also in `labels.json`).
In training texts were cut at {max_length} tokens (`max_length` in `inference.json`), both marks included.

    import json
    from pathlib import Path
    import numpy as np
    import paddle.inference as inference
    from paddlenlp.transformers import ErnieTokenizer

    folder = "path/of/this/folder"
    predictor = inference.create_predictor(
        inference.Config(f"{{folder}}/model.json", f"{{folder}}/model.pdiparams")
    )
    tokenizer = ErnieTokenizer.from_pretrained(folder)
    ids = tokenizer("some text", max_length={max_length}, truncation=True)["input_ids"]
    entry = predictor.get_input_handle(predictor.get_input_names()[0])
    entry.copy_from_cpu(np.array([ids], dtype="int64"))
    predictor.run()
    logits = predictor.get_output_handle(predictor.get_output_names()[0]).copy_to_cpu()
    print(json.loads(Path(folder, "labels.json").read_text())[logits[0].argmax()])
"""
