"""Where a model may come from, and what a finished one is good for."""

from __future__ import annotations

import json
import os
import shutil
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import pytest
from paddlenlp.transformers import ErnieForSequenceClassification, ErnieTokenizer

from tests.workers.recipes.examples import write_texts
from tests.workers.trainer.conftest import Attempt, Ranks, Zygote, make_attempt
from workers.recipes.text_classification import export, predict

SCRATCH = {"source": "scratch"}


@pytest.fixture(scope="module")
def trained(zygote: Zygote, tmp_path_factory: pytest.TempPathFactory) -> Attempt:
    """Its folder is only read."""
    path = tmp_path_factory.mktemp("trained")
    write_texts(path / "words")
    options = {"training": {"max_steps": 60}, "optimizer": {"learning_rate": 5e-3}}
    return Ranks(zygote, make_attempt(path / "run", path / "words", **options), {}).wait()


def refused(train: Any, environment: dict[str, str] | None = None, **model: Any) -> str:
    outcome = train("refused", model=model, environment=environment).outcome()
    assert outcome["end_reason"] == "model_unavailable"
    return str(outcome["detail"])


def test_the_exported_folder_is_loaded_by_paddlenlp_and_knows_its_labels(trained: Attempt) -> None:
    folder = trained.folder.artifacts / "model"
    assert {"model.safetensors", "config.json", "vocab.txt", "README.md"} <= {path.name for path in folder.iterdir()}
    assert not any(folder.glob("*.pdparams"))
    model = ErnieForSequenceClassification.from_pretrained(str(folder))
    model.eval()
    assert model.config.id2label == {0: "neg", 1: "pos"}
    best = trained.final("best")
    assert all(np.array_equal(tensor.numpy(), best[name]) for name, tensor in model.state_dict().items())

    ids = ErnieTokenizer.from_pretrained(str(folder))("好喜欢的人")["input_ids"]
    with paddle.no_grad():
        logits = model(paddle.to_tensor([ids])).numpy()
    inference = trained.folder.artifacts / "inference"
    assert export.run(inference, np.array([ids])) == pytest.approx(logits, abs=1e-5)
    assert json.loads((inference / "labels.json").read_text()) == ["neg", "pos"]


def test_the_exported_program_takes_any_number_of_texts_of_any_length(trained: Attempt) -> None:
    for shape in ((1, 3), (5, 40)):
        assert export.run(trained.folder.artifacts / "inference", np.ones(shape, np.int64)).shape == (shape[0], 2)


def test_the_readme_of_the_program_is_true(trained: Attempt) -> None:
    folder = trained.folder.artifacts / "inference"
    lines = [line[4:] for line in (folder / "README.md").read_text().splitlines() if line.startswith("    ")]
    code = "\n".join(lines).replace("path/of/this/folder", str(folder)).replace("print(", "answer = (")
    namespace: dict[str, Any] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exec(code, namespace)  # noqa: S102
    assert namespace["answer"] in ("neg", "pos")


def test_what_is_tried_is_what_the_evaluation_saw(trained: Attempt, dataset: Path) -> None:
    """Row by row, whatever the others in the batch are: some are cut, and one has characters that nobody knows."""
    rows = [json.loads(line) for line in (dataset / "dev.jsonl").read_text().splitlines()]
    ask = predict.load(trained.folder.artifacts / "inference")
    predictions = [prediction for at in range(0, len(rows), 5) for prediction in ask(rows[at : at + 5])]
    labels, counts = ["neg", "pos"], [[0, 0], [0, 0]]
    for row, prediction in zip(rows, predictions, strict=True):
        counts[labels.index(row["label"])][labels.index(prediction.scores[0].label)] += 1
        assert sum(score.probability for score in prediction.scores) == pytest.approx(1)
    best = max((line for line in trained.events("evaluation") if line["best"]), key=lambda line: line["step"])
    assert counts == best["metrics"]["confusion"]

    (alone,) = ask(rows[:1])
    assert alone.scores[0].probability == pytest.approx(predictions[0].scores[0].probability, abs=1e-6)
    whole, cut = ask([{"text": "好" * 14}, {"text": "好" * 15}])
    assert (len(whole.tokens), whole.cut, len(cut.tokens), cut.cut) == (16, False, 16, True)
    (unknown,) = ask([{"text": "好鱻"}])
    assert unknown.tokens == ["[CLS]", "好", "[UNK]", "[SEP]"] and unknown.unknown == "[UNK]"


def test_another_job_starts_from_the_exported_weights(
    trained: Attempt, tmp_path: Path, dataset: Path, zygote: Any
) -> None:
    options = {
        "model": {"source": "job", "job": 1},
        "training": {"max_steps": 1},
        "optimizer": {"learning_rate": 1e-12},
    }
    attempt = make_attempt(tmp_path / "second", dataset, **options)
    shutil.copytree(trained.folder.artifacts / "model", attempt.folder.model)
    Ranks(zygote, attempt, {}, export=False).wait()
    accuracy = attempt.events("evaluation")[-1]["metrics"]["accuracy"]
    assert accuracy == max(line["metrics"]["accuracy"] for line in trained.events("evaluation"))
    assert attempt.outcome()["end_reason"] == "completed"


def test_a_folder_below_a_model_root_is_loaded(trained: Attempt, train: Any, tmp_path: Path) -> None:
    root = tmp_path / "models"
    shutil.copytree(trained.folder.artifacts / "model", root / "ernie" / "tiny")
    attempt = train(
        "from-folder",
        export=False,
        model={"source": "folder", "folder": "ernie/tiny"},
        environment={"MODEL_ROOTS": f"{tmp_path / 'none'},{root}"},
    )
    assert attempt.outcome()["end_reason"] == "completed"


@pytest.mark.parametrize("folder", ["../secret", "/etc", "ernie/../../secret", "link", "."])
def test_no_path_leads_out_of_a_model_root(tmp_path: Path, train: Any, folder: str) -> None:
    root = tmp_path / "models"
    (root / "ernie").mkdir(parents=True)
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "config.json").write_text("{}")
    (root / "link").symlink_to(tmp_path / "secret")
    detail = refused(train, {"MODEL_ROOTS": str(root)}, source="folder", folder=folder)
    assert detail.startswith(f"There is no folder “{folder}” below this host's model roots.")


def test_without_model_roots_no_folder_is_read(train: Any) -> None:
    assert "has no model roots" in refused(train, {"MODEL_ROOTS": ""}, source="folder", folder="ernie")


def test_pickled_weights_are_read_only_where_staff_allows_it(train: Any, trained: Attempt, tmp_path: Path) -> None:
    folder = tmp_path / "models" / "pickled"
    model = ErnieForSequenceClassification.from_pretrained(str(trained.folder.artifacts / "model"))
    model.save_pretrained(str(folder), safe_serialization=False)
    ErnieTokenizer.from_pretrained(str(trained.folder.artifacts / "model")).save_pretrained(str(folder))
    assert (folder / "model_state.pdparams").exists()
    environment = {"MODEL_ROOTS": str(folder.parent), "ALLOW_PICKLE_MODELS": "false"}
    assert "ALLOW_PICKLE_MODELS=true" in refused(train, environment, source="folder", folder="pickled")
    allowed = train(
        "allowed",
        export=False,
        model={"source": "folder", "folder": "pickled"},
        environment={**environment, "ALLOW_PICKLE_MODELS": "true"},
    )
    assert allowed.outcome()["end_reason"] == "completed"


def test_an_index_that_leads_to_pickled_shards_is_refused(train: Any, tmp_path: Path) -> None:
    folder = tmp_path / "models" / "sly"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"harmless")
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"w": "shard.pdparams"}}')
    assert "has no model.safetensors" in refused(
        train, {"MODEL_ROOTS": str(folder.parent)}, source="folder", folder="sly"
    )


def test_names_that_paddlenlp_fetches_as_pickles_need_leave(train: Any) -> None:
    detail = refused(train, {"HUB_ALLOWED": "true"}, source="hub", name="ernie-3.0-nano-zh")
    assert "ALLOW_PICKLE_MODELS=true" in detail


def test_a_broken_folder_is_one_sentence(train: Any, tmp_path: Path) -> None:
    folder = tmp_path / "models" / "broken"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"nothing")
    detail = refused(train, {"MODEL_ROOTS": str(folder.parent)}, source="folder", folder="broken")
    assert detail.startswith("The model folder cannot be loaded: ")


def test_a_hub_name_is_refused_where_hosts_fetch_nothing(train: Any) -> None:
    detail = refused(train, {"HUB_ALLOWED": "false"}, source="hub", name="ernie-3.0-nano-zh")
    assert "HUB_ALLOWED=true" in detail and "model roots" in detail


@pytest.mark.parametrize("name", ["../../etc", "/etc/passwd", "a/b/c"])
def test_a_hub_name_cannot_be_a_path(train: Any, name: str) -> None:
    assert "is not a name that a hub can know" in refused(train, {"HUB_ALLOWED": "true"}, source="hub", name=name)


def test_offline_it_says_what_to_do(train: Any, tmp_path: Path) -> None:
    unreachable = {name: "http://127.0.0.1:9" for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY")}
    environment = {
        **os.environ,
        **unreachable,
        "HUB_ALLOWED": "true",
        "ALLOW_PICKLE_MODELS": "true",
        "PPNLP_HOME": str(tmp_path / "cache"),
    }
    detail = refused(train, environment, source="hub", name="ernie-3.0-nano-zh")
    assert "could not be fetched from the hub" in detail
    assert "put the model's PaddleNLP folder below one of its model roots" in detail
