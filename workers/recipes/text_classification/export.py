"""The finished model in two forms: a PaddleNLP folder, and a program for Paddle Inference."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
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


@dataclass(frozen=True)
class About:
    """What it takes to use a program, beside its tokenizer."""

    recipe: str
    max_length: int
    pairs: bool = False
    labels: list[str] = field(default_factory=list)
    output: str = "logits"
    tokens: str = ""  # of tagged texts: what their tokens are, see workers/datasets/tagging.py


def model_folder(model: Any, tokenizer: Any, folder: Path, readme: str = "") -> None:
    """Weights as safetensors, configuration, vocabulary: what `from_pretrained(folder)` takes."""
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(str(folder), safe_serialization=True)
    tokenizer.save_pretrained(str(folder))
    text = _MODEL_README.format(model=type(model).__name__, tokenizer=type(tokenizer).__name__)
    (folder / "README.md").write_text(text + (readme or _MODEL_LABELS), encoding="utf-8")


def inference_folder(model: Any, tokenizer: Any, about: About, sample: list[Any], folder: Path) -> None:
    """The traced program with its weights, and all that it takes to use it. TrainingFailed if it does not give the model's own
    outputs on `sample` (token ids [n, length], and for pairs the types of the tokens)."""
    folder.mkdir(parents=True, exist_ok=True)
    with paddle.no_grad():
        expected = model(*map(paddle.to_tensor, sample)).numpy()
    names = ["input_ids", "token_type_ids"][: len(sample)]
    specs = [InputSpec([None, None], "int64", name=name) for name in names]
    static = paddle.jit.to_static(model, input_spec=specs, full_graph=True)
    paddle.jit.save(static, str(folder / "model"))
    tokenizer.save_pretrained(str(folder))
    (folder / "labels.json").write_text(json.dumps(about.labels, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
    said = {
        "recipe": about.recipe,
        "max_length": about.max_length,
        "input": names[0],
        "inputs": names,
        "output": about.output,
        "tokenizer": type(tokenizer).__name__,
        "pairs": about.pairs,
    } | ({"tokens": about.tokens} if about.tokens else {})
    (folder / ABOUT).write_text(json.dumps(said, indent=2) + "\n", encoding="utf-8")
    (folder / "README.md").write_text(_readme(about, names, type(tokenizer).__name__), encoding="utf-8")
    difference = float(np.abs(run(folder, *sample) - expected).max())
    if not difference <= TOLERANCE * max(1.0, float(np.abs(expected).max())):
        raise TrainingFailed(
            EndReason.TRAINER_ERROR,
            Text(
                "The exported program gives other logits than the model (by %(difference).3g); it was not published.",
                difference=difference,
            ),
        )


def run(folder: Path, *arrays: Any) -> Any:
    """What the exported program gives for token ids [n, length] (and types)."""
    return predictor(folder)(*arrays)


def predictor(folder: Path) -> Callable[..., Any]:
    """The exported program as a function from its inputs [n, length] to its output, by Paddle Inference on CPU."""
    import paddle.inference as inference

    program = folder / "model.json"  # Paddle 3; earlier versions wrote model.pdmodel
    config = inference.Config(
        str(program if program.exists() else folder / "model.pdmodel"), str(folder / "model.pdiparams")
    )
    config.disable_glog_info()
    made = inference.create_predictor(config)
    entries = [made.get_input_handle(name) for name in made.get_input_names()]
    exit = made.get_output_handle(made.get_output_names()[0])

    def outputs(*arrays: Any) -> Any:
        for entry, array in zip(entries, arrays, strict=True):
            entry.copy_from_cpu(np.ascontiguousarray(array))
        made.run()
        return exit.copy_to_cpu()

    return outputs


def _readme(about: About, names: list[str], tokenizer: str) -> str:
    labels = ", ".join(about.labels)
    answer = {
        "text_classification": f"Softmax over the last axis makes probabilities. Labels, in this order: {labels} (also in `labels.json`).",
        "text_regression": "They are numbers in the units of the data, one per row.",
        "token_classification": "The tag of a token of your text is the greatest logit at its first piece; marks and further pieces have "
        f"none. Tags, in this order: {labels} (also in `labels.json`).",
    }[about.recipe]
    shape = {"text_regression": "[rows]", "token_classification": "[rows, tokens, tags]"}.get(
        about.recipe, "[rows, labels]"
    )
    encode = _ENCODE.format(
        call='"some text", "another"' if about.pairs else '"some text"', max_length=about.max_length
    )
    if about.recipe == "token_classification":
        encode = _ENCODE_TOKENS.format(
            split='list("some text".replace(" ", ""))' if about.tokens == "characters" else '"some text".split()',
            max_length=about.max_length,
        )
    last = {
        "text_classification": 'print(json.loads(Path(folder, "labels.json").read_text())[output[0].argmax()])',
        "text_regression": "print(float(output[0]))",
        "token_classification": 'tags = json.loads(Path(folder, "labels.json").read_text())\n'
        "    print([(word, tags[output[0, at].argmax()]) for word, at in zip(words, first) if at < output.shape[1] - 1])",
    }[about.recipe]
    return _INFERENCE_README.format(
        inputs=" and ".join(f"`{name}`" for name in names),
        names=names,
        output=about.output,
        shape=shape,
        answer=answer,
        max_length=about.max_length,
        tokenizer=tokenizer,
        encode=encode,
        last=last,
    )


_MODEL_README = """# A PaddleNLP model folder

    from paddlenlp.transformers import {model}, {tokenizer}

    tokenizer = {tokenizer}.from_pretrained("path/of/this/folder")
    model = {model}.from_pretrained("path/of/this/folder")
    model.eval()

"""

_MODEL_LABELS = """The names of the labels are in `config.json` (`id2label`).
"""

_ENCODE = "encoded = tokenizer({call}, max_length={max_length}, truncation=True)"
_ENCODE_TOKENS = """words = {split}
    pieces = [tokenizer.convert_tokens_to_ids(tokenizer.tokenize(word)) for word in words]
    first = np.cumsum([1, *map(len, pieces)])[:-1]  # of each word, after the mark at the beginning
    ids = sum(pieces, [])[: {max_length} - tokenizer.num_special_tokens_to_add()]
    encoded = {{"input_ids": tokenizer.build_inputs_with_special_tokens(ids)}}"""

_INFERENCE_README = """# A program for Paddle Inference

It takes {inputs} (int64, [rows, tokens], ids padded with the tokenizer's `pad_token_id`) and gives {output}, float32 {shape}.
{answer}
In training rows were cut at {max_length} tokens (`max_length` in `inference.json`), marks included.

    import json
    from pathlib import Path
    import numpy as np
    import paddle.inference as inference
    from paddlenlp.transformers import {tokenizer}

    folder = "path/of/this/folder"
    predictor = inference.create_predictor(
        inference.Config(f"{{folder}}/model.json", f"{{folder}}/model.pdiparams")
    )
    tokenizer = {tokenizer}.from_pretrained(folder)
    {encode}
    for name in {names}:
        predictor.get_input_handle(name).copy_from_cpu(np.array([encoded[name]], dtype="int64"))
    predictor.run()
    output = predictor.get_output_handle(predictor.get_output_names()[0]).copy_to_cpu()
    {last}
"""
