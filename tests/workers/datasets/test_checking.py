"""What a check says of rows: with numbers, counts, and the splits it writes."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from workers.contract.datasets import SPLITS, Reading, share_of_longer_texts
from workers.datasets import parsing, places, texts
from workers.datasets.checking import Outcome, Source, check
from workers.datasets.parsing import Unreadable

TABLE = Reading(format="table")


@pytest.fixture
def checked(tmp_path: Path) -> Any:
    def run(*bodies: str | bytes, reading: Reading = TABLE, splits: tuple[str, ...] = ("", "")) -> Outcome:
        for name in ("scratch", "target"):
            (tmp_path / name).mkdir(exist_ok=True)
        sources = []
        for i, body in enumerate(bodies):
            path = tmp_path / f"file{i}"
            path.write_bytes(body.encode() if isinstance(body, str) else body)
            sources.append(Source(path, path.name, splits[i]))
        return check(sources, reading, tmp_path / "scratch", tmp_path / "target", lambda *_: None)

    return run


def table(count: int, *, header: str = "text,label", more: str = "") -> str:
    return f"{header}\n" + "".join(f"text {i},{'ab'[i % 2]}{more}\n" for i in range(count))


def found(outcome: Outcome) -> dict[str, list[int]]:
    return {finding.text: [ref.row for ref in finding.rows] for finding in outcome.findings}


def lines(tmp_path: Path, split: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (tmp_path / "target" / f"{split}.jsonl").read_text().splitlines()]


def test_a_table_becomes_json_lines_with_all_columns(checked: Any, tmp_path: Path) -> None:
    outcome = checked(table(40, header="text,label,source", more=",x"))
    assert outcome.fit and outcome.splits == {"train": 36, "dev": 4}
    assert outcome.columns == ["label", "source", "text"]
    assert lines(tmp_path, "train")[0] == {"text": "text 0", "label": "a", "source": "x"}
    assert len(outcome.statistics["samples"]["train"]) == 10


def test_the_split_is_stratified_and_follows_the_seed(checked: Any) -> None:
    first = checked(table(200), reading=TABLE.model_copy(update={"dev_fraction": 0.2}))
    assert first.statistics["label_counts"] == {"train": {"a": 80, "b": 80}, "dev": {"a": 20, "b": 20}}
    again = checked(table(200), reading=TABLE.model_copy(update={"dev_fraction": 0.2}))
    other = checked(table(200), reading=TABLE.model_copy(update={"dev_fraction": 0.2, "seed": 1}))
    assert first.content_hash == again.content_hash != other.content_hash


def test_a_column_gives_the_split_and_test_rows_are_left_out(checked: Any) -> None:
    body = "text,label,split\na1,a,train\nb1,b,Train\na2,a,dev\nb2,b,验证集\nb3,b,test\n"
    outcome = checked(body, reading=TABLE.model_copy(update={"split_column": "split"}))
    assert outcome.splits == {"train": 2, "dev": 2}
    assert "Rows of the test split, which are not used: 1." in found(outcome)


def test_pairs_are_written_with_a_second_text_and_count_as_one_row(checked: Any, tmp_path: Path) -> None:
    body = "q1,q2,label\n" + "".join(f"question {i},answer,{'ab'[i % 2]}\n" for i in range(40))
    pairs = TABLE.model_copy(update={"text_column": "q1", "text_b_column": "q2"})
    outcome = checked(body, reading=pairs)
    assert outcome.fit and outcome.columns == ["label", "text", "text_b"]
    assert lines(tmp_path, "train")[0] == {"text": "question 0", "text_b": "answer", "label": "a"}
    assert outcome.statistics["samples"]["train"][0]["text"] == "question 0 ||| answer"
    # [CLS] 9 characters [SEP] 6 characters [SEP]
    assert outcome.statistics["token_lengths"]["percentiles"]["train"][0] == 9 + 6 + 3
    assert outcome.statistics["text_length"]["train"]["min"] == len("question 0answer")
    assert not any("occurs earlier" in finding.text for finding in outcome.findings)
    same = checked(body + "question 0,answer,b\nquestion 0,other,b\n", reading=pairs)
    assert "Rows whose text has another label elsewhere: 1." in found(same)
    assert found(checked(body + "question 0,,b\n", reading=pairs)) == {"Rows with an empty second text: 1.": [42]}


def test_the_columns_of_pairs_are_guessed_by_their_names() -> None:
    body = b"sentence1,sentence2,label\na,b,1\n"
    reading = parsing.look(io.BytesIO(body), "pairs.csv").reading
    assert (reading.text_column, reading.text_b_column, reading.label_column) == ("sentence1", "sentence2", "label")


def test_an_unknown_split_is_an_error_with_its_row(checked: Any) -> None:
    outcome = checked(
        "text,label,split\nx,a,train\ny,b,other\n", reading=TABLE.model_copy(update={"split_column": "split"})
    )
    assert found(outcome) == {"Rows whose split is none of train, dev, test: 1.": [3]} and not outcome.fit


def test_a_file_of_its_own_is_for_evaluation(checked: Any) -> None:
    outcome = checked(table(10), table(4).replace("text ", "other "), splits=("train", "dev"))
    assert outcome.splits == {"train": 10, "dev": 4}


def test_a_missing_column_says_what_there_is(checked: Any) -> None:
    outcome = checked("content,label\nx,a\n")
    (finding, rest) = outcome.findings
    assert finding.text == "Rows without the column “text”: 1." and finding.rows[0].shown == "content, label"
    assert rest.text == "No row can be used."


def test_labels_outside_of_the_set_are_counted_with_their_rows(checked: Any) -> None:
    outcome = checked(table(20) + "x,c\ny,d\n", reading=TABLE.model_copy(update={"labels": ["a", "b"]}))
    assert found(outcome) == {"Rows with a label outside of the label set: 2.": [22, 23]}
    assert [ref.shown for ref in outcome.findings[0].rows] == ["c", "d"]


def test_rows_with_errors_may_be_left_out(checked: Any) -> None:
    outcome = checked(table(40) + ",a\n", reading=TABLE.model_copy(update={"leave_out": True}))
    assert outcome.fit and outcome.splits == {"train": 36, "dev": 4}
    assert found(outcome) == {"Rows with an empty text: 1.": [42], "Rows with errors that were left out: 1.": []}


def test_duplicates_within_and_across_splits_and_contradictions(checked: Any) -> None:
    train = "text,label\nsame,a\nsame,b\nx,a\ny,b\n"
    dev = "text,label\nx,a\nz,b\n"
    outcome = checked(train, dev, splits=("train", "dev"))
    assert outcome.fit
    assert outcome.statistics["duplicates"] == {"train": 1, "dev": 0, "dev_in_train": 1, "contradicting": 1}
    assert found(outcome) == {
        "Rows of train whose text occurs earlier in it: 1.": [3],
        "Rows of dev whose text is among the training rows: 1. The evaluation looks better than it is.": [2],
        "Rows whose text has another label elsewhere: 1.": [3],
    }


def test_unbalanced_labels_are_told(checked: Any) -> None:
    body = "text,label\n" + "".join(f"t{i},a\n" for i in range(300)) + "".join(f"u{i},b\n" for i in range(10))
    (finding,) = checked(body).findings
    assert finding.text.startswith("Labels are unbalanced: “a” has 270 training rows, “b” has 9.")


def test_what_looks_like_a_missing_value_is_told(checked: Any) -> None:
    assert "Rows whose text or label looks like a missing value: 1." in found(checked(table(40) + "nan,a\n"))


def test_weights_that_are_not_finite_are_told_and_stay(checked: Any, tmp_path: Path) -> None:
    body = table(40, header="text,label,weight", more=",0.5") + "x,a,nan\n"
    reading = TABLE.model_copy(update={"weight_column": "weight", "dev_fraction": 0.05})
    outcome = checked(body, reading=reading)
    assert outcome.fit and found(outcome) == {"Rows whose weight is not finite: 1.": [42]}
    written = lines(tmp_path, "train") + lines(tmp_path, "dev")
    assert {row["weight"] for row in written} == {0.5, "nan"}
    assert outcome.statistics["weights"]["train"] == {"zero": 0}
    outcome = checked(body + "y,b,much\n", reading=reading)
    assert found(outcome)["Rows whose weight is no number of 0 or more: 1."] == [43]


def test_weights_in_quotes_become_numbers_that_training_reads(checked: Any, tmp_path: Path) -> None:
    rows = [
        {"text": f"text {i}", "label": "ab"[i % 2], "weight": given} for i, given in enumerate(["2", 3, " 0.5 "] * 20)
    ]
    rows.append({"text": "last", "label": "a", "weight": "Infinity"})
    reading = Reading(format="jsonl", weight_column="weight", dev_fraction=0.05)
    assert checked("".join(json.dumps(row) + "\n" for row in rows).encode(), reading=reading).fit
    written = [json.loads(line) for line in (tmp_path / "target/train.jsonl").read_text().splitlines()]
    assert {repr(row["weight"]) for row in written} == {"2.0", "3", "0.5", "'inf'"}


def test_rows_without_weight_are_told_and_must_not_be_all(checked: Any) -> None:
    reading = TABLE.model_copy(update={"weight_column": "weight"})
    some = checked(table(40, header="text,label,weight", more=",1") + "x,a,0\ny,b,0.0\n", reading=reading)
    assert some.fit
    assert found(some) == {"Rows with the weight 0, from which nothing is learnt: 2.": [42, 43]}
    none = checked(table(40, header="text,label,weight", more=",0"), reading=reading)
    assert found(none) == {"All training rows have the weight 0: nothing would be learnt from them.": []}
    assert not none.fit
    strange = checked(table(40, header="text,label,weight", more=",nan"), reading=reading)
    assert "No training row has a finite weight above 0: nothing would be learnt from them." in found(strange)


def test_a_column_of_a_thousand_values_is_no_label(checked: Any) -> None:
    outcome = checked("text,label\n" + "".join(f"t{i},{i}\n" for i in range(1100)))
    assert outcome.findings[0].text == "There are more than 1000 different labels: is “label” the right column?"


def test_too_few_rows_for_an_evaluation(checked: Any) -> None:
    assert "3 rows are too few" in checked(table(3)).findings[0].text


def test_lone_surrogates_are_an_error(checked: Any) -> None:
    body = '{"text": "\\ud800", "label": "a"}\n{"text": "x", "label": "b"}\n'
    assert not checked(body, reading=Reading()).fit


def test_lengths_are_counted_in_bins_that_hold_all_rows(checked: Any) -> None:
    body = (
        "text,label\n" + "".join(f"{'x' * (1 + i % 90)}{i},{'ab'[i % 2]}\n" for i in range(1000)) + f"{'y' * 5000},a\n"
    )
    statistics = checked(body).statistics
    histogram = statistics["length_histogram"]
    assert sum(sum(counts) for counts in histogram["counts"].values()) == 1001
    assert histogram["edges"][-1] == 5001 and len(histogram["edges"]) <= 27


def test_token_lengths_are_there_for_every_limit(checked: Any) -> None:
    body = "text,label\n" + "".join(f"{'好 ' * (1 + i % 100)},{'ab'[i // 100 % 2]}\n" for i in range(2000))
    lengths = checked(body).statistics["token_lengths"]
    # A token per character, none per space, and two marks.
    assert lengths["percentiles"]["train"][0] == 3 and lengths["percentiles"]["train"][100] == 102
    assert len(lengths["percentiles"]["dev"]) == 101
    assert 52 <= lengths["mean"]["train"] <= 53
    assert sum(map(sum, lengths["histogram"]["counts"].values())) == 2000
    statistics = {"token_lengths": lengths}
    assert share_of_longer_texts(statistics, 82) == pytest.approx(0.2, abs=0.02)
    assert share_of_longer_texts(statistics, 102) == 0
    assert share_of_longer_texts(statistics, 2) == 1
    assert share_of_longer_texts({}, 64) is None


# --- many rows at once -----------------------------------------------------------------------

PIECE = st.sampled_from(
    [
        "good",
        "好书 不错",
        "nan",
        " a ",
        "",
        "0",
        "1.5",
        "inf",
        '"',
        ",",
        "\t",
        "\n",
        "\r\n",
        "\r",
        "\0",
        "\u3000",
        "é",
        "\x85",
    ]
)
CELL = st.lists(PIECE, max_size=3).map("".join)
QUOTED = CELL.map(lambda cell: '"' + cell.replace('"', '""') + '"')
TABLES = st.lists(
    st.lists(st.sampled_from(["a", "b", "train", "dev", "2"]) | CELL | QUOTED, min_size=3, max_size=4).map(",".join)
    | st.just("text of a row,a,1,train"),
    max_size=30,
).map(lambda rows: "\n".join(["text,label,weight,split", *rows]).encode("utf-8"))
VALUE = CELL | st.sampled_from(["a", "b", 1, True, None, 2**70, 1.5, float("nan"), "\ud800", ["x"]])
OBJECTS = st.lists(
    st.dictionaries(st.sampled_from(["text", "label", "weight", "split", "more", "text_b"]), VALUE).map(json.dumps)
    | st.just('{"text": "text of a row", "label": "a", "weight": 1, "split": "train"}')
    | st.just(
        '{"text": "text of a row", "text_b": "another", "label": "a", "more": "x", "weight": 1, "split": "train"}'
    )
    | PIECE,
    max_size=30,
).map(lambda lines: "\n".join(lines).encode("utf-8"))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None)
@given(body=TABLES | OBJECTS, more=st.data())
def test_rows_that_are_taken_at_once_are_taken_as_they_are_one_by_one(
    checked: Any, tmp_path: Path, body: bytes, more: Any
) -> None:
    reading = Reading(
        format="jsonl" if body.startswith(b"{") else "table",
        text_column=more.draw(st.sampled_from(["text", "text", "more"])),
        text_b_column=more.draw(st.sampled_from(["", "", "more", "text_b"])),
        weight_column=more.draw(st.sampled_from(["", "weight"])),
        split_column=more.draw(st.sampled_from(["", "split"])),
        leave_out=True,
    )

    def outcome() -> Any:
        said = checked(body, reading=reading)
        kept = [(tmp_path / "target" / f"{split}.jsonl").read_bytes() for split in SPLITS] if said.content_hash else []
        for path in (tmp_path / "target").iterdir():
            path.unlink()
        return vars(said), kept

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parsing, "BLOCK_BYTES", more.draw(st.sampled_from([40, 300, 10_000])))
        patch.setattr(texts, "FEW_ROWS", 2)
        at_once = outcome()
        patch.setattr(parsing, "blocks", parsing.rows)
        assert outcome() == at_once


# --- places ----------------------------------------------------------------------------------


def test_only_what_lies_below_a_root_is_opened(tmp_path: Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    root.mkdir(), outside.mkdir()
    (root / "good.csv").write_text("x")
    (outside / "secret.csv").write_text("secret")
    (root / "link.csv").symlink_to(outside / "secret.csv")
    (root / "folder").symlink_to(outside)
    (root / "inner.csv").symlink_to(root / "good.csv")
    (root / "passwd").write_text("x")
    (root / "fine.csv").mkdir()
    with places.open_below(root / "good.csv", [root]) as file:
        assert file.read() == b"x"
    places.open_below(root / "inner.csv", [root]).close()
    for name in ("link.csv", "folder/secret.csv", "../outside/secret.csv", "passwd", "fine.csv", "none.csv"):
        with pytest.raises(Unreadable, match="no such file below the folders"):
            places.open_below(root / name, [root])
    with pytest.raises(Unreadable):
        places.open_below(root / "good.csv", [])
    with pytest.raises(Unreadable):
        places.open_below(Path("good.csv"), [root])


@pytest.mark.parametrize(
    ("body", "reading"),
    [
        ("内容,标签,text\n" + "".join(f"好 {i},{'ab'[i % 2]},x\n" for i in range(40)), TABLE),
        ("".join(f'{{"内容": "好 {i}", "标签": "{"ab"[i % 2]}"}}\n' for i in range(40)), Reading()),
    ],
)
def test_text_and_label_are_stored_under_the_names_that_settings_have_by_default(
    checked: Any, tmp_path: Path, body: str, reading: Reading
) -> None:
    outcome = checked(body, reading=reading.model_copy(update={"text_column": "内容", "label_column": "标签"}))
    assert outcome.columns == ["label", "text"]
    assert lines(tmp_path, "train")[0] == {"text": "好 0", "label": "a"}
