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
from workers.recipes.sequences.model import CONFIGURATION, WEIGHTS, RawUnits, Recurrent
from workers.trainer.task import TrainingFailed

# The traced program may order sums differently than the model does.
TOLERANCE = 1e-4
ABOUT = "inference.json"


def model_folder(model: Recurrent, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    save_file({name: np.array(tensor.numpy()) for name, tensor in model.state_dict().items()}, folder / WEIGHTS)
    _write_json(folder / CONFIGURATION, model.configuration.dump())
    (folder / "README.md").write_text(_MODEL_README, encoding="utf-8")


def inference_folder(model: Recurrent, values: Any, lengths: Any, folder: Path) -> None:
    """The traced program with its weights. TrainingFailed if it does not give what the model itself gives on `values`
    [samples, steps, features] and `lengths`."""
    folder.mkdir(parents=True, exist_ok=True)
    raw, configuration = RawUnits(model), model.configuration
    raw.eval()
    with paddle.no_grad():
        expected = raw(paddle.to_tensor(values), paddle.to_tensor(lengths)).numpy()
    inputs = [
        InputSpec([None, None, len(configuration.features)], "float32", name="values"),
        InputSpec([None], "int64", name="lengths"),
    ]
    paddle.jit.save(paddle.jit.to_static(raw, input_spec=inputs, full_graph=True), str(folder / "model"))
    about = {"recipe": "sequences", "inputs": ["values", "lengths"], **configuration.dump()}
    _write_json(folder / ABOUT, about)
    (folder / "README.md").write_text(_inference_readme(model), encoding="utf-8")
    difference = float(np.abs(predictor(folder)(values, lengths) - expected).max())
    size = configuration.normalisation.target_scale if model.numbers else 1.0
    if not difference <= TOLERANCE * max(size, float(np.abs(expected).max())):
        raise TrainingFailed(
            EndReason.TRAINER_ERROR,
            Text(
                "The exported program gives other predictions than the model (by %(difference).3g); it was not published.",
                difference=difference,
            ),
        )


def predictor(folder: Path) -> Callable[[Any, Any], Any]:
    """The exported program, by Paddle Inference on CPU, as a function from values [samples, steps, features] and lengths
    [samples] to numbers [samples] or logits [samples, labels]."""
    import paddle.inference as inference

    program = folder / "model.json"  # Paddle 3; earlier versions wrote model.pdmodel
    config = inference.Config(
        str(program if program.exists() else folder / "model.pdmodel"), str(folder / "model.pdiparams")
    )
    config.disable_glog_info()
    made = inference.create_predictor(config)

    def predict(values: Any, lengths: Any) -> Any:
        made.get_input_handle("values").copy_from_cpu(np.ascontiguousarray(values, np.float32))
        made.get_input_handle("lengths").copy_from_cpu(np.ascontiguousarray(lengths, np.int64))
        made.run()
        return made.get_output_handle(made.get_output_names()[0]).copy_to_cpu()

    return predict


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")


def _inference_readme(model: Recurrent) -> str:
    configuration = model.configuration
    if model.numbers:
        what = f"the next value of “{configuration.predicts}”" if configuration.predicts else "a number"
        output = f"{what} for each sequence, float32 [sequences], in the units of the data"
    else:
        labels = ", ".join(configuration.labels)
        output = (
            "logits, float32 [sequences, labels]; softmax makes probabilities of them.\n"
            f"Labels, in this order: {labels} (also in `{ABOUT}`)"
        )
    return _INFERENCE_README.format(
        features=", ".join(configuration.features),
        count=len(configuration.features),
        longest=configuration.max_length,
        output=output,
    )


_MODEL_README = f"""# A recurrent model

`{WEIGHTS}` has its weights, `{CONFIGURATION}` its sizes, features, labels and normalisation. Names of weights are those of
`paddle.nn.LSTM` or `paddle.nn.GRU` (`rnn.…`) and `paddle.nn.Linear` (`head.…`); `linear_path.weight` is there with a linear path.

    import json
    import paddle
    from safetensors.numpy import load_file

    folder = "path/of/this/folder"
    with open(f"{{folder}}/{CONFIGURATION}") as file:
        about = json.load(file)
    weights = load_file(f"{{folder}}/{WEIGHTS}")
    both = "bidirect" if about["bidirectional"] else "forward"
    rnn = (paddle.nn.LSTM if about["cell"] == "lstm" else paddle.nn.GRU)(
        len(about["features"]), about["hidden_size"], num_layers=about["layers"], direction=both
    )
    rnn.set_state_dict({{name[4:]: value for name, value in weights.items() if name.startswith("rnn.")}})

Its input is (values − `shift`) / `scale`; the last layer's final state, of both directions one after the other, goes through
the linear layer. With `linear_steps` of K, the newest K time steps of the input (oldest first, of each all features; zeros where
there are fewer) times `linear_path.weight` are added. A number is then multiplied with `target_scale`, and `target_shift` is added.
"""

_INFERENCE_README = """# A program for Paddle Inference

It takes `values` (float32, [sequences, time steps, {count}], features in this order: {features}; raw, as in the data, with
zeros after the end of shorter sequences) and `lengths` (int64, [sequences]: time steps of each), and gives {output}.
In training at most {longest} time steps were read, the newest of each sequence.

    import numpy as np
    import paddle.inference as inference

    folder = "path/of/this/folder"
    predictor = inference.create_predictor(
        inference.Config(f"{{folder}}/model.json", f"{{folder}}/model.pdiparams")
    )
    sequence = np.zeros((1, 12, {count}), dtype="float32")  # one sequence of 12 time steps
    predictor.get_input_handle("values").copy_from_cpu(sequence)
    predictor.get_input_handle("lengths").copy_from_cpu(np.array([12], dtype="int64"))
    predictor.run()
    print(predictor.get_output_handle(predictor.get_output_names()[0]).copy_to_cpu())
"""
