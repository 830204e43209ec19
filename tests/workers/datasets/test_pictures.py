"""Datasets made of pictures: what is read from archives and folders, what a check finds, and what it writes."""

from __future__ import annotations

import io
import json
import os
import tarfile
import zipfile
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from workers.contract.datasets import ImageReading, ListFile, Reading
from workers.datasets import archives, layouts
from workers.datasets.checking import Outcome, Source, check
from workers.images import Images, decode

IMAGES = Reading(kind="images")
LINES = Reading(kind="lines", images=ImageReading(layout="lists"))
Files = Mapping[str, bytes]


def png(seed: int, size: tuple[int, int] = (20, 12), form: str = "PNG") -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 255, (size[1], size[0], 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, form)
    return file.getvalue()


def zipped(files: Files) -> bytes:
    body = io.BytesIO()
    with zipfile.ZipFile(body, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return body.getvalue()


def tarred(files: Files, mode: Any = "w:gz", more: tuple[tarfile.TarInfo, ...] = ()) -> bytes:
    body = io.BytesIO()
    with tarfile.open(fileobj=body, mode=mode) as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
        for info in more:
            archive.addfile(info)
    return body.getvalue()


def by_folder(count: int = 20, labels: tuple[str, ...] = ("cat", "dog"), root: str = "") -> dict[str, bytes]:
    return {f"{root}{label}/{i}.png": png(1000 * n + i) for n, label in enumerate(labels) for i in range(count)}


@pytest.fixture
def checked(tmp_path: Path) -> Any:
    def run(*files: tuple[str, bytes | Path] | tuple[str, bytes, str], reading: Reading = IMAGES) -> Outcome:
        for name in ("scratch", "target"):
            (tmp_path / name).mkdir(exist_ok=True)
        sources = []
        for i, (name, body, *split) in enumerate(files):
            path = body if isinstance(body, Path) else tmp_path / f"{i}.bin"
            if isinstance(body, bytes):
                path.write_bytes(body)
            sources.append(Source(path, name, str(*split)))
        return check(sources, reading, tmp_path / "scratch", tmp_path / "target", lambda *_: None)

    return run


def found(outcome: Outcome) -> dict[str, list[str]]:
    return {finding.text: [ref.shown for ref in finding.rows] for finding in outcome.findings}


def rows_of(tmp_path: Path, split: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (tmp_path / "target" / f"{split}.jsonl").read_text("utf-8").splitlines()]


# --- what is written -------------------------------------------------------------------------


@pytest.mark.parametrize("pack", [zipped, tarred, lambda files: tarred(files, "w")], ids=["zip", "tar.gz", "tar"])
def test_a_folder_per_label_becomes_rows_and_one_file_of_pictures(checked: Any, tmp_path: Path, pack: Any) -> None:
    files = by_folder()
    outcome = checked(("pets.zip", pack(files)))
    assert outcome.fit and not outcome.findings
    assert outcome.splits == {"train": 36, "dev": 4} and outcome.labels == ["cat", "dog"]
    assert outcome.statistics["label_counts"] == {"train": {"cat": 18, "dog": 18}, "dev": {"cat": 2, "dog": 2}}
    assert outcome.bytes == sum(path.stat().st_size for path in (tmp_path / "target").iterdir())
    with Images(tmp_path / "target") as images:
        for row in rows_of(tmp_path, "train") + rows_of(tmp_path, "dev"):
            assert images.read(*row["image"]) == files[row["id"]]
            assert row["id"].startswith(f"{row['label']}/") and row["size"] == [20, 12]


def test_the_hash_follows_rows_and_pictures_whatever_they_are_packed_in(checked: Any) -> None:
    files = by_folder()
    hashes = {checked((name, pack(files))).content_hash for name, pack in (("a.zip", zipped), ("b.tar.gz", tarred))}
    hashes.add(checked(("a.zip", zipped({**files, "cat/0.png": png(77)}))).content_hash)
    assert len(hashes) == 2


def test_folders_of_train_and_val_are_the_splits_and_test_is_not_used(checked: Any, tmp_path: Path) -> None:
    files = by_folder(4, root="pets/train/") | by_folder(2, root="pets/val/") | by_folder(1, root="pets/test/")
    outcome = checked(("pets.zip", zipped({**files, "pets/README.md": b"hello"})))
    assert outcome.splits == {"train": 8, "dev": 4}
    assert {row["id"].split("/")[1] for row in rows_of(tmp_path, "dev")} == {"val"}
    assert "Rows of the test split, which are not used: 2." in found(outcome)
    assert "Files that are no pictures and were passed over: 1." in found(outcome)


def test_train_and_test_without_val_set_a_part_of_train_apart(checked: Any) -> None:
    outcome = checked(("a.zip", zipped(by_folder(10, root="train/") | by_folder(2, root="test/"))))
    assert outcome.splits == {"train": 18, "dev": 2}


@pytest.mark.parametrize("pack", [zipped, tarred], ids=["zip", "tar.gz"])
def test_a_label_file_that_is_too_large_to_be_read_is_named_with_its_size(
    checked: Any, monkeypatch: pytest.MonkeyPatch, pack: Any
) -> None:
    monkeypatch.setattr(archives, "LARGEST_LIST_BYTES", 2**20)
    files = by_folder()
    body = "".join(f"{name}\t{name[:3]}\n" for name in files).encode()
    packed = pack({**files, "large/train.txt": body + b"\n" * 2**20, "notes.txt": b"n" * 2**21})
    text = "The label file “large/train.txt” has 1.0 MiB and was not read: at most 1 MiB of one, and 512 MiB of all together"
    by_folders = checked(("pets.zip", packed))
    assert by_folders.fit and by_folders.splits == {"train": 36, "dev": 4}
    assert [finding.text[: len(text)] for finding in by_folders.findings if finding.level == "warning"] == [text]
    for lists in ([], [ListFile(name="large/train.txt")]):
        refused = checked(
            ("a", packed), reading=Reading(kind="images", images=ImageReading(layout="lists", lists=lists))
        )
        assert not refused.fit and [finding.text[: len(text)] for finding in refused.findings] == [text]
    monkeypatch.setattr(archives, "LARGEST_LIST_BYTES", 2**22)
    monkeypatch.setattr(archives, "MOST_TEXT_BYTES", 2**20)
    assert any("1 MiB of all together" in finding.text for finding in checked(("a", packed)).findings)


def test_two_archives_are_train_and_dev(checked: Any, tmp_path: Path) -> None:
    outcome = checked(
        ("a.zip", zipped(by_folder(4)), "train"),
        ("b.tar.gz", tarred({"cat/0.png": png(51), "dog/0.png": png(52)}), "dev"),
    )
    assert outcome.splits == {"train": 8, "dev": 2}
    assert [row["id"] for row in rows_of(tmp_path, "dev")] == ["b/cat/0.png", "b/dog/0.png"]


def test_a_list_names_pictures_and_a_file_names_the_labels(checked: Any, tmp_path: Path) -> None:
    files = {f"images/{i}.jpg": png(i, form="JPEG") for i in range(10)}
    train = "".join(f"data/images/{i}.jpg {i % 2}\n" for i in range(8))
    dev = "".join(f"./images/{i}.jpg\t{i % 2}\r\n" for i in (8, 9))
    body = zipped(
        {
            **files,
            "train_list.txt": train.encode(),
            "val_list.txt": dev.encode(),
            "label_list.txt": "0 猫\n1 狗\n".encode(),
        }
    )
    kind, how = guessed(("a.zip", body), tmp_path)
    assert (kind, how.layout, how.label_names) == ("images", "lists", "label_list.txt")
    assert [(one.name, one.split) for one in how.lists] == [("train_list.txt", "train"), ("val_list.txt", "dev")]
    outcome = checked(("a.zip", body), reading=Reading(kind=kind, images=how))
    assert outcome.labels == ["猫", "狗"] and outcome.splits == {"train": 8, "dev": 2}
    assert rows_of(tmp_path, "dev")[0]["label"] == "猫"


def test_lines_come_from_label_files_beside_the_archive(checked: Any, tmp_path: Path) -> None:
    files = {f"rec/train/word_{i}.png": png(i, (60, 16)) for i in range(12)}
    label = "".join(f"train/word_{i}.png\ttext {i}\n" for i in range(10)).encode()
    dev = "".join(f"word_{i}.png\t文本{i}\n" for i in (10, 11)).encode("gb18030")
    outcome = checked(
        ("rec.zip", zipped(files), "train"),
        ("rec_gt_train.txt", label, "train"),
        ("rec_gt_test.txt", dev, "dev"),
        reading=LINES,
    )
    assert outcome.fit and outcome.splits == {"train": 10, "dev": 2} and outcome.labels == []
    assert [row["text"] for row in rows_of(tmp_path, "dev")] == ["文本10", "文本11"]
    statistics = outcome.statistics
    assert statistics["characters"]["train"]["t"] == 20 and statistics["unseen_characters"] == {"文": 2, "本": 2}
    # “text 1”: six characters without neighbours that are equal, 60 × 32 / 16 pixels wide.
    assert statistics["width_per_step"]["train"]["percentiles"][0] == 20.0
    # “文本11” needs a step between its equal characters.
    assert statistics["width_per_step"]["dev"]["narrowest"][0] | {"image": 0, "of": 0} == {
        "id": "rec/train/word_11.png", "text": "文本11", "size": [60, 16], "image": 0, "of": 0, "value": 24.0,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("gt.csv", '{path},"said, {n}"'), ("gt.csv", "{path},said, {n}"), ("gt.txt", '{path}, "said, {n}"'),
        ("gt.txt", "{path}\tsaid, {n}"),
    ],
)  # fmt: skip
def test_label_files_have_tabs_or_commas(checked: Any, tmp_path: Path, name: str, line: str) -> None:
    files = {f"{i}.png": png(i, (90, 16)) for i in range(20)}
    lines = ["filename,words"] if name == "gt.csv" else []
    lines += [line.format(path=path, n=i) for i, path in enumerate(files)]
    body = zipped({**files, name: "\n".join(lines).encode()})
    kind, how = guessed(("a.zip", body), tmp_path)
    outcome = checked(("a.zip", body), reading=Reading(kind=kind, images=how))
    assert outcome.fit and outcome.splits == {"train": 18, "dev": 2}
    assert {row["text"] for row in rows_of(tmp_path, "train") + rows_of(tmp_path, "dev")} == {
        f"said, {i}" for i in range(20)
    }


def weighted(kind: Any) -> Reading:
    return Reading(kind=kind, images=ImageReading(layout="lists", weights=True))


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("labels.txt", "cat/{}.png\tfur, and more\t{}"),
        ("labels.csv", 'cat/{}.png,"fur, and more",{}'),
    ],
)
@pytest.mark.parametrize("kind", ["images", "lines"])
def test_label_files_may_have_a_weight_behind_the_label(
    checked: Any, tmp_path: Path, kind: str, name: str, line: str
) -> None:
    lines = [line.format(i, i / 2) for i in range(20)] + [
        line.format(0, "1.5").replace("cat", "dog").replace("fur", "bone")
    ] * 20
    if name.endswith(".csv"):
        lines.insert(0, "image,label,weight")
    files = by_folder() | {name: "\n".join(lines).encode()}
    outcome = checked(("a.zip", zipped(files)), reading=weighted(kind))
    assert outcome.fit, found(outcome)
    said = "label" if kind == "images" else "text"
    assert outcome.columns == ["id", "image", said, "size", "weight"]
    rows = rows_of(tmp_path, "train") + rows_of(tmp_path, "dev")
    cats = {row["id"]: row["weight"] for row in rows if row["id"].startswith("cat")}
    assert len(rows) == 40 and cats == {f"cat/{i}.png": i / 2 for i in range(20)}
    assert {row[said].split(",")[0] for row in rows} == {"fur", "bone"}
    zeros = outcome.statistics["weights"]
    assert zeros["train"]["zero"] + zeros["dev"]["zero"] == 1
    assert "Rows with the weight 0, from which nothing is learnt: 1." in found(outcome)


def test_weights_that_are_none_or_not_finite_are_found(checked: Any, tmp_path: Path) -> None:
    lines = [f"{pet}/{i}.png\t{pet}\t{1 + i}" for pet in ("cat", "dog") for i in range(20)]
    lines[3], lines[4], lines[5] = "cat/3.png\tcat\tmany", "cat/4.png\tcat\t-1", "cat/5.png\tcat"
    lines[6] = "cat/6.png\tcat\tnan"
    archive = ("a.zip", zipped(by_folder() | {"labels.txt": "\n".join(lines).encode()}))
    outcome = checked(archive, reading=weighted("images"))
    assert not outcome.fit
    assert found(outcome) == {
        "Rows whose weight is no number of 0 or more: 3.": ["many", "-1", "cat/5.png"],
    }
    left = checked(archive, reading=weighted("images").model_copy(update={"leave_out": True}))
    assert left.fit and "Rows whose weight is not finite: 1." in found(left)
    rows = {row["id"]: row["weight"] for split in ("train", "dev") for row in rows_of(tmp_path, split)}
    assert len(rows) == 37 and rows["cat/6.png"] == "nan" and rows["dog/7.png"] == 8.0
    none = "\n".join(line.rpartition("\t")[0] + "\t0" for line in lines if line.count("\t") == 2)
    nothing = checked(("a.zip", zipped(by_folder() | {"labels.txt": none.encode()})), reading=weighted("images"))
    assert "All training rows have the weight 0: nothing would be learnt from them." in found(nothing)


@pytest.mark.parametrize(
    ("body", "kind", "weights"),
    [
        ("cat/{i}.png\tcat\t0.5", "images", True),
        ("cat/{i}.png\ttotal {i}\t2", "lines", True),
        ("cat/{i}.png\ttotal {i}", "lines", False),
        ("cat/{i}.png\t{i}", "images", False),
        ("cat/{i}.png,total,{i}.5", "lines", False),
    ],
)
def test_weights_are_guessed_where_all_lines_have_a_number_behind_a_second_tab(
    tmp_path: Path, body: str, kind: str, weights: bool
) -> None:
    files = by_folder() | {"labels.txt": "\n".join(body.format(i=i) for i in range(20)).encode()}
    (tmp_path / "a.zip").write_bytes(zipped(files))
    with ExitStack() as stack:
        _archives, stores, beside = layouts.look([Source(tmp_path / "a.zip", "a.zip")], stack, lambda *_: None)
        guessed, how = layouts.guess(stores, beside)
    assert (guessed, how.weights) == (kind, weights)


def test_a_test_file_is_for_evaluation_where_there_is_no_other(tmp_path: Path) -> None:
    body = zipped({"1.png": png(1), "rec_gt_train.txt": b"1.png\tone\n", "rec_gt_test.txt": b"1.png\tother\n"})
    kind, how = guessed(("a.zip", body), tmp_path)
    assert kind == "lines"
    assert [(one.name, one.split) for one in how.lists] == [("rec_gt_test.txt", "dev"), ("rec_gt_train.txt", "train")]


def guessed(file: tuple[str, bytes], tmp_path: Path) -> Any:
    (tmp_path / "guess.bin").write_bytes(file[1])
    with ExitStack() as stack:
        _archives, stores, beside = layouts.look([Source(tmp_path / "guess.bin", file[0])], stack, lambda *_: None)
    return layouts.guess(stores, beside)


@pytest.mark.parametrize("encoding", ["gb18030", "utf-8"])
def test_names_of_zips_that_do_not_say_their_encoding_are_read(checked: Any, tmp_path: Path, encoding: str) -> None:
    labels = {"cat": "小猫".encode(encoding), "dog": "大狗".encode(encoding)}
    files = by_folder(10)
    body = zipped(
        {
            name.replace(label, label[0] * len(to)): data
            for label, to in labels.items()
            for name, data in files.items()
            if name.startswith(label)
        }
    )
    for label, to in labels.items():
        body = body.replace(label[0].encode() * len(to) + b"/", to + b"/")
    assert checked(("a.zip", body)).labels == ["大狗", "小猫"]


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("test/0.png", "rec/test/0.png"),
        ("./rec\\\\test\\\\0.png".replace("\\\\", "\\"), "rec/test/0.png"),
        ("/home/x/data/train/0.png", "rec/train/0.png"),
        ("2.png", "rec/train/2.png"),
        ("0.png", None),  # of which folder?
        ("dev/0.png", None),  # there is no such folder: not another one's picture
        ("elsewhere/dev/2.png", None),
    ],
)
def test_paths_of_other_machines_find_their_pictures_and_no_others(path: str, name: str | None) -> None:
    names = ["rec/train/0.png", "rec/train/1.png", "rec/train/2.png", "rec/test/0.png", "rec/test/1.png"]
    found = layouts._Places(names).find(path, "")
    assert (names[found] if found is not None else None) == name


# --- what is found ---------------------------------------------------------------------------


def test_broken_pictures_are_found_with_their_places(checked: Any) -> None:
    whole = png(1, (80, 80))
    bad = {"cat/cut.png": whole[:3000], "dog/no.jpg": b"not a picture", "dog/empty.png": b"", "cat/other.tif": b"II*\0"}
    outcome = checked(("a.zip", zipped(by_folder() | bad)))
    assert not outcome.fit
    texts = found(outcome)
    no_picture = texts[
        "Files that are no whole picture (PNG, JPEG, BMP, WebP, GIF): 2. Save them anew, or leave them out."
    ]
    assert no_picture[0].startswith("cat/cut.png: ") and no_picture[1].startswith("dog/no.jpg: not a picture")
    assert texts["Pictures that are empty files: 1."] == ["dog/empty.png"]
    assert texts["Pictures of a format that is not read: 1. Save them as PNG, JPEG, BMP, WebP or GIF."] == [
        "cat/other.tif"
    ]
    left = checked(("a.zip", zipped(by_folder() | bad)), reading=IMAGES.model_copy(update={"leave_out": True}))
    assert left.fit and left.splits == {"train": 36, "dev": 4}
    assert "Rows with errors that were left out: 4." in found(left)


def test_duplicates_leaks_and_contradictions_are_found_by_bytes(checked: Any) -> None:
    train = {f"train/{name}": data for name, data in by_folder(6).items()}
    dev = {f"dev/{name}": data for name, data in by_folder(2, ("cat", "dog")).items()}
    dev = {name: png(5000 + i) for i, name in enumerate(dev)}
    more = {
        "train/cat/again.png": train["train/cat/0.png"],
        "dev/cat/leaked.png": train["train/cat/1.png"],
        "train/dog/same.png": train["train/cat/2.png"],
    }
    outcome = checked(("a.zip", zipped(train | dev | more)))
    assert outcome.fit
    assert outcome.statistics["duplicates"] == {"train": 2, "dev": 0, "dev_in_train": 1, "contradicting": 1}
    texts = found(outcome)
    assert texts["Rows of train whose picture occurs earlier in it: 2."] == [
        "train/cat/again.png",
        "train/dog/same.png",
    ]
    assert texts["Rows whose picture has another label elsewhere: 1."] == ["train/dog/same.png"]


def test_lines_that_fit_no_picture_and_texts_that_cannot_be_are_found(checked: Any) -> None:
    files = {f"{i}.png": png(i, (60, 16)) for i in range(20)}
    lines = [f"{i}.png\ttext {i}" for i in range(14)]
    lines += ["gone.png\tnothing", "14.png\t ", "15.png\ta\tb", "16.png no tab", "17.png\tx" + "y" * 1000]
    outcome = checked(("a.zip", zipped({**files, "gt.txt": "\n".join(lines).encode()})), reading=LINES)
    texts = found(outcome)
    assert texts["Lines whose picture is not there: 1. Add the pictures, or take the lines out."] == ["gone.png"]
    assert "Rows with an empty text: 1." in texts
    assert "Rows with a control character in the text, such as a tab: 1. No picture shows one." in texts
    assert "Lines without a tab between the path and the text: 1." in texts
    assert "Rows with a text longer than 1000 characters: 1." in texts
    assert outcome.findings[0].rows[0].file == "gt.txt" and outcome.findings[0].rows[0].row == 15
    assert texts["Pictures that no line of a label file names and that were left out: 4."] == [
        "14.png", "16.png", "18.png", "19.png",
    ]  # fmt: skip


def test_narrow_and_upright_lines_and_strange_characters_are_told(checked: Any) -> None:
    files = {f"{i}.png": png(i, (60, 16)) for i in range(20)} | {"n.png": png(90, (10, 32)), "u.png": png(91, (16, 60))}
    lines = [f"{i}.png\ttext {i}" for i in range(20)]
    lines += ["n.png\ttwelve times", "u.png\te\u0301 x\u200b "]
    texts = found(checked(("a.zip", zipped({**files, "gt.txt": "\n".join(lines).encode()})), reading=LINES))
    assert texts[
        "Pictures too narrow for their text: 1. At a height of 32 pixels they have less than one pixel per character."
    ] == ["n.png"]
    upright = "Pictures of several characters that are higher than wide: 2. Turn them, if they lie on their side."
    assert texts[upright] == ["n.png", "u.png"]
    assert "Texts that begin or end with a space: 1." in texts
    assert "Texts with invisible characters: 1." in texts
    assert any(text.startswith("Texts with letters and their accents apart") for text in texts)


def test_one_label_tiny_pictures_and_labels_alike_are_told(checked: Any) -> None:
    outcome = checked(("a.zip", zipped(by_folder(20, ("cat",)))))
    assert list(found(outcome)) == ["There must be two labels at least; the training rows have: cat."]
    files = by_folder(20, ("cat", "Cat")) | {"cat/tiny.png": png(8, (4, 4)), "cat/long.png": png(9, (500, 9))}
    texts = found(checked(("a.zip", zipped(files))))
    assert texts["Pictures less than 8 pixels wide or high: 1."] == ["cat/tiny.png"]
    assert "Labels that differ in upper and lower case only: Cat, cat." in texts
    assert any(text.startswith("Pictures more than 20 times as long") for text in texts)


def test_a_picture_in_no_folder_has_no_label(checked: Any) -> None:
    texts = found(checked(("a.zip", zipped(by_folder() | {"alone.png": png(3)}))))
    assert texts["Pictures that lie in no folder of a label: 1."] == ["alone.png"]


def test_boxes_of_text_detection_are_no_lines(checked: Any) -> None:
    body = zipped({"1.png": png(1), "Label.txt": b'1.png\t[{"transcription": "a", "points": []}]\n'})
    assert "The label file “Label.txt” is one of text detection" in str(found(checked(("a.zip", body), reading=LINES)))


# --- archives that mean harm, and broken ones ------------------------------------------------


def test_no_name_leads_out_and_no_link_is_followed(checked: Any, tmp_path: Path) -> None:
    (tmp_path / "secret.png").write_bytes(png(66))
    link = tarfile.TarInfo("cat/link.png")
    link.type, link.linkname = tarfile.SYMTYPE, str(tmp_path / "secret.png")
    hard = tarfile.TarInfo("cat/hard.png")
    hard.type, hard.linkname = tarfile.LNKTYPE, "cat/0.png"
    files = {**by_folder(), "../cat/up.png": png(67), "/etc/abs.png": png(68), "C:\\cat\\x.png": png(69)}
    outcome = checked(("a.tar.gz", tarred(files, more=(link, hard))))
    assert not outcome.fit
    texts = found(outcome)
    assert texts["Members whose names lead out of the archive: 3."] == [
        "../cat/up.png",
        "/etc/abs.png",
        "C:\\cat\\x.png",
    ]
    assert texts["Members that are links or no files, which are never followed: 2."] == ["cat/link.png", "cat/hard.png"]
    assert {path.name for path in tmp_path.iterdir()} == {"scratch", "target", "secret.png", "0.bin"}


def test_what_systems_leave_behind_is_passed_over(checked: Any) -> None:
    junk = {"__MACOSX/cat/._0.png": b"x", "cat/._1.png": b"x", "cat/.DS_Store": b"x", "dog/Thumbs.db": b"x"}
    assert not checked(("a.zip", zipped(by_folder() | junk))).findings


def test_a_bomb_is_refused_before_it_is_unpacked(checked: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "RATIO_FROM_BYTES", 2**20)
    bomb = {"cat/0.png": b"\0" * (8 * 2**20)}
    for name, body in (("a.zip", zipped(bomb)), ("a.tar.gz", tarred(bomb))):
        texts = found(checked((name, body)))
        (text,) = texts
        assert text.startswith("Unpacked the archive has more than 200 times its 0.0 MiB")


def test_a_name_that_would_fill_memory_is_refused(checked: Any) -> None:
    name = tarfile.TarInfo("././@LongLink")
    name.type, name.size = tarfile.GNUTYPE_LONGNAME, 3 * 2**20
    body = io.BytesIO()
    with tarfile.open(fileobj=body, mode="w:gz") as archive:
        archive.addfile(name, io.BytesIO(b"x" * name.size))
    assert "a header of 3145728 bytes" in str(found(checked(("a.tar.gz", body.getvalue()))))


def test_a_look_at_the_beginning_unpacks_no_more_than_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "HEAD_UNPACKED_BYTES", 2**20)
    monkeypatch.setattr(archives, "HEAD_DIRECTORY_BYTES", 1000)
    files = {**by_folder(2), "cat/large.bmp": b"\0" * 2**21, "dog/after.png": png(9)}
    for name, body, names in (("a.tar.gz", tarred(files), list(files)[:4]), ("a.zip", zipped(by_folder()), [])):
        (tmp_path / name).write_bytes(body)
        archive = archives.opened(Source(tmp_path / name, name))
        contents = archive.look(most=100)
        assert not contents.whole and contents.names == names
        assert archive.look().whole
        archive.close()


def test_too_many_members_are_refused(checked: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "MOST_MEMBERS", 10)
    for pack in (zipped, tarred):
        (text,) = found(checked(("a", pack(by_folder()))))
        assert text.startswith("There are more than 10 files in the archive")


def test_too_many_pixels_and_too_many_bytes_are_found(checked: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workers.images.MOST_PIXELS", 100 * 100)
    monkeypatch.setattr(archives, "LARGEST_PICTURE_BYTES", 2**16)
    files = by_folder() | {"cat/many.png": png(1, (101, 100)), "dog/large.bmp": png(2, (160, 150), "BMP")}
    for name, body in (("a.zip", zipped(files)), ("a.tar.gz", tarred(files))):
        said = {finding.text: finding.rows[0].shown for finding in checked((name, body)).findings}
        assert said["Pictures of more than 64 million pixels: 1. Shrink them."] == "cat/many.png: 101 × 100"
        assert said["Pictures larger than 0 MiB: 1. Shrink them."] == "dog/large.bmp: 0.1 MiB"


@pytest.mark.parametrize("cut", [0, 40, 3000, -30])
def test_an_archive_that_is_not_whole_is_refused(checked: Any, cut: int) -> None:
    for name, body in (("a.zip", zipped(by_folder())), ("a.tar.gz", tarred(by_folder()))):
        outcome = checked((name, body[:cut]))
        assert not outcome.fit and len(outcome.findings) == 1


@pytest.mark.parametrize("mode", ["w", "w:gz"])
def test_an_archive_that_ends_within_its_label_file_is_refused(checked: Any, mode: str) -> None:
    lines = np.random.default_rng(1).integers(0, 10**9, 5000)
    labels = "".join(f"cat/1.png\t{number}\n" for number in lines).encode()
    body = tarred({"train.txt": labels, **by_folder(1)}, mode)
    (text,) = found(checked(("a", body[: len(labels) // 4])))
    assert text.startswith("The archive is broken or not whole: ")


def test_a_broken_member_is_found_however_a_zip_is_packed(checked: Any) -> None:
    for method in (zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA):
        body = io.BytesIO()
        with zipfile.ZipFile(body, "w", method) as archive:
            for name, data in ({"notes.txt": bytes(range(256))} | by_folder()).items():
                archive.writestr(name, data)
        broken = bytearray(body.getvalue())
        broken[48:80] = bytes(255 - byte for byte in broken[48:80])
        assert any(
            text.startswith("Members that cannot be unpacked: 1.") for text in found(checked(("a", bytes(broken))))
        )


def test_a_name_that_no_zip_can_give_back_is_refused(checked: Any) -> None:
    body = tarred({**by_folder(2), f"cat/{'x' * 70_000}.png": png(1)})
    assert "a name of 70008 characters" in str(found(checked(("a.tar.gz", body))))


def test_an_encrypted_zip_says_so(checked: Any) -> None:
    body = bytearray(zipped(by_folder(2)))
    at = body.index(b"PK\x01\x02")
    body[at + 8] |= 1
    assert list(found(checked(("a.zip", bytes(body))))) == [
        "The archive is encrypted: pack it anew without a password."
    ]


def test_a_member_with_a_wrong_checksum_is_found(checked: Any) -> None:
    files = by_folder()
    body = io.BytesIO()
    with zipfile.ZipFile(body, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    broken = bytearray(body.getvalue())
    broken[broken.index(files["dog/3.png"]) + 60] ^= 0xFF
    texts = found(checked(("a.zip", bytes(broken))))
    assert [text for text in texts if text.startswith("Members that cannot be unpacked: 1.")]


# --- folders ---------------------------------------------------------------------------------


def test_a_folder_is_read_like_an_archive_and_its_links_are_not(checked: Any, tmp_path: Path) -> None:
    folder = tmp_path / "pets"
    for name, data in by_folder().items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    packed = checked(("a.zip", zipped(dict(sorted(by_folder().items())))))
    outcome = checked(("pets", folder))
    assert outcome.fit and outcome.content_hash == packed.content_hash
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret/s.png").write_bytes(png(70))
    (folder / "cat/link.png").symlink_to(tmp_path / "secret/s.png")
    (folder / "secret").symlink_to(tmp_path / "secret")
    os.mkfifo(folder / "dog/pipe.png")
    texts = found(checked(("pets", folder)))
    assert texts["Members that are links or no files, which are never followed: 2."] == ["cat/link.png", "dog/pipe.png"]


def test_a_file_that_becomes_a_link_meanwhile_is_not_read(tmp_path: Path) -> None:
    for folder in ("pets/cat", "secret"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "pets/cat/0.png").write_bytes(png(1))
    (tmp_path / "secret/0.png").write_bytes(b"secret")
    archive = archives.opened(Source(tmp_path / "pets", "pets"))
    assert archive.look().names == ["cat/0.png"]
    (tmp_path / "pets/cat").rename(tmp_path / "pets/old")
    (tmp_path / "pets/cat").symlink_to(tmp_path / "secret")
    ((number, data),) = archive.read({1})
    archive.close()
    assert number == 1 and not isinstance(data, bytes)


# --- what pages show -------------------------------------------------------------------------


def test_large_samples_have_thumbnails_behind_the_pictures(checked: Any, tmp_path: Path) -> None:
    files = by_folder() | {"cat/large.png": png(4, (300, 200))}
    outcome = checked(("a.zip", zipped(files)), reading=IMAGES.model_copy(update={"dev_fraction": 0.05}))
    samples = outcome.statistics["samples"]
    assert len([one for one in samples["train"] if one["label"] == "cat"]) == 6
    with Images(tmp_path / "target") as images:
        for one in samples["train"] + samples["dev"]:
            assert images.read(*one["of"]) == files[one["id"]]
            assert max(decode(images.read(*one["image"])).shape) <= 192
    small = [one for one in samples["train"] if one["size"] == [20, 12]]
    assert small and all(one["image"] == one["of"] for one in small)


def test_lists_may_be_chosen_with_their_splits(checked: Any, tmp_path: Path) -> None:
    files = {f"{i}.png": png(i, (60, 16)) for i in range(20)}
    lists = {
        "a.txt": "".join(f"{i}.png\tt{i}\n" for i in range(10)).encode(),
        "b.txt": "".join(f"{i}.png\tt{i % 10}\n" for i in range(10, 15)).encode(),
        "c.txt": b"19.png\tother\n",
    }
    how = ImageReading(
        layout="lists",
        lists=[
            ListFile(name="a.txt", split="train"), ListFile(name="b.txt", split="dev"), ListFile(name="c.txt", split="out")
        ],
    )  # fmt: skip
    outcome = checked(("a.zip", zipped({**files, **lists})), reading=Reading(kind="lines", images=how))
    assert outcome.splits == {"train": 10, "dev": 5}
    gone = how.model_copy(update={"lists": [ListFile(name="d.txt")]})
    outcome = checked(("a.zip", zipped({**files, **lists})), reading=Reading(kind="lines", images=gone))
    assert list(found(outcome)) == ["There is no label file “d.txt”."]
