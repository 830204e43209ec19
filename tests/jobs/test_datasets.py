from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command
from PIL import Image

from jobs import datasets, sample
from jobs.models import Dataset

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def storage(settings: Any, tmp_path: Path) -> Path:
    settings.STORAGE_ROOT = tmp_path / "storage"
    return settings.STORAGE_ROOT


def write(path: Path, rows: list[Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path


def rows(count: int, *labels: str) -> list[dict[str, str]]:
    return [{"text": f"text {i}", "label": labels[i % len(labels)]} for i in range(count)]


def register(source: Path, **more: Any) -> Dataset:
    return datasets.register(source, name="set", shared=True, baseline=False, **more)[0]


def errors_of(source: Path) -> list[str]:
    with pytest.raises(datasets.Unfit) as caught:
        register(source)
    return caught.value.errors


def test_two_files_are_copied_and_measured(tmp_path: Path, storage: Path) -> None:
    write(tmp_path / "set" / "train.jsonl", [*rows(6, "a", "b", "b"), {"text": "text 0", "label": "b", "weight": 2}])
    write(tmp_path / "set" / "dev.jsonl", [{"text": "text 1", "label": "b"}, {"text": "new", "label": "a"}])
    dataset = register(tmp_path / "set")
    assert (storage / dataset.key / "train.jsonl").read_bytes() == (tmp_path / "set" / "train.jsonl").read_bytes()
    assert dataset.splits == {"train": 7, "dev": 2}
    assert dataset.labels == ["a", "b"]
    assert dataset.columns == ["label", "text", "weight"]
    assert dataset.statistics["duplicates"] == {"train": 1, "dev": 0, "dev_in_train": 1, "contradicting": 1}
    assert dataset.statistics["label_counts"]["train"] == {"a": 2, "b": 5}
    assert dataset.statistics["baselines"] == {"majority": 0.5}


def test_one_file_is_split_label_by_label_and_always_alike(tmp_path: Path, storage: Path) -> None:
    source = write(tmp_path / "all.jsonl", rows(100, "a", "a", "a", "b"))
    dataset = register(source, dev_fraction=0.2)
    assert dataset.statistics["label_counts"] == {"train": {"a": 60, "b": 20}, "dev": {"a": 15, "b": 5}}
    again, new = datasets.register(source, name="set", shared=True, baseline=False, dev_fraction=0.2)
    assert (again, new) == (dataset, False)
    other, new = datasets.register(source, name="set", shared=True, baseline=False, dev_fraction=0.2, seed=1)
    assert new and other.content_hash != dataset.content_hash


def test_broken_rows_are_named_by_kind_with_their_numbers(tmp_path: Path) -> None:
    file = tmp_path / "broken.jsonl"
    file.write_bytes(
        b'{"text": "good", "label": "a"}\n'
        b"not json\n"
        b'{"text": "caf\xe9", "label": "a"}\n'
        b'{"txt": "wrong column", "label": "a"}\n'
        b'{"text": "  ", "label": "a"}\n'
        b'{"text": "no label", "label": null}\n'
        b"[1]\n"
    )
    errors = errors_of(file)
    assert [error.split(": ")[0] for error in errors] == [
        "Rows that are not JSON",
        "Rows that are not UTF-8",
        "Rows without the column “text”",
        "Rows with an empty text",
        "Rows without a label",
        "Rows that are not JSON objects",
    ]
    assert [error.split("broken.jsonl:")[1][0] for error in errors] == list("234567")
    assert "txt, label" in errors[2]


def test_of_many_broken_rows_the_count_and_the_first_are_told(tmp_path: Path) -> None:
    _first, error, _last = errors_of(write(tmp_path / "broken.jsonl", [{"text": ""}, *[1] * 1000]))
    assert error.startswith("Rows that are not JSON objects: 1000. broken.jsonl:2 (1), broken.jsonl:3 (1)")
    assert error.endswith(" …")


def test_dev_labels_must_be_known(tmp_path: Path) -> None:
    write(tmp_path / "train.jsonl", rows(4, "a", "b"))
    write(tmp_path / "dev.jsonl", rows(1, "c"))
    (error,) = errors_of(tmp_path)
    assert error == "The label “c” is among the dev rows but not among the training rows. dev.jsonl:1"


def test_one_label_is_no_classification(tmp_path: Path) -> None:
    assert "two labels" in errors_of(write(tmp_path / "one.jsonl", rows(50, "a")))[0]


def test_other_rows_under_the_same_name_are_the_next_version(tmp_path: Path, storage: Path) -> None:
    first = register(write(tmp_path / "all.jsonl", rows(40, "a", "b")))
    second = register(write(tmp_path / "all.jsonl", rows(42, "a", "b")))
    assert (first.version, second.version) == (1, 2)
    assert {path.name for path in (storage / "datasets").iterdir()} == {Path(d.key).name for d in (first, second)}


def test_a_table_is_registered_as_well(tmp_path: Path) -> None:
    path = tmp_path / "all.csv"
    path.write_text("text,label\n" + "".join(f'"text, {i}",{"ab"[i % 2]}\n' for i in range(40)))
    assert register(path).splits == {"train": 36, "dev": 4}


def test_sample_has_distinct_reviews_with_one_label_each_in_a_fixed_order() -> None:
    reviews = sample.reviews()
    assert 17_000 < len(reviews) < 17_500
    assert len({text for text, _ in reviews}) == len(reviews)
    assert reviews == sample.reviews()


def test_command_registers_for_an_owner(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    User.objects.create_user("someone")
    source = write(tmp_path / "all.jsonl", rows(40, "a", "b"))
    call_command("register_dataset", str(source), "--name=set", "--owner=someone", "--no-baseline")
    assert "36 train, 4 dev rows, 2 labels" in capsys.readouterr().out
    assert Dataset.objects.get().owner.username == "someone"


@pytest.mark.parametrize(
    "options, said",
    [
        ([], "--owner NAME or --shared"),
        (["--owner=nobody"], "There is no user “nobody”"),
        (["--shared", "--dev-fraction=1.5"], "not 1.5"),
    ],
)
def test_command_says_what_is_wrong(tmp_path: Path, options: list[str], said: str) -> None:
    source = write(tmp_path / "all.jsonl", rows(40, "a", "b"))
    with pytest.raises(CommandError, match=said):
        call_command("register_dataset", str(source), "--name=set", *options)


def test_pictures_are_registered_with_their_label_files_on_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "words"
    folder.mkdir()
    for i in range(20):
        Image.new("L", (60, 16), i).save(folder / f"{i}.png")
    (folder / "broken.png").write_bytes(b"\x89PNG no more")
    names = [*(f"{i}.png" for i in range(20)), "broken.png"]
    (tmp_path / "gt.txt").write_text("".join(f"{name}\tword {i}\n" for i, name in enumerate(names)))
    given = [str(folder), "--name", "words", "--shared", "--kind", "lines", "--no-baseline"]
    given += ["--label-file", str(tmp_path / "gt.txt")]
    with pytest.raises(CommandError, match=r"gt\.txt:21 \(broken\.png: a broken PNG\)"):
        call_command("register_dataset", *given)
    call_command("register_dataset", *given, "--leave-out")
    assert "18 train, 2 dev rows" in capsys.readouterr().out
    dataset = Dataset.objects.get()
    assert dataset.kind == "lines" and (datasets.settings.STORAGE_ROOT / dataset.key / "images.bin").is_file()
