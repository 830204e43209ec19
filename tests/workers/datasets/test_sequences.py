"""What a check says of numeric sequences, in the three forms that they come in."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from tests.workers.datasets.test_checking import checked, found  # noqa: F401 (checked is a fixture)
from workers.contract.datasets import Reading, SequenceReading
from workers.datasets import guess
from workers.datasets.checking import Outcome
from workers.datasets.parsing import Unreadable, look

STEPS = SequenceReading(id_column="id", features=["x"], target="number", target_column="y")


def reading(how: SequenceReading = STEPS, **changes: Any) -> Reading:
    return Reading(kind="sequences", format=changes.pop("format", "table"), sequences=how, dev_fraction=0.25, **changes)


def steps(count: int = 8, length: int = 3) -> str:
    """x is 0, 1, 2 … through the whole file, y the number of the sequence."""
    rows = (f"s{i},{i * length + t},{i}\n" for i in range(count) for t in range(length))
    return "id,x,y\n" + "".join(rows)


def written(folder: Path) -> list[dict[str, Any]]:
    lines = [line for split in ("train", "dev") for line in (folder / f"target/{split}.jsonl").read_text().splitlines()]
    return sorted(map(json.loads, lines), key=lambda row: str(row["id"]))


def test_rows_of_time_steps_become_sequences_that_stay_whole(checked: Any, tmp_path: Path) -> None:  # noqa: F811
    outcome: Outcome = checked(steps(), reading=reading())
    assert outcome.fit and outcome.splits == {"train": 6, "dev": 2}
    assert written(tmp_path)[1] == {"id": "s1", "features": {"x": [3.0, 4.0, 5.0]}, "target": 1.0}
    assert outcome.columns == ["x", "target"]
    assert outcome.statistics["sequence_length"]["train"] == {"min": 3, "p50": 3, "p90": 3, "p99": 3, "max": 3}
    assert outcome.statistics["target"] == "number"
    assert checked(steps(), reading=reading()).content_hash == outcome.content_hash


def test_time_steps_are_put_in_order_by_a_number_or_a_time(checked: Any, tmp_path: Path) -> None:  # noqa: F811
    body = "id,t,x\n" + "".join(f"s{i % 4},2026-01-{20 - i:02d}T10:00:00Z,{i}\n" for i in range(16))
    how = SequenceReading(id_column="id", order_column="t", features=["x"])
    assert checked(body, reading=reading(how)).fit
    assert written(tmp_path)[0] == {"id": "s0", "features": {"x": [12.0, 8.0, 4.0, 0.0]}}
    doubtful = checked("id,t,x\n" + "".join(f"s{i},1,{i}\ns{i},1,0\n" for i in range(8)), reading=reading(how))
    (warning,) = [text for text in found(doubtful) if "have the same “t”" in text]
    assert found(doubtful)[warning] == [2, 4, 6, 8, 10, 12, 14, 16]


def test_numbers_that_only_float64_holds_are_refused_in_json_too(checked: Any) -> None:  # noqa: F811
    how = SequenceReading(layout="lists", features=["x"], target="number", target_column="y")
    rows = [{"x": [1.0, 2.0], "y": i} for i in range(8)] + [{"x": [1.0, 1e39], "y": 1}, {"x": [1.0], "y": 1e39}]
    outcome = checked("".join(json.dumps(row) + "\n" for row in rows), reading=reading(how, format="jsonl"))
    assert found(outcome) | {} == {
        "Rows whose “x” is not finite, or beyond float32: 1.": [9],
        "Rows whose target is no finite number, or beyond float32: 1.": [10],
    }


def test_a_target_that_is_rarely_very_large_is_said_with_its_row(checked: Any) -> None:  # noqa: F811
    body = "id,x,y,split\n" + "".join(
        f"s{i},{i},{1e30 if i == 7 else i % 5},{'dev' if i % 9 == 8 else 'train'}\n" for i in range(300)
    )
    outcome = checked(body, reading=reading(split_column="split"))
    (warning,) = [
        text for text in found(outcome) if "The number to predict is rarely very large: at most 1e+30" in text
    ]
    assert found(outcome)[warning] == [9] and outcome.fit


def test_single_time_steps_to_which_nothing_belongs_are_refused(checked: Any) -> None:  # noqa: F811
    body = "t,x\n" + "".join(f"2026-01-{day:02d},{day}\n" for day in range(1, 30))
    outcome = checked(body, reading=reading(SequenceReading(id_column="t", features=["x"])))
    assert not outcome.fit and any("there is nothing to predict" in text for text in found(outcome))


def test_columns_are_the_time_steps_and_blanks_at_the_end_make_a_sequence_shorter(
    checked: Any,  # noqa: F811
    tmp_path: Path,
) -> None:
    body = "a,b,c,kind\n" + "".join(f"{i},2,{'' if i % 2 else 3},{'ok' if i % 2 else 'bad'}\n" for i in range(12))
    how = SequenceReading(layout="columns", features=["a", "b", "c"], target="label", target_column="kind")
    outcome = checked(body, reading=reading(how))
    assert outcome.fit and outcome.labels == ["bad", "ok"]
    assert outcome.statistics["label_counts"] == {"train": {"bad": 4, "ok": 4}, "dev": {"bad": 2, "ok": 2}}
    assert {len(row["features"]["value"]) for row in written(tmp_path)} == {2, 3}
    gap = checked(body + "1,,3,ok\n", reading=reading(how))
    assert found(gap)["Rows without a value of “b”: 1."] == [14]


def test_a_list_may_stand_in_json_lines_or_in_a_field_of_a_table(checked: Any, tmp_path: Path) -> None:  # noqa: F811
    how = SequenceReading(layout="lists", features=["x", "z"])
    rows = [{"x": [i, 2.5], "z": [0, -i]} for i in range(8)]
    body = "".join(json.dumps(row) + "\n" for row in rows)
    assert checked(body, reading=reading(how, format="jsonl")).fit
    from_objects = written(tmp_path)
    table = "x\tz\n" + "".join(f"{json.dumps(row['x'])}\t{json.dumps(row['z'])}\n" for row in rows)
    assert checked(table, reading=reading(how, delimiter="\t", quotes=False)).fit
    assert [row["features"] for row in written(tmp_path)] == [row["features"] for row in from_objects]
    uneven = checked(body + '{"x": [1], "z": [1, 2]}\n{"x": 3, "z": []}\n', reading=reading(how, format="jsonl"))
    assert found(uneven) | {} == {
        "Rows whose features have different numbers of time steps: 1.": [9],
        "Rows whose “x” is no list: 1.": [10],
    }


@pytest.mark.parametrize(
    ("row", "text"),
    [
        ("s1,nan,1", "Rows whose “x” is not finite, or beyond float32: 1."),
        ("s1,-inf,1", "Rows whose “x” is not finite, or beyond float32: 1."),
        ("s1,1e300,1", "Rows whose “x” is not finite, or beyond float32: 1."),
        ("s1,,1", "Rows without a value of “x”: 1."),
        ("s1,much,1", "Rows whose “x” is no number: 1."),
        (",5,1", "Rows that do not say of which sequence they are: 1."),
        ("s1,5,7", "Rows whose target is another than that of their sequence: 1."),
        ("s1,5,nan", "Rows whose target is no finite number, or beyond float32: 1."),
        ("s1,5,1e39", "Rows whose target is no finite number, or beyond float32: 1."),
    ],
)
def test_what_is_wrong_is_named_with_its_row_and_can_be_left_out_with_its_sequence(
    checked: Any,  # noqa: F811
    tmp_path: Path,
    row: str,
    text: str,
) -> None:
    body = steps() + row + "\n"
    refused = checked(body, reading=reading())
    assert not refused.fit and found(refused) == {text: [26]}
    left_out = checked(body, reading=reading(leave_out=True))
    assert left_out.fit and found(left_out)[text] == [26]
    assert "s1" not in {one["id"] for one in written(tmp_path)} or row.startswith(",")


WEIGHTED = "id,x,y,w\n" + "".join(f"s{i},{3 * i + t},{i},{'2.5e-1' if t else ''}\n" for i in range(8) for t in range(3))


def test_a_sequence_has_one_weight_which_blanks_do_not_contradict(checked: Any, tmp_path: Path) -> None:  # noqa: F811
    outcome = checked(WEIGHTED, reading=reading(weight_column="w"))
    assert outcome.fit and outcome.columns == ["x", "target", "weight"]
    assert outcome.statistics["weights"] == {"train": {"zero": 0}, "dev": {"zero": 0}}
    assert written(tmp_path)[1] == {"id": "s1", "features": {"x": [3.0, 4.0, 5.0]}, "target": 1.0, "weight": 0.25}
    for layout, rows, form in (
        ("columns", "a,b,y,w\n" + "".join(f"{i},2,{i},{i}\n" for i in range(8)), "table"),
        ("lists", "".join(json.dumps({"a": [i, 2], "y": i, "w": str(i)}) + "\n" for i in range(8)), "jsonl"),
    ):
        features = ["a", "b"] if layout == "columns" else ["a"]
        how = SequenceReading(layout=layout, features=features, target="number", target_column="y")
        assert checked(rows, reading=reading(how, format=form, weight_column="w")).fit, layout
        assert {row["weight"] == row["target"] for row in written(tmp_path)} == {True}


@pytest.mark.parametrize(
    ("row", "text", "at"),
    [
        ("s1,5,1,0.3", "Rows whose weight is another than that of their sequence: 1.", 26),
        ("s1,5,1,nan", "Rows whose weight is another than that of their sequence: 1.", 26),
        ("s1,5,1,much", "Rows whose weight is no number of 0 or more: 1.", 26),
        ("s1,5,1,-0.25", "Rows whose weight is no number of 0 or more: 1.", 26),
        ("s9,5,9,", "Sequences without a weight: 1.", 26),
    ],
)
def test_a_weight_that_cannot_be_is_named_with_its_row_and_left_out_with_its_sequence(
    checked: Any,  # noqa: F811
    tmp_path: Path,
    row: str,
    text: str,
    at: int,
) -> None:
    refused = checked(f"{WEIGHTED}{row}\n", reading=reading(weight_column="w"))
    assert not refused.fit and found(refused) == {text: [at]}
    assert checked(f"{WEIGHTED}{row}\n", reading=reading(weight_column="w", leave_out=True)).fit
    assert {one["id"] for one in written(tmp_path)} == {f"s{i}" for i in range(8)} - {row[:2]}


def test_weights_of_sequences_that_are_odd_are_told(checked: Any, tmp_path: Path) -> None:  # noqa: F811
    odd = WEIGHTED + "s8,1,8,nan\ns8,2,8,NaN\ns9,1,9,0\n"
    outcome = checked(odd, reading=reading(weight_column="w"))
    assert outcome.fit and found(outcome) | {} == {
        "Rows with the weight 0, from which nothing is learnt: 1.": [28],
        "Rows whose weight is not finite: 1.": [26],
        "Sequences of one time step, which have no next value to predict: 1.": [28],
    }
    assert [row["weight"] for row in written(tmp_path)][-2:] == ["nan", 0.0]
    nothing = checked(WEIGHTED.replace("2.5e-1", "0"), reading=reading(weight_column="w"))
    assert not nothing.fit
    assert list(found(nothing)) == ["All training rows have the weight 0: nothing would be learnt from them."]


def test_windows_count_as_much_as_the_series_they_are_cut_from(checked: Any, tmp_path: Path) -> None:  # noqa: F811
    body = "id,x,w\n" + "".join(f"s{i},{i * 100 + t},{i + 1}\n" for i in range(2) for t in range(40))
    how = SequenceReading(id_column="id", features=["x"], window=10)
    assert checked(body, reading=reading(how, weight_column="w")).fit
    assert {(row["id"][:2], row["weight"]) for row in written(tmp_path)} == {("s0", 1.0), ("s1", 2.0)}


def test_a_sequence_in_two_splits_would_leak_and_is_refused(checked: Any) -> None:  # noqa: F811
    body = "id,x,split\n" + "".join(f"s{i},{t},{'dev' if i < 2 else 'train'}\n" for i in range(8) for t in range(3))
    how = SequenceReading(id_column="id", features=["x"])
    assert checked(body, reading=reading(how, split_column="split")).splits == {"train": 6, "dev": 2}
    refused = checked(body + "s7,9,dev\n", reading=reading(how, split_column="split"))
    assert list(found(refused).values()) == [[26]] and "second split" in next(iter(found(refused)))


def test_the_same_sequence_on_both_sides_a_constant_and_a_heavy_tail_are_warned_of(checked: Any) -> None:  # noqa: F811
    rows = "".join(f"s{i},{x},5\n" for i in range(200) for x in ((1, 2, 3) if i % 2 else (4, 5, i)))
    how = SequenceReading(id_column="id", features=["x", "same"])
    outcome = checked("id,x,same\n" + rows + "s4,1e6,5\n" * 3, reading=reading(how))
    said = found(outcome)
    assert outcome.fit
    assert any("of dev that are among the training sequences" in text for text in said)
    assert "“same” is 5 in every training row: it tells the model nothing." in said
    (tail,) = [text for text in said if "rare, very large values" in text]
    assert said[tail] == [14] and any("up to 1e+06; fp16 ends at 65504" in text for text in said)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (
            "id,t,amount,y\na,1,2.5,3\n",
            {"layout": "steps", "id_column": "id", "order_column": "t", "features": ["amount"]},
        ),
        (
            "y," + ",".join(f"x{i}" for i in range(9)) + "\n" + "1," * 9 + "1\n",
            {"layout": "columns", "target": "number"},
        ),
        ('{"x": [1, 2], "label": "a"}\n', {"layout": "lists", "features": ["x"], "target": "label"}),
        ("text,label\nhello,a\n", None),
        ("name,remark\nhello,a\n", None),
    ],
)
def test_how_a_file_is_read_is_guessed(body: str, expected: dict[str, Any] | None) -> None:
    made = guess.sequences(look(io.BytesIO(body.encode()), "rows.csv" if body[0] != "{" else "rows.jsonl"))
    assert (made is None) == (expected is None)
    for name, value in (expected or {}).items():
        assert getattr(made, name) == value


def test_values_that_nobody_can_read_are_no_numbers_and_no_lists(checked: Any) -> None:  # noqa: F811
    body = "".join(json.dumps({"x": x, "y": 1}) + "\n" for x in ("[" * 100_000, 10**400, [10**400]))
    assert guess.sequences(look(io.BytesIO(body.encode()), "a.jsonl")) is None
    how = SequenceReading(layout="lists", features=["x"], target="number", target_column="y")
    assert found(checked(body, reading=reading(how, format="jsonl"))) == {
        "Rows whose “x” is no list: 2.": [1, 2],
        "Rows whose “x” is no number: 1.": [3],
        "No row can be used.": [],
    }


def test_whoever_says_that_they_are_sequences_gets_a_guess_under_any_names() -> None:
    body = b"account,amount,mean\n" + b"".join(b"a%d,%d,%d\n" % (i // 4, i, i // 4) for i in range(8))
    seen = look(io.BytesIO(body), "rows.csv")
    assert guess.sequences(seen) is None
    how = guess.sequences(seen, asked=True)
    assert how is not None
    assert (how.id_column, how.features, how.target, how.target_column) == ("account", ["amount"], "number", "mean")
    # A time says in which order they are, not of which sequence.
    seen = look(io.BytesIO(b"time,price\n" + b"".join(b"2024-01-0%d,%d\n" % (i, i) for i in range(1, 9))), "rows.csv")
    how = guess.sequences(seen, asked=True)
    assert how is not None and (how.id_column, how.order_column, how.features) == ("", "time", ["price"])


def test_a_description_that_cannot_work_is_refused_in_words() -> None:
    from workers.datasets.sequences import Findings, _Rows

    for how, text in (
        (SequenceReading(id_column="id"), "No column was chosen as a feature."),
        (STEPS.model_copy(update={"id_column": ""}), "Where a row is a time step"),
    ):
        with pytest.raises(Unreadable, match=text):
            _Rows(reading(how), Findings(), [])


# --- a long series, cut into windows ---------------------------------------------------------

SERIES = "t,x\n" + "".join(f"{99 - i},{99 - i}\n" for i in range(100))  # the newest first
CUT = SequenceReading(order_column="t", features=["x"], window=10, stride=5)


def test_a_series_without_a_sequence_column_is_cut_into_windows_and_its_end_is_for_evaluation(
    checked: Any,  # noqa: F811
    tmp_path: Path,
) -> None:
    outcome: Outcome = checked(SERIES, reading=reading(CUT))
    assert outcome.fit and outcome.splits == {"train": 14, "dev": 4}
    train, dev = (
        [json.loads(line)["features"]["x"] for line in (tmp_path / f"target/{split}.jsonl").read_text().splitlines()]
        for split in ("train", "dev")
    )
    assert train[0] == list(range(10)) and train[1] == list(range(5, 15)) and train[-1] == list(range(65, 75))
    assert dev[0] == list(range(75, 85)) and dev[-1] == list(range(90, 100))
    assert {"1–10", "6–15", "91–100"} <= {row["id"] for row in written(tmp_path)}
    said = found(outcome)
    assert "Windows across the border between training and evaluation, which are left out: 1." in said
    apart = checked(SERIES, reading=reading(CUT.model_copy(update={"stride": 0})))
    assert apart.splits == {"train": 7, "dev": 2}


def test_several_series_are_cut_each_and_may_say_their_split_step_by_step(checked: Any, tmp_path: Path) -> None:  # noqa: F811
    body = "id,x,split\n" + "".join(f"{name},{t},{'dev' if t > 19 else 'train'}\n" for name in "ab" for t in range(30))
    how = SequenceReading(id_column="id", features=["x"], window=10)
    outcome = checked(body + "c,1,train\n", reading=reading(how, split_column="split"))
    assert outcome.splits == {"train": 4, "dev": 2}
    assert {row["id"] for row in written(tmp_path)} == {"a 1–10", "a 11–20", "b 1–10", "b 11–20"}
    assert any("shorter than a window of 10 time steps, and left out: 1." in text for text in found(outcome))


def test_windows_that_cannot_be_are_refused(checked: Any, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    long = CUT.model_copy(update={"window": 200})
    assert any("No window of 200 time steps" in text for text in found(checked(SERIES, reading=reading(long))))
    target = CUT.model_copy(update={"target": "number", "target_column": "x"})
    assert any("no target of their own" in text for text in found(checked(SERIES, reading=reading(target))))
    monkeypatch.setattr("workers.datasets.sequences.MOST_STEPS", 100)
    assert any("take a larger stride" in text for text in found(checked(SERIES, reading=reading(CUT))))


def test_who_says_that_a_series_is_one_gets_a_window() -> None:
    seen = look(io.BytesIO(b"date,amount\n2026-01-01,1\n2026-01-02,2\n"), "x.csv")
    how = guess.sequences(seen, asked=True)
    assert how is not None and (how.order_column, how.features, how.window) == ("date", ["amount"], guess.WINDOW)
    assert guess.sequences(seen) is None
