"""The finished model in two forms: its weights with all that is needed to build it again, and a program for Paddle Inference."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import paddle
from paddle.static import InputSpec
from safetensors.numpy import save_file

from workers.contract.states import EndReason
from workers.contract.texts import Text
from workers.recipes.image_classification import networks
from workers.recipes.image_classification.model import CONFIGURATION, WEIGHTS, Configuration
from workers.recipes.image_classification.settings import Fit
from workers.trainer.task import TrainingFailed

# The traced program may order sums differently than the model does.
TOLERANCE = 1e-4
ABOUT = "inference.json"


def model_folder(model: Any, configuration: Configuration, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    weights = {name: np.array(tensor.numpy(), np.float32) for name, tensor in model.state_dict().items()}
    save_file(weights, folder / WEIGHTS)
    _write_json(folder / CONFIGURATION, configuration.dump())
    shutil.copyfile(networks.__file__, folder / "networks.py")
    (folder / "README.md").write_text(_readme(_MODEL_README, configuration), encoding="utf-8")


def inference_folder(model: Any, configuration: Configuration, pictures: Any, folder: Path) -> None:
    """The traced program with its weights. TrainingFailed if it does not give what the model itself gives on `pictures`,
    uint8 [n, size, size, 3]."""
    folder.mkdir(parents=True, exist_ok=True)
    raw = networks.RawPictures(model)
    raw.eval()
    with paddle.no_grad():
        expected = raw(paddle.to_tensor(pictures)).numpy()
    side = configuration.size
    inputs = [InputSpec([None, side, side, 3], "uint8", name="pictures")]
    paddle.jit.save(paddle.jit.to_static(raw, input_spec=inputs, full_graph=True), str(folder / "model"))
    _write_json(folder / ABOUT, {"recipe": "image_classification", "inputs": ["pictures"], **configuration.dump()})
    (folder / "README.md").write_text(_readme(_INFERENCE_README, configuration), encoding="utf-8")
    difference = float(np.abs(predictor(folder)(pictures) - expected).max())
    if not difference <= TOLERANCE * max(1.0, float(np.abs(expected).max())):
        raise TrainingFailed(
            EndReason.TRAINER_ERROR,
            Text(
                "The exported program gives other logits than the model (by %(difference).3g); it was not published.",
                difference=difference,
            ),
        )


def predictor(folder: Path) -> Callable[[Any], Any]:
    """The exported program, by Paddle Inference on CPU, as a function from pictures uint8 [n, size, size, 3] to logits [n, labels]."""
    import paddle.inference as inference

    config = inference.Config(str(folder / "model.json"), str(folder / "model.pdiparams"))
    config.disable_glog_info()
    made = inference.create_predictor(config)

    def predict(pictures: Any) -> Any:
        made.get_input_handle("pictures").copy_from_cpu(np.ascontiguousarray(pictures, np.uint8))
        made.run()
        return made.get_output_handle(made.get_output_names()[0]).copy_to_cpu()

    return predict


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")


# What workers/recipes/image_classification/data.py does, for who has Pillow only.
_SQUARE = {
    Fit.CROP: "ImageOps.fit(picture, (size, size), Image.Resampling.BILINEAR)",
    Fit.PAD: "ImageOps.pad(picture, (size, size), Image.Resampling.BILINEAR, color=0)",
    Fit.STRETCH: "picture.resize((size, size), Image.Resampling.BILINEAR)",
}


def _readme(template: str, configuration: Configuration) -> str:
    return template.format(
        architecture=configuration.architecture,
        size=configuration.size,
        labels=", ".join(configuration.labels),
        square=_SQUARE[Fit(configuration.fit)],
        weights=WEIGHTS,
        configuration=CONFIGURATION,
        about=ABOUT,
    )


_READ_PICTURE = """    picture = ImageOps.exif_transpose(Image.open("picture.png")).convert("RGB")
    size = {size}
    pixels = np.asarray({square})[None]"""

_MODEL_README = (
    """# Image classification: {architecture}

`{weights}` has the weights, `{configuration}` sizes, labels, and mean and deviation of the colours, `networks.py` the network: it
needs nothing but Paddle, and of a ResNet takes the blocks from `paddle.vision`. Labels: {labels}.

    import json
    import sys
    import numpy as np
    import paddle
    from PIL import Image, ImageOps
    from safetensors.numpy import load_file

    folder = "path/of/this/folder"
    sys.path.insert(0, folder)
    import networks

    with open(f"{{folder}}/{configuration}") as file:
        about = json.load(file)
    network = networks.build(about)
    network.set_state_dict(load_file(f"{{folder}}/{weights}"))
    network.eval()
"""
    + _READ_PICTURE
    + """
    pictures = paddle.to_tensor(pixels).astype("float32").transpose([0, 3, 1, 2]) / 255
    logits = network(pictures)[0]
    print(about["labels"][int(logits.argmax())])

A ResNet with a width of 64, the large stem and BatchNorm has the weights of `paddle.vision.models`, under the names that
`networks.vision_name` gives.
"""
)

_INFERENCE_README = (
    """# A program for Paddle Inference

It takes `pictures` (uint8, [pictures, {size}, {size}, 3], RGB) and gives logits, float32 [pictures, labels]; softmax makes probabilities
of them. Normalisation is part of it. Labels, in this order: {labels} (also in `{about}`).

    import json
    from pathlib import Path
    import numpy as np
    import paddle.inference as inference
    from PIL import Image, ImageOps

    folder = "path/of/this/folder"
    predictor = inference.create_predictor(
        inference.Config(f"{{folder}}/model.json", f"{{folder}}/model.pdiparams")
    )
"""
    + _READ_PICTURE
    + """
    predictor.get_input_handle("pictures").copy_from_cpu(np.ascontiguousarray(pixels))
    predictor.run()
    logits = predictor.get_output_handle(predictor.get_output_names()[0]).copy_to_cpu()[0]
    print(json.loads(Path(folder, "{about}").read_text())["labels"][logits.argmax()])
"""
)
