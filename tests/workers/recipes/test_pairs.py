"""Pairs of texts, and models other than ERNIE: real ranks, from rows to an exported program."""

from __future__ import annotations

import json
import random
import shutil
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import paddlenlp.transformers as paddlenlp
import pytest

from tests.workers.recipes.examples import OTHER
from tests.workers.trainer.conftest import Attempt, Start
from tests.workers.trainer.test_resume import digest, facts
from workers.contract.trials import Failed
from workers.recipes.text_classification import export, model, predict
from workers.recipes.text_classification.settings import TextClassificationSettings
from workers.trainer.task import TrainingFailed


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    """The label says whether the second text is the first turned round."""
    folder = tmp_path / "pairs"
    folder.mkdir()
    draw = random.Random(7)
    for split, count in (("train", 64), ("dev", 21)):
        with (folder / f"{split}.jsonl").open("w", encoding="utf-8") as file:
            for _ in range(count):
                words = draw.choices(OTHER, k=draw.randint(2, 9))
                same = draw.random() < 0.5
                second = "".join(reversed(words)) if same else "".join(draw.choices(OTHER, k=draw.randint(2, 9)))
                row = {"text": "".join(words), "text_b": second, "label": "pos" if same else "neg"}
                file.write(json.dumps(row, ensure_ascii=False) + "\n")
    return folder


def small(name: str, **changes: Any) -> Any:
    sizes = {"vocab_size": 80, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    more = {"embedding_size": 16} if name == "Electra" else {}
    limits = {"intermediate_size": 32, "max_position_embeddings": 40, "type_vocab_size": 2}
    return getattr(paddlenlp, f"{name}Config")(**sizes, **limits, **more, **changes)


def save(folder: Path, name: str, suffix: str = "Model") -> Path:
    """A tiny PaddleNLP folder with random weights."""
    paddle.seed(3)
    built = getattr(paddlenlp, f"{name}{suffix}")(small(name))
    folder.mkdir(parents=True)
    characters = list(dict.fromkeys(OTHER))[:70]
    vocabulary = folder / "vocab.txt"
    vocabulary.write_text("\n".join(["[PAD]", "[CLS]", "[SEP]", "[MASK]", "[UNK]", *characters]) + "\n")
    of = "RobertaChineseTokenizer" if name == "Roberta" else f"{name}Tokenizer"
    getattr(paddlenlp, of)(str(vocabulary)).save_pretrained(str(folder))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        built.save_pretrained(str(folder), safe_serialization=True)
    return folder


@pytest.mark.parametrize("name", ["Ernie", "Bert", "Roberta", "Electra"])
def test_a_folder_says_itself_what_kind_of_model_it_is(tmp_path: Path, name: str) -> None:
    folder = save(tmp_path / "models" / "mine", name)
    assert (folder / "model.safetensors").exists()
    tokenizer = model.tokenizer_of(str(folder))
    settings = TextClassificationSettings.model_validate(
        {"data": {"max_length": 16}, "regularisation": {"dropout": 0.2, "drop_path": 0.1}}
    )
    built = model.build(settings, str(folder), tokenizer.vocab_size, "SequenceClassification", {"num_labels": 3})
    assert type(built).__name__ == f"{name}ForSequenceClassification"
    stored = paddlenlp.AutoModel.from_pretrained(str(folder)).state_dict()
    backbone = getattr(built, built.base_model_prefix).state_dict()
    # RoBERTa's heads do without its pooler.
    assert {key for key in stored if not key.startswith("pooler")} <= backbone.keys()
    assert all(np.array_equal(value.numpy(), stored[key].numpy()) for key, value in backbone.items())
    assert built.config.hidden_dropout_prob == 0.2
    built.eval()
    # What stands after the end of a text is never looked at.
    ids = paddle.to_tensor([[1, 7, 8, 2]])
    longer = paddle.to_tensor([[1, 7, 8, 2, 0, 0, 0]])
    with paddle.no_grad():
        assert built(ids).shape == [1, 3]
        assert np.allclose(built(ids).numpy(), built(longer).numpy(), atol=1e-5)
    too_long = TextClassificationSettings.model_validate({"data": {"max_length": 40 if name == "Roberta" else 41}})
    with pytest.raises(TrainingFailed, match=f"takes {39 if name == 'Roberta' else 40} at most"):
        model.build(too_long, str(folder), tokenizer.vocab_size, "SequenceClassification", {})


def test_pairs_are_trained_on_bert_from_a_folder_and_the_exported_program_is_tried(
    train: Any, pairs: Path, tmp_path: Path
) -> None:
    folder = save(tmp_path / "models" / "bert-tiny", "Bert", "ForMaskedLM")
    attempt: Attempt = train(
        "bert",
        data=pairs,
        model={"source": "folder", "folder": "bert-tiny"},
        environment={"MODEL_ROOTS": str(folder.parent)},
    )
    assert attempt.outcome()["end_reason"] == "completed", attempt.log()
    exported = attempt.folder.artifacts / "model"
    assert json.loads((exported / "config.json").read_text())["architectures"] == ["BertForSequenceClassification"]
    inference = attempt.folder.artifacts / "inference"
    about = json.loads((inference / "inference.json").read_text())
    assert (
        about["pairs"] and about["inputs"] == ["input_ids", "token_type_ids"] and about["tokenizer"] == "BertTokenizer"
    )

    rows = [json.loads(line) for line in (pairs / "dev.jsonl").read_text().splitlines()]
    lines = [f"{row['text']} ||| {row['text_b']}" for row in rows]
    tried = [
        one
        for start in range(0, 21, 7)
        for one in predict.load(inference)([{"text": x} for x in lines[start : start + 7]])
    ]
    best = [line for line in attempt.events("evaluation") if line["best"]][-1]["metrics"]
    right = [one.scores[0].label == row["label"] for one, row in zip(tried, rows, strict=True)]
    assert sum(right) / 21 == pytest.approx(best["accuracy"])
    assert any(one.cut for one in tried) and not all(one.cut for one in tried)
    assert tried[0].tokens.count("[SEP]") == 2
    with pytest.raises(Failed, match="Row 1 is no pair"):
        predict.load(inference)([{"text": "只有一个"}])
    _run_readme(inference)
    _run_readme(exported)
    (worst,) = attempt.events("worst")
    assert " ||| " in worst["rows"][0]["text"]
    # Which text is which matters to the program.
    ids = np.array([[1, 7, 2, 8, 2]])
    kinds = [np.zeros_like(ids), np.array([[0, 0, 0, 1, 1]])]
    assert not np.array_equal(*(export.run(inference, ids, kind) for kind in kinds))


def _run_readme(folder: Path) -> dict[str, Any]:
    lines = [line[4:] for line in (folder / "README.md").read_text().splitlines() if line.startswith("    ")]
    names: dict[str, Any] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exec("\n".join(lines).replace("path/of/this/folder", str(folder)), names)  # noqa: S102
    return names


@pytest.mark.slow
def test_pairs_killed_and_resumed_end_bit_for_bit_as_the_undisturbed_run(begin: Start, train: Any, pairs: Path) -> None:
    """BERT from random weights, fp16 emulated, dropout, two ranks."""
    options: dict[str, Any] = {
        "data": pairs, "world": 2,
        "model": {"architecture": "bert", "hidden_size": 16, "layers": 1, "heads": 2, "vocabulary_size": 100},
        "training": {"batch_size": 3, "max_steps": 36}, "precision": {"mode": "fp16"},
        "loss_scaling": {"init_scale": 2.0**20, "growth_interval": 7},
        "checkpoints": {"every_steps": 12, "evaluate_every_steps": 10},
    }  # fmt: skip
    undisturbed = train("undisturbed", **options)
    killed = begin("killed", **options).until_step(20, timeout_s=90).kill()
    checkpoint = killed.checkpoints()[-1]
    resumed = train("resumed", start_from=checkpoint, **options)
    step = json.loads((checkpoint / "state.json").read_text())["step"]
    assert step < 36
    for rank in (0, 1):
        assert facts(resumed, rank) == facts(undisturbed, rank)[step:]
    assert digest(resumed) == digest(undisturbed)


def test_one_split_alone_cannot_have_pairs(train: Any, pairs: Path, dataset: Path) -> None:
    (pairs / "dev.jsonl").unlink()
    shutil.copy(dataset / "dev.jsonl", pairs / "dev.jsonl")
    outcome = train("mixed", data=pairs).outcome()
    assert outcome["end_reason"] == "bad_data" and "both must have them" in outcome["detail"]
