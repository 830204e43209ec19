"""The finished model in two forms: its weights with all that is needed to build it again, and a program for Paddle Inference."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import paddle
from paddle.static import InputSpec
from safetensors.numpy import save_file

from workers.contract.states import EndReason
from workers.contract.texts import Text
from workers.recipes.text_lines.model import (
    CHARACTERS,
    CONFIGURATION,
    WEIGHTS,
    LineReader,
    Probabilities,
    arrays_of,
    write_characters,
)
from workers.trainer.task import TrainingFailed

# The traced program may order sums differently than the model does.
TOLERANCE = 1e-4
ABOUT = "inference.json"


def model_folder(model: LineReader, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    save_file(arrays_of(model), folder / WEIGHTS)
    _write_json(folder / CONFIGURATION, model.configuration.dump())
    write_characters(folder, model.characters)
    (folder / "README.md").write_text(_MODEL_README, encoding="utf-8")


def inference_folder(model: LineReader, pictures: Any, widths: Any, folder: Path) -> None:
    """The traced program with its weights. TrainingFailed if it does not give what the model itself gives on `pictures`
    [n, 1 or 3, height, width] and `widths` [n]."""
    folder.mkdir(parents=True, exist_ok=True)
    whole, configuration = Probabilities(model), model.configuration
    whole.eval()
    with paddle.no_grad():
        expected = whole(paddle.to_tensor(pictures), paddle.to_tensor(widths))[0].numpy()
    colours = 3 if configuration.colour else 1
    inputs = [
        InputSpec([None, colours, configuration.height, None], "float32", name="pictures"),
        InputSpec([None], "int64", name="widths"),
    ]
    paddle.jit.save(paddle.jit.to_static(whole, input_spec=inputs, full_graph=True), str(folder / "model"))
    about = {
        "recipe": "text_lines",
        "inputs": ["pictures", "widths"],
        "outputs": ["probabilities", "steps"],
        **configuration.dump(),
    }
    _write_json(folder / ABOUT, about)
    write_characters(folder, model.characters)
    readme = _INFERENCE_README.format(
        colours=colours,
        height=configuration.height,
        widest=configuration.max_width,
        reduction=configuration.reduction,
        mode="RGB" if configuration.colour else "L",
        order=".transpose(2, 0, 1)[None]" if configuration.colour else "[None, None]",
    )
    (folder / "README.md").write_text(readme, encoding="utf-8")
    given = predictor(folder)(pictures, widths)[0]
    # What comes after a line's end means nothing.
    counts = np.arange(expected.shape[1]) < given_steps(widths, configuration.reduction)[:, None]
    difference = float(np.abs(given - expected)[counts].max())
    if not difference <= TOLERANCE:
        raise TrainingFailed(
            EndReason.TRAINER_ERROR,
            Text(
                "The exported program gives other predictions than the model (by %(difference).3g); it was not published.",
                difference=difference,
            ),
        )


def given_steps(widths: Any, reduction: int) -> Any:
    return -(-widths // reduction)


def predictor(folder: Path) -> Callable[[Any, Any], tuple[Any, Any]]:
    """The exported program, by Paddle Inference on CPU, as a function from pictures [n, 1 or 3, height, width] and widths [n]
    to probabilities [n, steps, classes] and steps [n]."""
    import paddle.inference as inference

    program = folder / "model.json"  # Paddle 3; earlier versions wrote model.pdmodel
    config = inference.Config(
        str(program if program.exists() else folder / "model.pdmodel"), str(folder / "model.pdiparams")
    )
    config.disable_glog_info()
    made = inference.create_predictor(config)

    def predict(pictures: Any, widths: Any) -> tuple[Any, Any]:
        made.get_input_handle("pictures").copy_from_cpu(np.ascontiguousarray(pictures, np.float32))
        made.get_input_handle("widths").copy_from_cpu(np.ascontiguousarray(widths, np.int64))
        made.run()
        first, second = (made.get_output_handle(name).copy_to_cpu() for name in made.get_output_names())
        return first, second

    return predict


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")


_MODEL_README = f"""# A model that reads lines of text (CRNN with CTC)

`{WEIGHTS}` has its weights, `{CONFIGURATION}` its sizes, `{CHARACTERS}` its characters, one in each line: class 0 is CTC's
blank, and the first line is class 1. Names of weights: `convolutions.<i>.conv` and `.norm` are those of `paddle.nn.Conv2D`
(3 × 3, no bias) and `paddle.nn.BatchNorm2D`, `recurrent.<i>` of `paddle.nn.LSTM` or `paddle.nn.GRU`, `head` and `shortcut` of
`paddle.nn.Linear`.

    import json
    import paddle
    from safetensors.numpy import load_file

    folder = "path/of/this/folder"
    with open(f"{{folder}}/{CONFIGURATION}") as file:
        about = json.load(file)
    weights = load_file(f"{{folder}}/{WEIGHTS}")
    characters = open(f"{{folder}}/{CHARACTERS}", encoding="utf-8", newline="\\n").read().split("\\n")[:-1]
    head = paddle.nn.Linear(*weights["head.weight"].shape)
    head.set_state_dict({{"weight": weights["head.weight"], "bias": weights["head.bias"]}})

A line is scaled to `height` pixels, its width in proportion, and pixels from 0 to 255 to −1 to 1. Each convolution is followed
by its norm, ReLU and, but for the third, max pooling: rows always 2, columns 2 for the first log2(`reduction`) of them. Then
every column, its channels times rows as one vector, is a step of the recurrent layers. The logits are `head` of their outputs
plus `shortcut` of the columns. Beyond a line's width all is zero
after each ReLU. A program that does all of it is the other export.
"""

_INFERENCE_README = """# A program for Paddle Inference that reads lines of text

It takes `pictures` (float32, [lines, {colours}, {height}, width], from 0 for black to 255 for white, anything after the end of
narrower lines) and `widths` (int64, [lines]: pixels of each), and gives the probability of each class at each step (float32,
[lines, steps, classes]) and the number of steps of each line (int64, [lines]; one for {reduction} pixels). Class 0 is CTC's
blank; the others are the lines of `characters.txt`, in their order. In training lines were {widest} pixels wide at most.

    import numpy as np
    import paddle.inference as inference
    from PIL import Image

    folder, picture = "path/of/this/folder", "path/of/a/line.png"
    predictor = inference.create_predictor(
        inference.Config(f"{{folder}}/model.json", f"{{folder}}/model.pdiparams")
    )
    line = Image.open(picture).convert("{mode}")
    width = max(round(line.width * {height} / line.height), 1)
    pixels = np.asarray(line.resize((width, {height}), Image.Resampling.BILINEAR), dtype="float32")
    predictor.get_input_handle("pictures").copy_from_cpu(np.ascontiguousarray(pixels{order}))
    predictor.get_input_handle("widths").copy_from_cpu(np.array([width], dtype="int64"))
    predictor.run()
    probabilities = predictor.get_output_handle(predictor.get_output_names()[0]).copy_to_cpu()[0]
    best = probabilities.argmax(axis=-1)
    characters = open(f"{{folder}}/characters.txt", encoding="utf-8", newline="\\n").read().split("\\n")
    text = "".join(
        characters[number - 1] for i, number in enumerate(best) if number and (i == 0 or number != best[i - 1])
    )
    print(text)
"""
