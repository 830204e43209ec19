"""What a check says of tokens with tags, and which spans tags make."""

from __future__ import annotations

import io
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.workers.datasets.test_checking import checked, found, lines  # noqa: F401
from workers.contract.datasets import Reading, TagReading
from workers.datasets import guess, parsing, tagging
from workers.datasets.parsing import BadRow, Row

TAGS = Reading(kind="tokens", dev_fraction=0.25)
CONLL = TAGS.model_copy(
    update={"format": "conll", "delimiter": " ", "tagging": TagReading(tokens_column="1", tags_column="2")}
)


def row(text: str, tags: str, **more: Any) -> str:
    return json.dumps({"tokens": list(text), "tags": tags.split(), **more}, ensure_ascii=False) + "\n"


GOOD = "".join(
    row(f"李{i}住在北京{i % 10}", "B-PER " + "I-PER " * len(str(i)) + "O O B-LOC I-LOC O") for i in range(40)
)


def reading(**how: Any) -> Reading:
    return TAGS.model_copy(update={"tagging": TagReading(**how)})


# --- spans -----------------------------------------------------------------------------------


def test_spans_are_those_of_seqeval_whatever_the_tags() -> None:
    from seqeval.metrics.sequence_labeling import get_entities

    draw = random.Random(1)
    names = ["O", *(f"{prefix}-{kind}" for prefix in "BIES" for kind in ("A", "B", "x-y"))]
    for known in (names, [name for name in names if name[0] in "OBI"]):
        for _ in range(500):
            tags = draw.choices(known, k=draw.randint(0, 12))
            ours = [(kind, first, last - 1) for first, last, kind in tagging.spans(tags)]
            assert ours == get_entities(tags), tags
            of = tagging.Tags(known)
            at_once = of.spans(np.array([known.index(tag) for tag in tags], np.int64))
            assert [(of.types[kind], first, last - 1) for first, last, kind in at_once.tolist()] == ours
    assert tagging.spans(["B-A", "L-A", "U-B", "O"]) == [(0, 2, "A"), (2, 3, "B")]
    assert tagging.spans(["NN", "VV"]) == []


def test_a_set_of_tags_says_its_scheme_and_has_an_order() -> None:
    assert tagging.scheme_of(["O", "B-PER", "I-PER"]) == "bio"
    assert tagging.scheme_of(["O", "B-PER", "S-PER"]) == tagging.scheme_of(["U-PER"]) == "bioes"
    assert tagging.scheme_of(["O"]) == tagging.scheme_of(["B-PER", "NN"]) == tagging.scheme_of(["B-"]) == "none"
    assert tagging.in_order({"I-B", "O", "B-A", "B-B"}) == ["O", "B-A", "B-B", "I-B"]


def test_texts_fall_into_words_marks_and_chinese_characters_or_into_characters() -> None:
    def pieces(text: str, into: str = "words") -> list[str]:
        return [text[first:last] for first, last in tagging.split(text, into)]

    assert pieces("Ann's 3 cats, 北京。") == ["Ann", "'", "s", "3", "cats", ",", "北", "京", "。"]
    assert pieces("a 1北", tagging.CHARACTERS) == ["a", "1", "北"]
    assert tagging.by_characters([list("在北京"), list("12"), ["Ann"]] * 3 + [list("很好" * 20)])
    assert not tagging.by_characters([["Ann", "lives", "I"]])


def test_segments_are_what_people_read() -> None:
    assert tagging.segments(list("李四在北京"), ["B-P", "I-P", "O", "B-L", "I-L"], 100) == [
        ("李四", "P"), ("在", ""), ("北京", "L"),
    ]  # fmt: skip
    assert tagging.segments(["Ann", "Lee", "ran"], ["B-P", "I-P", "O"], 9) == [
        ("Ann Lee", "P"), (" ", ""), ("ra…", ""),
    ]  # fmt: skip
    assert tagging.segments(["she", "ran"], ["PN", "VV"], 9)[0] == ("she", "PN")


# --- files -----------------------------------------------------------------------------------


def rows_of(body: str, encoding: str = "utf-8", **how: Any) -> list[Row | BadRow]:
    how = {"format": "conll", "delimiter": " ", "encoding": encoding, **how}
    return list(parsing.rows(io.BytesIO(body.encode(encoding)), Reading(**how)))


def test_conll_is_read_sentence_by_sentence_without_comments_and_document_marks() -> None:
    body = "-DOCSTART- -X- O\n\n# a comment of many words\n李 NR B-PER\n四 NR I-PER\n\n\n# 1 O\n#  SYM O\n1 CD O"
    first, second = rows_of(body)
    assert isinstance(first, Row) and isinstance(second, Row)
    assert (first.number, first.values) == (4, {"1": ["李", "四"], "2": ["NR", "NR"], "3": ["B-PER", "I-PER"]})
    assert (second.number, second.values["1"]) == (8, ["#", "#", "1"])
    (tabs,) = rows_of("# text = x y\na b\tO\nc\tB-X\r\n", delimiter="\t")
    assert isinstance(tabs, Row) and tabs.values == {"1": ["a b", "c"], "2": ["O", "B-X"]}
    (unified,) = rows_of("\t".join(["1-2", *"_" * 9]) + "\n" + "\t".join(["1", *"abcdefghi"]), delimiter="\t")
    assert isinstance(unified, Row) and unified.values["2"] == ["a"]
    (chinese,) = rows_of("李 B-PER\n四 I-PER\n", encoding="gb18030")
    assert isinstance(chinese, Row) and chinese.values["1"] == ["李", "四"]


def test_comments_with_a_name_are_no_tokens_in_whatever_number_of_columns() -> None:
    for sentence in rows_of("# weight = 2\na X Y O\n\n# newdoc = x\n# weight = 1e-1\nb X Y O\n\n# id = 7\n\nc X Y O\n"):
        assert isinstance(sentence, Row) and len(sentence.values["1"]) == 1
        assert sentence.values.get("weight") == {"a": "2", "b": "1e-1", "c": None}[sentence.values["1"][0]]
    (inside,) = rows_of("a O\n# weight = 2\n")
    assert isinstance(inside, BadRow), "within a sentence it is a token"


def test_what_is_wrong_in_conll_is_named_by_its_line() -> None:
    good, bad, last = rows_of("a O\nb O\n\nc O\nd\ne O\n\nf O\n")
    assert isinstance(good, Row) and isinstance(last, Row) and isinstance(bad, BadRow)
    assert (bad.number, bad.shown) == (5, "1: d")
    broken = list(parsing.rows(io.BytesIO(b"a O\n\xff O\n\nb O\n"), Reading(format="conll", delimiter=" ")))
    assert [type(one) for one in broken] == [BadRow, Row] and broken[0].number == 2


def test_files_of_tags_are_recognised() -> None:
    def guessed(body: str, name: str = "x.txt") -> tuple[Reading, TagReading | None]:
        look = parsing.look(io.BytesIO(body.encode()), name)
        return look.reading, guess.tags(look)

    how, tags = guessed("李 B-PER\n四 I-PER\n\n在 O\n")
    assert (how.format, how.delimiter, tags) == ("conll", " ", TagReading(tokens_column="1", tags_column="2"))
    how, tags = guessed("EU\tNNP\tS-ORG\nrejects\tVBZ\tO\n\n", "train.conll")
    assert how.delimiter == "\t" and tags and (tags.tags_column, tags.scheme) == ("3", "bioes")
    _how, tags = guessed("\t".join(["1", "Ann", "Ann", "PROPN", *"_" * 6]) + "\n\n", "x.conllu")
    assert tags and (tags.tokens_column, tags.tags_column, tags.scheme) == ("2", "4", "none")
    _how, tags = guessed('{"words": ["a"], "ner_tags": [0]}\n')
    assert tags and (tags.tokens_column, tags.tags_column) == ("words", "ner_tags")
    _how, tags = guessed('{"text": "abc", "entities": [{"start": 0, "end": 1, "label": "X"}]}\n')
    assert tags and (tags.layout, tags.tokens_column) == ("spans", "text")
    for other in (
        '{"text": "a", "label": "x", "authors": ["a", "b"], "words": ["c"]}\n',
        '{"text": "a", "label": "x", "entities": []}\n',
        "text,label\nx O,B-x\n",
        '{"text": "a", "label": "x"}\n',
        "good\tO\nbad\tB-x\n",
        "account,amount\na,1\n",
    ):
        assert guessed(other)[1] is None


# --- checks ----------------------------------------------------------------------------------


def test_rows_are_written_with_what_belongs_to_them_and_counted(checked: Any, tmp_path: Path) -> None:  # noqa: F811
    outcome = checked(GOOD.replace('"tags"', '"more": 1, "tags"'), reading=TAGS)
    assert outcome.fit and outcome.splits == {"train": 30, "dev": 10}
    assert outcome.labels == ["O", "B-LOC", "I-LOC", "B-PER", "I-PER"]
    assert outcome.columns == ["more", "tags", "tokens"]
    rows = lines(tmp_path, "train")
    assert set(rows[0]) == {"tokens", "tags", "more"} and len(rows[0]["tokens"]) == len(rows[0]["tags"])
    statistics = outcome.statistics
    assert statistics["label_counts"] == {"train": {"PER": 30, "LOC": 30}, "dev": {"PER": 10, "LOC": 10}}
    assert statistics["tag_counts"]["dev"]["B-LOC"] == 10
    assert statistics["tokens"]["train"] == sum(len(row["tokens"]) for row in rows)
    assert statistics["token_lengths"]["percentiles"]["train"][100] == max(len(row["tokens"]) for row in rows) + 2
    assert statistics["samples"]["train"][0]["segments"][0][1] == "PER"
    assert checked(GOOD, reading=TAGS).content_hash == checked(GOOD, reading=TAGS).content_hash


def test_rows_of_tags_may_have_weights(checked: Any, tmp_path: Path) -> None:  # noqa: F811
    body = "".join(row(f"李{i}", "B-PER " + "I-PER " * len(str(i)), sure=i % 3) for i in range(40))
    body += row("他在", "O O", sure=-1) + row("她在", "O O")
    weighted = TAGS.model_copy(update={"weight_column": "sure", "leave_out": True})
    outcome = checked(body, reading=weighted)
    assert outcome.fit and "sure" in outcome.columns
    said = found(outcome)
    assert said["Rows whose weight is no number of 0 or more: 1."] == [41]
    assert said["Rows without the column “sure”: 1."] == [42]
    zeros = outcome.statistics["weights"]
    assert zeros["train"]["zero"] + zeros["dev"]["zero"] == 14
    assert {row["sure"] for row in lines(tmp_path, "train")} == {0.0, 1.0, 2.0}


def test_rows_that_cannot_be_learnt_from_are_named(checked: Any) -> None:  # noqa: F811
    bad = (
        row("ab", "O")
        + json.dumps({"tokens": ["a", ""], "tags": ["O", "O"]}) + "\n"
        + row("", "")
        + row("ab", "O X-PER")
        + row("a", "B-")
        + json.dumps({"tokens": "ab", "tags": [1, 2]}) + "\n"
        + json.dumps({"tokens": ["a"]}) + "\n"
        + row("a", "")[:-3] + '""]}\n'
    )  # fmt: skip
    messages = {
        "Rows with another number of tags than of tokens: 1.": [41],
        "Rows with an empty token: 1.": [42],
        "Rows without tokens: 1.": [43],
        "Rows with a tag that is none of the scheme BIO: 2.": [44, 45],
        "Rows whose tags are no list of texts: 1. If they are numbers, give the label set, in its order.": [46],
        "Rows without the column “tags”: 1.": [47],
        "Rows with a token without a tag: 1.": [48],
    }
    said = found(checked(GOOD + bad, reading=TAGS))
    assert {text: rows for text, rows in said.items() if text in messages} == messages
    left = checked(GOOD + bad, reading=TAGS.model_copy(update={"leave_out": True}))
    assert left.fit and "Rows with errors that were left out: 8." in found(left)


def test_what_is_odd_is_a_warning(checked: Any) -> None:  # noqa: F811
    odd = (
        row("新x", "O I-PER")
        + row("老xy", "O B-PER I-LOC")
        + row("长" * 600, "O " * 600)
        + row("空 格", "O O O")
        + row("李1住在北京1", "O O O O B-LOC I-LOC O")
    )
    outcome = checked(GOOD + odd, reading=TAGS)
    said = found(outcome)
    assert outcome.fit
    assert said["Rows with an I- that follows no B- of its type: 1. It counts as the beginning of an entity."] == [41]
    assert said["Rows in which the type changes inside an entity: 1. It counts as two entities."] == [42]
    assert said["Rows with more than 510 tokens, of which most models read the first only: 1."] == [43]
    assert said["Rows with a blank as a token, which models do not see: 1."] == [44]
    assert said["Rows whose tokens are tagged otherwise elsewhere: 1."] in ([2], [45])
    assert said["Rows in which every tag is O: 2."] == [43, 44]
    assert {finding.level for finding in outcome.findings} == {"warning", "note"}


def test_splits_that_do_not_fit_each_other_are_told_of(checked: Any) -> None:  # noqa: F811
    split = TAGS.model_copy(update={"split_column": "split"})
    body = (
        row("李四", "B-PER I-PER", split="train")
        + row("北京", "B-LOC I-LOC", split="train")
        + row("李四", "B-PER I-PER", split="dev")
        + row("公司", "B-ORG I-ORG", split="dev")
        + row("一", "O", split="test")
    )
    said = found(checked(body, reading=split))
    assert "Tags of dev rows that no training row has, so that no model can learn them: B-ORG, I-ORG." in said
    assert "Labels without rows for evaluation: LOC." in said
    assert any("whose text is among the training rows: 1." in text for text in said)
    assert said["Rows of the test split, which are not used: 1."] == []
    outside = row("a", "O", split="train") + row("b", "O", split="dev")
    assert "There must be two tags at least; the training rows have: O." in found(checked(outside, reading=split))
    assert any(
        text.startswith("No dev row has an entity")
        for text in found(checked(row("北", "B-LOC", split="train") + outside, reading=split))
    )


def test_conll_files_are_checked_and_written_as_any_others(checked: Any, tmp_path: Path) -> None:  # noqa: F811
    body = "".join(f"李 B-PER\n{i} O\n\n" for i in range(20))
    outcome = checked(body, reading=CONLL)
    assert outcome.fit and outcome.columns == ["tags", "tokens"] and outcome.splits == {"train": 15, "dev": 5}
    assert set(lines(tmp_path, "dev")[0]) == {"tokens", "tags"}
    said = found(checked(body + "x B-PER\ny\n\n", reading=CONLL))
    assert said["Sentences with a line of another number of columns than 2: 1."] == [62]
    said = found(checked(body + "x O\ny X\n\n", reading=CONLL))
    assert said["Rows with a tag that is none of the scheme BIO: 1."] == [61]


def test_sentences_of_conll_have_their_weights_in_comments(checked: Any, tmp_path: Path) -> None:  # noqa: F811
    body = "".join(f"# weight = {i % 3}.5\n李 B-PER\n{i} O\n\n" for i in range(20))
    weighted = CONLL.model_copy(update={"weight_column": "weight"})
    outcome = checked(body, reading=weighted)
    assert outcome.fit and outcome.columns == ["tags", "tokens", "weight"]
    assert {row["weight"] for row in lines(tmp_path, "train")} == {0.5, 1.5, 2.5}
    assert checked(body, reading=CONLL).columns == ["tags", "tokens"]
    said = found(checked(f"{body}x B-PER\n\n# weight = much\ny O\n\n", reading=weighted))
    assert said["Rows without the column “weight”: 1."] == [81]
    assert said["Rows whose weight is no number of 0 or more: 1."] == [84]


def test_entities_by_their_places_become_tags_and_wrong_places_are_named(checked: Any, tmp_path: Path) -> None:  # noqa: F811
    def spans(text: str, *entities: Any) -> str:
        return json.dumps({"text": text, "entities": entities}) + "\n"

    how = reading(layout="spans", tokens_column="text", tags_column="entities", scheme="bioes")
    good = "".join(
        spans(f"Ann Lee{i} lives", {"start": 0, "end": 7, "label": "PER"}, [0, 0, "x"][:0] or [9 + (i > 9), 14, "V"])
        for i in range(20)
    )
    outcome = checked(good, reading=how)
    assert outcome.fit, found(outcome)
    first = next(row for row in lines(tmp_path, "train") if row["tokens"][2] == "0")
    assert first == {"tokens": ["Ann", "Lee", "0", "lives"], "tags": ["B-PER", "E-PER", "O", "S-V"]}
    bad = (
        spans("Ann", [0, 9, "X"]) + spans("Ann", [0, 2, "X"], [1, 3, "X"]) + spans("Ann", 1) + spans("Ann", [2, 2, "X"])
    )
    said = found(checked(good + bad, reading=how))
    assert said["Rows with an entity that begins or ends outside of the text, or is empty: 2."] == [21, 24]
    assert said["Rows with entities that overlap: 1."] == [22]
    assert any("no list of objects" in text and rows == [23] for text, rows in said.items())


def test_numbers_of_tags_are_those_of_the_label_set_and_plain_tags_need_no_scheme(checked: Any, tmp_path: Path) -> None:  # noqa: F811
    numbered = TAGS.model_copy(update={"labels": ["O", "B-X", "I-X"]})
    body = "".join(json.dumps({"tokens": ["a", str(i)], "tags": [1, 2]}) + "\n" for i in range(20))
    outcome = checked(body, reading=numbered)
    assert outcome.fit and outcome.labels == ["O", "B-X", "I-X"]
    assert lines(tmp_path, "dev")[0]["tags"] == ["B-X", "I-X"]
    plain = "".join(row(f"a{i}", "NN " + "CD " * len(str(i))) for i in range(20))
    outcome = checked(plain, reading=reading(scheme="none"))
    assert outcome.fit and outcome.labels == ["CD", "NN"]
    assert outcome.statistics["baselines"]["tags/majority"] == pytest.approx(0.6, abs=0.1)


def test_tags_of_a_collection_of_paddlenlp_get_their_names() -> None:
    from workers.datasets.from_paddlenlp import rows as of_paddlenlp

    class Examples(list):  # type: ignore[type-arg]
        label_list = ("B-PER", "O")

    given = Examples([{"tokens": ["李", "在"], "labels": [0, 1], "id": 3}])
    assert list(of_paddlenlp(given)) == [{"id": 3, "tokens": ["李", "在"], "tags": ["B-PER", "O"]}]
