"""The recipe for tokens with tags: real ranks, from rows to an exported program."""

from __future__ import annotations

import json
import shutil
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.workers.recipes.examples import EXAMPLES, write_tokens
from tests.workers.trainer.conftest import Attempt, Ranks, make_attempt
from tests.workers.trainer.test_loop import InProcess
from workers.datasets.tagging import Tags
from workers.recipes.token_classification import metrics
from workers.recipes.token_classification.baseline import baselines
from workers.trainer.modes import evaluating

NAMES = list(EXAMPLES["token_classification"].labels)
RECIPE: dict[str, Any] = {"recipe": "token_classification"}


@pytest.fixture
def tagged(tmp_path: Path) -> Path:
    write_tokens(tmp_path / "tagged")
    return tmp_path / "tagged"


# --- metrics ---------------------------------------------------------------------------------


def test_metrics_are_those_of_seqeval_however_the_rows_are_divided() -> None:
    from seqeval.metrics import accuracy_score, f1_score, precision_score, recall_score

    draw = np.random.default_rng(4)
    tags = Tags([*NAMES, "B-RARE", "I-RARE"])
    actual = [draw.integers(0, 5, draw.integers(1, 9)) for _ in range(60)]
    said = [np.where(draw.random(len(row)) < 0.7, row, draw.integers(0, 7, len(row))) for row in actual]
    whole = metrics.nothing(tags)
    for part in (slice(0, 20), slice(20, 21), slice(21, 60)):
        whole = whole + metrics.tally(tags, actual[part], said[part], 1.5, 2)
    found = metrics.metrics(whole, tags)
    theirs = [[[tags.names[tag] for tag in row] for row in rows] for rows in (actual, said)]
    assert found["f1"] == pytest.approx(f1_score(*theirs))
    assert found["precision"] == pytest.approx(precision_score(*theirs))
    assert found["recall"] == pytest.approx(recall_score(*theirs))
    assert found["accuracy"] == pytest.approx(accuracy_score(*theirs))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert found["macro_f1"] == pytest.approx(f1_score(*theirs, average="macro"))
        per_type = f1_score(*theirs, average=None)
    assert [found["entities"][kind]["f1"] for kind in ("BAD", "GOOD", "RARE")] == pytest.approx(per_type.tolist())
    assert found["labels"] == ["O", "BAD", "GOOD", "RARE"] and found["loss"] == pytest.approx(4.5 / 6)
    assert np.sum(found["confusion"]) == sum(map(len, actual))
    assert found["entities"]["RARE"]["recall"] is None and found["entities"]["RARE"]["support"] == 0


def test_what_the_model_did_not_read_counts_as_outside_and_nothing_makes_a_nan() -> None:
    tags = Tags(NAMES)
    row, said = np.array([1, 2, 0, 3]), np.array([1, 2, tags.border, tags.border])
    found = metrics.metrics(metrics.tally(tags, [row], [said], 0.0, 2), tags)
    assert (found["precision"], found["recall"], found["accuracy"]) == (1.0, 0.5, 0.75)
    nothing = metrics.metrics(metrics.nothing(tags), tags)
    assert nothing["f1"] == nothing["loss"] == 0.0 and nothing["entities"] == {}
    plain = Tags(["CD", "NN"])
    found = metrics.metrics(
        metrics.tally(plain, [np.array([0, 1, 1])], [np.array([0, 1, plain.border])], 0.0, 2), plain
    )
    assert "f1" not in found and found["accuracy"] == pytest.approx(2 / 3)
    assert found["confusion"] == [[1, 0], [0, 1]] and found["labels"] == ["CD", "NN"]


def test_the_dictionary_to_beat_knows_each_tokens_commonest_tag(tagged: Path) -> None:
    known = baselines(tagged)["entities/most_frequent_tag"]
    assert 0.3 < known < 1  # all characters are known, borders between spans are not


def test_the_first_batch_is_shown_with_the_tags_that_are_learnt(tagged: Path) -> None:
    from workers.recipes.token_classification.first_batch import first_batch

    shown = first_batch(tagged)
    assert (shown["batch"], shown["cut_share"]) == (32, 0.0)
    row = shown["rows"][0]
    assert row["pieces"][0] == ["[CLS]", ""] and row["pieces"][-1] == ["[SEP]", ""]
    written = json.loads((tagged / "train.jsonl").read_text().splitlines()[row["row"] - 1])
    assert row["pieces"][1:-1] == [list(pair) for pair in zip(written["tokens"], written["tags"], strict=True)]
    assert shown["labelled"] >= row["labelled"] == row["count"] - 2


def test_the_sample_is_the_same_each_time_and_joins_family_and_given_names() -> None:
    from workers.datasets.tagging import spans
    from workers.recipes.token_classification import sample

    words = sample._words("总书记/n 江/nr 泽民/nr 、/w 李/nr 鹏/nr 邓小平/nr 在/p 北京/ns")
    assert [word for word, kind in words if kind == "nr"] == ["江泽民", "李鹏", "邓小平"]
    few = list(sample.sentences(200))
    assert few == list(sample.sentences(200)) and len({str(one) for one in few}) == 200
    found = {
        ("".join(character for character, _tag in one[first:last]), kind)
        for one in few
        for first, last, kind in spans([tag for _character, tag in one])
    }
    assert ("江泽民", "PER") in found and ("中国", "LOC") in found and ("新华社", "ORG") in found


# --- alignment -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    from paddlenlp.transformers import ErnieTokenizer

    path = tmp_path_factory.mktemp("vocabulary") / "vocabulary.txt"
    tokens = ["[PAD]", "[CLS]", "[SEP]", "[MASK]", "[UNK]", "好", "坏", "a", "##n", "##e", "1", "##9"]
    path.write_text("\n".join(tokens) + "\n")
    return ErnieTokenizer(str(path))


def test_the_first_piece_of_a_token_carries_its_tag_and_all_else_is_ignored(tokenizer: Any) -> None:
    from workers.recipes.token_classification.data import encoder

    row = encoder(tokenizer, 16)(["好", "Anne", " ", "龙", "19"])
    assert tokenizer.convert_ids_to_tokens(row.ids.tolist()) == [
        "[CLS]", "好", "a", "##n", "##n", "##e", "[UNK]", "1", "##9", "[SEP]",
    ]  # fmt: skip
    labels = row.labels(np.array([10, 11, 12, 13, 14]), -100)
    assert labels.tolist() == [-100, 10, 11, -100, -100, -100, 13, 14, -100, -100]


def test_a_row_that_is_cut_keeps_the_tags_of_what_is_read(tokenizer: Any) -> None:
    from workers.recipes.token_classification.data import encoder

    row = encoder(tokenizer, 8)(["好", "Anne", "Anne", "坏"])
    assert len(row.ids) == 8 and row.ids[-1] == tokenizer.sep_token_id
    assert (row.tokens.tolist(), row.at.tolist()) == ([0, 1, 2], [1, 2, 6])
    assert encoder(tokenizer, 8)([" "]).at.tolist() == []


def test_the_loss_is_the_smoothed_one_of_tokens_with_a_tag_and_plain_in_evaluations(
    tagged: Path, tmp_path: Path
) -> None:
    smooth: dict[str, Any] = {"regularisation": {"dropout": 0.0, "label_smoothing": 0.4}}
    run = InProcess(make_attempt(tmp_path / "run", tagged, **RECIPE, **smooth), **RECIPE, **smooth).run
    batch = run.task.batch("train", np.arange(9))
    labels = batch.arrays["labels"]
    valid = labels >= 0
    assert 0 < valid.mean() < 1 and len(set(valid.sum(axis=1))) > 1

    def expected(logits: Any, smoothing: float) -> Any:
        z = logits.numpy().astype(np.float64)
        logs = z - np.log(np.exp(z).sum(-1, keepdims=True))
        target = np.eye(z.shape[-1])[np.where(valid, labels, 0)] * (1 - smoothing) + smoothing / z.shape[-1]
        of_tokens = -(target * logs).sum(-1) * valid
        return of_tokens.sum(axis=1) / valid.sum(axis=1)

    logits, losses = run.task.losses(run.model, batch)
    assert np.allclose(losses.numpy(), expected(logits, 0.4), atol=1e-5)
    with evaluating(run.model):
        logits, losses = run.task.losses(run.model, batch)
    assert np.allclose(losses.numpy(), expected(logits, 0.0), atol=1e-5)


# --- runs ------------------------------------------------------------------------------------


def test_one_rank_with_twice_the_batch_does_the_same_as_two_ranks_and_as_two_micro_batches(
    train: Any, tagged: Path
) -> None:
    # Rows of very unequal length, some with nothing that carries a tag.
    with (tagged / "train.jsonl").open("a") as file:
        file.writelines(json.dumps({"tokens": [" "], "tags": ["O"]}) + "\n" for _ in range(20))
    smooth = {"dropout": 0.0, "label_smoothing": 0.1}
    options: dict[str, Any] = {"export": False, **RECIPE, "data": tagged, "regularisation": smooth}
    one = train("one", world=1, training={"batch_size": 12, "max_steps": 7}, **options)
    two = train("two", world=2, training={"batch_size": 6, "max_steps": 7}, **options)
    parts = train("parts", world=1, training={"batch_size": 4, "accumulation": 3, "max_steps": 7}, **options)
    for a, b, c in zip(one.steps(), two.steps(), parts.steps(), strict=True):
        assert a["loss_all"] == pytest.approx(b["loss_all"], rel=1e-5) == pytest.approx(c["loss_all"], rel=1e-5)
        assert a["grad_norm"] == pytest.approx(b["grad_norm"], rel=1e-4) == pytest.approx(c["grad_norm"], rel=1e-4)
        assert np.isfinite(a["loss_all"]) and a["skipped"] is None
    # Each rank says how many valid labels its part of the batch had.
    counted = [[record["extras"]["counted"] for record in two.steps(rank)] for rank in (0, 1)]
    assert [sum(both) for both in zip(*counted, strict=True)] == [record["extras"]["counted"] for record in one.steps()]
    f1 = [attempt.events("evaluation")[-1]["metrics"]["f1"] for attempt in (one, two, parts)]
    assert f1 == pytest.approx([f1[0]] * 3, abs=1e-6)


def test_a_row_counts_for_its_tokens_times_its_weight(tagged: Path, tmp_path: Path) -> None:
    weights = {}
    for split in ("train", "dev"):
        path = tagged / f"{split}.jsonl"
        rows = [json.loads(line) | {"weight": i % 3 / 2} for i, line in enumerate(path.read_text().splitlines())]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        weights[split] = np.array([row["weight"] for row in rows])
    tasks = [
        InProcess(make_attempt(tmp_path / f"run{i}", tagged, **RECIPE, **changes), **RECIPE, **changes).run.task
        for i, changes in enumerate(({}, {"data": {"weight_column": "weight"}}))
    ]
    assert np.array_equal(tasks[1].weights, tasks[0].weights * weights["train"])
    assert len(set(tasks[0].weights)) > 1


def test_tags_are_learnt_and_the_exported_program_says_them_as_the_evaluation_did(
    train: Any, zygote: Any, tagged: Path, tmp_path: Path
) -> None:
    from workers.recipes.token_classification import predict

    options = {"training": {"batch_size": 16, "epochs": 30, "max_steps": None}, "optimizer": {"learning_rate": 1e-2}}
    attempt: Attempt = train("tags", data=tagged, **RECIPE, **options)
    assert attempt.outcome()["end_reason"] == "completed", attempt.log()
    (plan,) = attempt.events("plan")
    assert (plan["best_by"], plan["lower_is_better"]) == ("f1", False)
    best = [line for line in attempt.events("evaluation") if line["best"]][-1]["metrics"]
    assert best["f1"] > 0.5 and best["train"]["f1"] > 0.5 and set(best["entities"]) == {"GOOD", "BAD"}

    inference = attempt.folder.artifacts / "inference"
    rows = [json.loads(line) for line in (tagged / "dev.jsonl").read_text().splitlines()]
    ask, tags = predict.load(inference), Tags(NAMES)
    actual, said, cut = [], [], 0
    for row in rows:
        (answer,) = ask([{"text": "".join(row["tokens"])}])
        found = np.full(len(row["tokens"]), NAMES.index("O"))
        for span in answer.spans or ():
            found[span.start : span.end] = NAMES.index(f"I-{span.label}")
            found[span.start] = NAMES.index(f"B-{span.label}")
        said.append(found)
        actual.append(np.array([NAMES.index(tag) for tag in row["tags"]]))
        cut += answer.cut
    again = metrics.metrics(metrics.tally(tags, actual, said, 0.0, 0), tags)
    assert again["f1"] == pytest.approx(best["f1"], abs=1e-9)
    assert cut == sum(len(row["tokens"]) > 10 for row in rows) > 0

    (worst,) = attempt.events("worst")
    assert {"tagged", "said", "wrong", "loss"} <= set(worst["rows"][0])
    assert "".join(text for text, _kind in worst["rows"][0]["tagged"]) in {"".join(row["tokens"]) for row in rows}
    for name in ("inference", "model"):
        _run_readme(attempt.folder.artifacts / name)

    # Another job goes on from it, by PaddleNLP's Auto class, and begins where it was.
    next_one = make_attempt(
        tmp_path / "again", tagged, **RECIPE, model={"source": "job", "job": 1},
        optimizer={"learning_rate": 1e-30}, training={"batch_size": 4, "max_steps": 1},
    )  # fmt: skip
    shutil.copytree(attempt.folder.artifacts / "model", next_one.folder.model)
    ended = Ranks(zygote, next_one, {}).wait()
    assert ended.outcome()["end_reason"] == "completed", ended.log()
    assert ended.events("evaluation")[-1]["metrics"]["f1"] == pytest.approx(best["f1"], abs=1e-9)


def _run_readme(folder: Path) -> None:
    lines = [line[4:] for line in (folder / "README.md").read_text().splitlines() if line.startswith("    ")]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exec("\n".join(lines).replace("path/of/this/folder", str(folder)), {})  # noqa: S102


@pytest.mark.parametrize(
    "name", [pytest.param("Bert", marks=pytest.mark.slow), pytest.param("Roberta", marks=pytest.mark.slow), "Electra"]
)
def test_any_backbone_from_a_folder_is_trained_and_tried(train: Any, tagged: Path, tmp_path: Path, name: str) -> None:
    from tests.workers.recipes.test_pairs import save
    from workers.recipes.token_classification import predict

    folder = save(tmp_path / "models" / "mine", name)
    attempt: Attempt = train(
        "backbone", data=tagged, **RECIPE, model={"source": "folder", "folder": "mine"},
        regularisation={"dropout": 0.1, "drop_path": 0.1, "label_smoothing": 0.1},
        environment={"MODEL_ROOTS": str(folder.parent)},
    )  # fmt: skip
    assert attempt.outcome()["end_reason"] == "completed", attempt.log()
    exported = json.loads((attempt.folder.artifacts / "model" / "config.json").read_text())
    assert exported["architectures"] == [f"{name}ForTokenClassification"]
    (answer,) = predict.load(attempt.folder.artifacts / "inference")([{"text": "好 坏x"}])
    assert answer.spans is not None and answer.tokens[0] == "[CLS]"
    assert all("好 坏x"[span.start : span.end].strip() for span in answer.spans)
