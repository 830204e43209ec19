"""Datasets made of pictures on the web side: what an archive seems to hold before it is checked, and the pictures and all of
a dataset for download afterwards. Pictures are handed on as they are; what decodes them runs on hosts."""

from __future__ import annotations

import json
import os
import zipfile
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path, PurePosixPath
from typing import Any

from django.conf import settings
from django.utils.translation import gettext as _

from jobs.models import Dataset
from workers.contract.datasets import IMAGES, PICTURE_KINDS, SPLITS, WEIGHT, ImageReading, Kind, Reading
from workers.datasets import layouts, places
from workers.datasets.findings import Source
from workers.datasets.layouts import Store
from workers.datasets.parsing import BadRow, Unreadable, printable
from workers.datasets.splits import DEV, OPEN, TRAIN

# Members of an archive that a page looks at; the check sees all.
FIRST_MEMBERS = 20_000
_ROWS, _LABELS, _PROBLEMS, _CHARACTERS = 12, 30, 8, 200
# By the first bytes.
_TYPES = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF8", "image/gif"),
    (b"BM", "image/bmp"),
)
TYPE_BYTES = 16


def are_pictures(dataset: Dataset) -> bool:
    """By where they come from: an archive or a folder holds nothing else."""
    files = dataset.source.get("files", [])
    return any(file.get("folder") or places.is_archive(file["name"]) for file in files)


# --- before the check ------------------------------------------------------------------------


@dataclass
class PictureLook:
    """What the first members of the archives seem to be, read as a reading says."""

    reading: Reading
    pictures: int = 0
    whole: bool = True  # or there are more members than were looked at
    lists: list[str] = field(default_factory=list)  # label files
    texts: list[str] = field(default_factory=list)  # files that may have names of labels
    rows: list[dict[str, str]] = field(default_factory=list)
    labels: list[dict[str, Any]] = field(default_factory=list)
    more_labels: int = 0
    splits: dict[str, int] = field(default_factory=dict)  # "train", "dev", "open", "out": rows
    unnamed: int = 0
    problems: list[tuple[BadRow, str]] = field(default_factory=list)
    problem: Unreadable | None = None


def sources_of(dataset: Dataset) -> list[Source]:
    """Raises Unreadable."""
    return [
        Source(Path(file["name"]), file["name"], file["split"], places.open_key(file["key"], settings.STORAGE_ROOT))
        if "key" in file
        else places.source_below(Path(file["path"]), file["name"], file["split"], settings.DATASET_ROOTS)
        for file in dataset.source["files"]
    ]


def look_at(sources: list[Source], reading: Reading | None = None) -> PictureLook:
    """With `reading`, or a guess. Raises Unreadable if it cannot be read in whichever way."""
    with ExitStack() as stack:
        _archives, stores, beside = layouts.look(sources, stack, lambda name, done, total: None, FIRST_MEMBERS)
        if reading is None:
            kind, how = layouts.guess(stores, beside)
            reading = Reading(kind=kind, images=how)
        look = PictureLook(reading, whole=all(store.contents.whole for store in stores))
        look.lists = [one.name for one in layouts.guessed_lists(stores, beside)]
        texts = {name for store in stores for name in store.contents.texts} | {name for name, _split, _body in beside}
        look.texts = sorted(texts - set(look.lists))[:100]
        look.pictures = sum(layouts.is_picture(name) for store in stores for name in store.contents.names)
        if look.whole and not look.pictures:
            raise Unreadable(
                "There are no pictures in it. Rows are uploaded as CSV, TSV, JSON Lines or CoNLL: unpack the archive first."
            )
        for store in stores:
            look.problems += [(bad, store.name) for bad in store.contents.problems]
        try:
            _fill(look, stores, beside)
        except Unreadable as error:
            look.problem = error
        # Pictures that a label file names may lie further on.
        look.problems = look.problems[:_PROBLEMS] if look.whole else []
    return look


def _fill(look: PictureLook, stores: list[Store], beside: list[tuple[str, str, bytes]]) -> None:
    rows = layouts.named(look.reading, stores, beside, lambda bad, name: look.problems.append((bad, name)))
    names = {OPEN: "open", TRAIN: "train", DEV: "dev"}
    counts = Counter(rows.split)
    look.splits = {name: counts[code] for code, name in names.items() if counts[code]}
    if rows.out:
        look.splits["out"] = rows.out
    look.unnamed = len(rows.unnamed)
    step = max(len(rows) // _ROWS, 1)
    for row in range(0, len(rows), step)[:_ROWS]:
        look.rows.append(
            {
                "split": names[rows.split[row]],
                "said": printable(rows.said[row], _CHARACTERS),
                "name": printable(stores[rows.store[row]].contents.names[rows.member[row]], _CHARACTERS),
                "weight": f"{rows.weight[row]:g}" if rows.weight else "",
            }
        )
    if look.reading.kind == "images":
        labels = Counter(rows.said)
        look.labels = [
            {"label": printable(label, _CHARACTERS), "count": count} for label, count in sorted(labels.items())
        ][:_LABELS]
        look.more_labels = len(labels) - len(look.labels)


def guessed(look: PictureLook, kind: Kind) -> ImageReading:
    """Of the other kind than was guessed: label files stay chosen."""
    how = look.reading.images
    return how.model_copy(update={"layout": "lists"}) if kind == "lines" or how.lists else how


# --- after it --------------------------------------------------------------------------------


def images_path(dataset: Dataset) -> Path | None:
    """None if the dataset is not ready or has no pictures."""
    root = settings.STORAGE_ROOT.resolve()
    path: Path = (root / dataset.key / IMAGES).resolve()
    if dataset.state != Dataset.State.READY or dataset.kind not in PICTURE_KINDS or not path.is_relative_to(root):
        return None
    return path


def page(dataset: Dataset) -> dict[str, Any]:
    """What the page of a dataset shows of pictures beside what it shows of all."""
    if dataset.kind not in PICTURE_KINDS:
        return {}
    statistics = dataset.statistics
    sheets = []
    if dataset.kind == "images":
        for label, rows in groupby(statistics.get("samples", {}).get("train", []), key=lambda row: row["label"]):
            counts = {split: statistics["label_counts"][split].get(label, 0) for split in SPLITS}
            sheets.append({"label": label, "rows": list(rows), **counts})
    characters = Counter(statistics.get("characters", {}).get("train", {}))
    per_step = statistics.get("width_per_step", {})
    return {
        "sheets": sheets,
        "more_labels": len(dataset.labels) - len(sheets),
        "sizes": [
            {"title": title, "values": statistics.get(name, {}).get("train")}
            for title, name in ((_("Width"), "width"), (_("Height"), "height"))
        ],
        "formats": statistics.get("formats", {}).get("train", {}),
        "characters": [(shown(c), count) for c, count in characters.most_common(_CHARACTERS)],
        "character_count": len(characters),
        "unseen": [(shown(c), count) for c, count in statistics.get("unseen_characters", {}).items()][:_CHARACTERS],
        "narrowest": [(split, row) for split in SPLITS for row in per_step.get(split, {}).get("narrowest", [])][:12],
        "per_step": {split: _few(of["percentiles"]) for split, of in per_step.items()},
    }


def _few(percentiles: list[float]) -> dict[str, float]:
    return {name: percentiles[p] for name, p in (("min", 0), ("p1", 1), ("p10", 10), ("p50", 50), ("max", 100))}


def shown(character: str) -> str:
    return "␣" if character == " " else character


def content_type(head: bytes) -> str:
    """Of a picture by its first bytes; empty if it is none."""
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "image/webp"
    return next((name for magic, name in _TYPES if head.startswith(magic)), "")


def packed(folder: Path) -> Iterator[bytes]:
    """All rows and pictures of a prepared folder as a zip, piece by piece: the pictures by their ids, and a label file per
    split, as they can be uploaded again. Raises FileNotFoundError before the first piece."""
    with (folder / IMAGES).open("rb", buffering=0) as images:
        sink = _Sink()
        written: dict[str, list[int]] = {}
        with zipfile.ZipFile(sink, "w", zipfile.ZIP_DEFLATED, compresslevel=0) as archive:
            for split in SPLITS:
                said: list[str] = []
                with (folder / f"{split}.jsonl").open(encoding="utf-8") as lines:
                    for line in lines:
                        row = json.loads(line)
                        name, (offset, size) = row["id"], row["image"]
                        if written.get(name, row["image"]) != row["image"]:
                            # Archives may hold several pictures of one name.
                            name = f"{PurePosixPath(name).with_suffix('')}-{offset}{PurePosixPath(name).suffix}"
                        weight = f"\t{row[WEIGHT]}" if WEIGHT in row else ""
                        said.append(f"{name}\t{row['text'] if 'text' in row else row['label']}{weight}\n")
                        if name not in written:
                            written[name] = row["image"]
                            archive.writestr(name, os.pread(images.fileno(), size, offset))
                            yield sink.take()
                archive.writestr(f"{split}.txt", "".join(said), compresslevel=6)
                yield sink.take()
        yield sink.take()


class _Sink:
    """What zipfile writes to, and cannot go back in."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def write(self, data: bytes) -> int:
        self._parts.append(bytes(data))
        return len(data)

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass

    def take(self) -> bytes:
        body = b"".join(self._parts)
        self._parts.clear()
        return body
