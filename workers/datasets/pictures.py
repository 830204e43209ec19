"""Pictures with labels, and pictures of text lines: each decoded once, written once, judged and measured.

Memory grows with the number of pictures (some 600 bytes each with their names), not with their size: they pass through, a
few at a time in threads.
"""

from __future__ import annotations

import hashlib
import operator
import os
import shutil
import threading
import unicodedata
from array import array
from collections import Counter, deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from workers.contract.datasets import MOST_PIXELS, SPLITS, WEIGHT, Reading, RowRef
from workers.contract.records import to_json_number
from workers.datasets import layouts, measures, splits, weights
from workers.datasets.archives import Archive
from workers.datasets.findings import MOST_ROWS, Findings, Level, Stage, Work
from workers.datasets.layouts import Rows, Store
from workers.datasets.measures import Numbers
from workers.datasets.parsing import BadRow, Unreadable, printable, problem
from workers.datasets.splits import DEV, TRAIN, set_apart
from workers.images import ImagesWriter, NoPicture, TooLarge, opened, row_line, thumbnail, verified

Seen = tuple[str, tuple[int, int], bool]

# Decoded at the same time, and read ahead of that at most.
THREADS, AHEAD, AHEAD_BYTES = min(4, os.cpu_count() or 1), 64, 64 * 2**20
# Pixels of a picture that takes so much memory that it is decoded alone; training will notice it, too.
LARGE_PIXELS = 4_000_000
MOST_TIGHT, MOST_LONG = 300, 50
TINY_SIDE, LONGEST_SHAPE, UPRIGHT = 8, 20.0, 1.5
# The height that text lines are most often read at: their width is measured so.
LINE_HEIGHT = 32
SAMPLE_LABELS, SAMPLES_OF_LABEL, SAMPLES_OF_SPLIT, NARROWEST = 40, 6, 24, 10
THUMBNAIL_SIDE, THUMBNAIL_FROM_BYTES = 192, 16 * 1024
MOST_CHARACTERS = 20_000
_ABSENT, _BROKEN = -1, -2


def check(work: Work) -> None:
    """See checking.py."""
    reading, findings, outcome, stage = work.reading, work.findings, work.outcome, work.stage
    with ExitStack() as stack:
        archived, stores, beside = layouts.look(work.sources, stack, stage)
        made = _Check(reading, stores, findings)
        for store in stores:
            for bad in store.contents.problems:
                made.complain(bad, store.name)
        stage("reading the label files", 0, 0)
        made.rows = layouts.named(reading, stores, beside, made.complain)
        outcome.columns = ["id", "image", made.said, "size", *([WEIGHT] if made.rows.weight else [])]
        made.tell_what_was_passed_over()
        writer = ImagesWriter(work.target)
        try:
            made.read(archived, work.target, writer, stage)
            stage("deciding the split", 0, 0)
            if not made.conclude():
                return
            made.judge()
            if not findings.fit:
                return
            stage("looking for duplicates", 0, 0)
            outcome.statistics = made.measure()
            outcome.content_hash = made.write(work.scratch, work.target, writer, outcome.statistics, stage)
        finally:
            writer.close()
        outcome.labels = made.ordered_labels() if reading.kind == "images" else []
        outcome.splits = dict(outcome.statistics["rows"])


@dataclass
class _Pictures:
    """Of those that were read, in that order."""

    places: list[tuple[int, int]] = field(default_factory=list)
    widths: array[int] = field(default_factory=lambda: array("I"))
    heights: array[int] = field(default_factory=lambda: array("I"))
    colours: array[int] = field(default_factory=lambda: array("B"))
    formats: list[str] = field(default_factory=list)


class _Check:
    def __init__(self, reading: Reading, stores: list[Store], findings: Findings) -> None:
        self.reading, self.stores, self.findings = reading, stores, findings
        self.said = "label" if reading.kind == "images" else "text"
        self.rows = Rows()
        self.pictures = _Pictures()
        self.bad_rows = 0
        # Per store and member the index of its picture, or _ABSENT or _BROKEN.
        self._index: list[Numbers] = []
        # From here on of rows without fault, in order; `_row` is where they stand in `rows`.
        self._row = self._picture = self._hashes = self._said_of = self.codes = np.empty(0, np.int64)
        self.labels: dict[str, int] = {}  # or texts

    def complain(self, bad: BadRow, name: str) -> None:
        self.bad_rows += 1
        level: Level = "warning" if self.reading.leave_out else "error"
        self.findings.row(level, bad, name)

    def tell_what_was_passed_over(self) -> None:
        rows = self.rows
        for store in self.stores:
            for name, size in store.contents.unread.items():
                unread = layouts.too_large(name, size)
                self.findings.add("warning", unread.template, None, **unread.values)
        if rows.out:
            self.findings.found_note("Rows of the test split, which are not used: %(count)d.", count=rows.out)
        if rows.others:
            self.findings.found_note("Files that are no pictures and were passed over: %(count)d.", count=rows.others)
        if rows.unnamed:
            at = []
            for number, member in rows.unnamed[:MOST_ROWS]:
                store = self.stores[number]
                name = store.contents.names[member]
                at.append(RowRef(file=store.name, row=store.contents.numbers[member], shown=printable(name)))
            self.findings.found_warning(
                "Pictures that no line of a label file names and that were left out: %(count)d.",
                at,
                count=len(rows.unnamed),
            )

    # --- the pictures ------------------------------------------------------------------------

    def read(self, archived: list[Archive], target: Path, writer: ImagesWriter, stage: Stage) -> None:
        rows, pictures = self.rows, self.pictures
        of_store, of_member = np.frombuffer(rows.store, np.uint16), np.frombuffer(rows.member, np.uint32)
        wanted = [np.unique(of_member[of_store == at]) for at in range(len(self.stores))]
        total = sum(
            int(np.frombuffer(store.contents.sizes, np.uint64)[of].sum())
            for store, of in zip(self.stores, wanted, strict=True)
            if len(of)
        )
        if total > shutil.disk_usage(target).free:
            raise Unreadable(
                "The storage has not enough room for %(size)s of pictures.", size=f"{total / 2**30:.1f} GiB"
            )
        broken: dict[tuple[int, int], BadRow] = {}
        done = 0
        for at, (archive, store) in enumerate(zip(archived, self.stores, strict=True)):
            contents = store.contents
            index = np.full(len(contents.names), _ABSENT, np.int64)
            self._index.append(index)
            members = {contents.numbers[member]: int(member) for member in wanted[at]}
            for number, data, seen in _decoded(archive.read(members)):
                member = members[number]
                done += contents.sizes[member]
                stage("reading pictures", done, total)
                if isinstance(seen, BadRow):
                    broken[at, member] = seen
                    index[member] = _BROKEN
                    continue
                form, (width, height), colours = seen
                index[member] = len(pictures.places)
                pictures.places.append(writer.add(data))
                pictures.widths.append(width)
                pictures.heights.append(height)
                pictures.colours.append(colours)
                pictures.formats.append(form)
        for row, key in enumerate(zip(rows.store, rows.member, strict=True)):
            if self._index[key[0]][key[1]] < 0:
                bad = broken.get(key) or problem("Pictures that are no longer there: %(count)d.", 0)
                # What an archive complains of may begin with the member's name.
                name = self.stores[key[0]].contents.names[key[1]]
                said = bad.shown.removeprefix(printable(name)).removeprefix(": ")
                shown = printable(f"{self.name(row)}: {said}".removesuffix(": "), 200)
                self.complain(BadRow(rows.number[row], bad.template, shown, bad.values), rows.files[rows.file[row]])

    def name(self, row: int) -> str:
        """The id of a row: the picture's path, with the archive's name if there are several."""
        store = self.stores[self.rows.store[row]]
        name = store.contents.names[self.rows.member[row]]
        return f"{store.name.partition('.')[0]}/{name}" if len(self.stores) > 1 else name

    def conclude(self) -> bool:
        """Whether there are rows, and none that refuses the rest; then they have their splits."""
        rows, places = self.rows, self.pictures.places
        keys = zip(rows.store, rows.member, strict=True)
        of = np.fromiter((self._index[store][member] for store, member in keys), np.int64, len(rows))
        self._row = np.flatnonzero(of >= 0)
        if not len(rows) and not self.bad_rows:
            self.findings.found_error("There are no pictures.")
        elif not len(self._row):
            self.findings.found_error("No row can be used.")
        elif self.reading.leave_out and self.bad_rows:
            self.findings.found_warning("Rows with errors that were left out: %(count)d.", count=self.bad_rows)
        if not len(self._row) or not self.findings.fit:
            return False
        self._picture = of[self._row]
        # Equal pictures lie at the same place.
        self._hashes = np.fromiter((offset for offset, _size in places), np.int64, len(places))[self._picture]
        known = self.labels
        self._said_of = np.fromiter(
            (known.setdefault(rows.said[row], len(known)) for row in self._row), np.int64, len(self._row)
        )
        of_label = (self._said_of == known[label] for label in sorted(known))
        strata = of_label if self.said == "label" else iter([True])
        self.codes = set_apart(np.frombuffer(rows.split, np.uint8)[self._row], strata, self.reading)
        return True

    def ordered_labels(self) -> list[str]:
        ordered = list(self.reading.labels) or [label for label in self.rows.order if label in self.labels]
        return ordered + sorted(set(self.labels) - set(ordered))

    # --- what is wrong with them -------------------------------------------------------------

    def _refs(self, at: Numbers) -> list[RowRef]:
        rows = self.rows
        return [
            RowRef(file=rows.files[rows.file[row]], row=rows.number[row], shown=printable(self.name(row), 200))
            for row in self._row[at[:MOST_ROWS]].tolist()
        ]

    def found_warning(self, template: str, which: Numbers, **values: Any) -> None:
        """`which`: a mask of rows, or their indices; nothing if there are none."""
        at = np.flatnonzero(which) if which.dtype == bool else which
        if len(at):
            self.findings.add("warning", template, self._refs(at), count=len(at), **values)

    def judge(self) -> None:
        train, dev = self.codes == TRAIN, self.codes == DEV
        if not splits.check_splits(self.codes, self.findings):
            return
        if self.rows.weight:
            weights.judge(self._weights, self.codes, self._refs, self.findings)
        if self.said == "label":
            self._judge_labels()
        else:
            self._judge_texts(train, dev)
        if self.findings.fit:
            self._judge_sizes()

    def _judge_labels(self) -> None:
        unused = [label for label in self.reading.labels if label not in self.labels]
        names = self.labels | {label: len(self.labels) + i for i, label in enumerate(unused)}
        splits.check_labels(names, self._said_of, self.codes, self._refs, self.findings)
        cases = Counter(name.casefold() for name in names)
        alike = sorted(name for name in names if cases[name.casefold()] > 1)
        if alike:
            self.findings.found_warning(
                "Labels that differ in upper and lower case only: %(labels)s.", labels=printable(", ".join(alike), 200)
            )

    def _judge_texts(self, train: Numbers, dev: Numbers) -> None:
        texts = list(self.labels)

        def rows_of(fits: Any) -> Numbers:
            return np.fromiter(map(fits, texts), bool, len(texts))[self._said_of]

        known = {c for i in np.unique(self._said_of[train]).tolist() for c in texts[i]}
        if len(known) > MOST_CHARACTERS:
            self.findings.found_error(
                "The texts have %(count)d different characters, and at most %(limit)d can be learnt: leave out lines with rare ones.",
                count=len(known),
                limit=MOST_CHARACTERS,
            )
        unseen = dev & rows_of(lambda text: not known.issuperset(text))
        strange = sorted({c for i in np.unique(self._said_of[unseen]).tolist() for c in texts[i]} - known)
        self.found_warning(
            "Rows of dev with characters that no training row has, so that they are never read right: %(count)d (%(characters)s).",
            unseen,
            characters=printable(" ".join(strange), 100),
        )
        self.found_warning(
            "Texts that begin or end with a space: %(count)d.", rows_of(lambda text: text != text.strip())
        )
        self.found_warning(
            "Texts with invisible characters: %(count)d.",
            rows_of(lambda text: any(unicodedata.category(c) in ("Cf", "Co", "Cn") for c in text)),
        )
        self.found_warning(
            "Texts with letters and their accents apart (not Unicode's form NFC): %(count)d. Each accent counts as a character.",
            rows_of(lambda text: not unicodedata.is_normalized("NFC", text)),
        )

    def _judge_sizes(self) -> None:
        width, height = self._sizes()
        self.found_warning(
            "Pictures less than %(side)d pixels wide or high: %(count)d.",
            np.minimum(width, height) < TINY_SIDE,
            side=TINY_SIDE,
        )
        large = np.flatnonzero(width * height > LARGE_PIXELS)
        if len(large):
            self.findings.found_note(
                "Pictures of more than %(pixels)d million pixels: %(count)d. Each epoch decodes them anew; shrunk before the upload they train faster.",
                self._refs(large),
                pixels=LARGE_PIXELS // 10**6,
                count=len(large),
            )
        if self.said == "label":
            self.found_warning(
                "Pictures more than %(times)d times as long as they are wide: %(count)d. Little is left of them in a square.",
                np.maximum(width, height) > LONGEST_SHAPE * np.minimum(width, height),
                times=int(LONGEST_SHAPE),
            )
            return
        lengths, _steps = self._lengths()
        self.found_warning(
            "Pictures of several characters that are higher than wide: %(count)d. Turn them, if they lie on their side.",
            (height > UPRIGHT * width) & (lengths > 1),
        )
        self.found_warning(
            "Pictures too narrow for their text: %(count)d. At a height of %(height)d pixels they have less than one pixel per character.",
            self._width_per_step() < 1,
            height=LINE_HEIGHT,
        )

    # --- measuring ---------------------------------------------------------------------------

    @property
    def _weights(self) -> Numbers:
        return np.frombuffer(self.rows.weight, np.float64)[self._row]

    def _sizes(self) -> tuple[Numbers, Numbers]:
        pictures = self.pictures
        width, height = (np.frombuffer(of, np.uint32)[self._picture] for of in (pictures.widths, pictures.heights))
        return width.astype(np.int64), height.astype(np.int64)

    def _lengths(self) -> tuple[Numbers, Numbers]:
        """Of each row's text the characters, and the steps that CTC needs: one more between two that are equal."""
        texts = list(self.labels)
        lengths = np.fromiter(map(len, texts), np.int64, len(texts))
        again = np.fromiter((sum(map(operator.eq, text, text[1:])) for text in texts), np.int64, len(texts))
        return lengths[self._said_of], (lengths + again)[self._said_of]

    def _width_per_step(self) -> Numbers:
        width, height = self._sizes()
        return width * LINE_HEIGHT / height / self._lengths()[1]

    def measure(self) -> dict[str, Any]:
        """See CheckResult."""
        of = measures.of_splits(self.codes)
        width, height = self._sizes()
        formats, colours = np.array(self.pictures.formats), np.frombuffer(self.pictures.colours, np.uint8)
        found: dict[str, Any] = {
            "rows": {split: int(at.sum()) for split, at in of.items()},
            "formats": {
                split: {str(form): int((formats[self._picture[at]] == form).sum()) for form in np.unique(formats)}
                for split, at in of.items()
            },
            "colours": {split: int(colours[self._picture[at]].sum()) for split, at in of.items()},
            "width": {split: measures.percentiles(width[at]) for split, at in of.items()},
            "height": {split: measures.percentiles(height[at]) for split, at in of.items()},
            "duplicates": self._duplicates(),
            "baselines": {},
        }
        if self.rows.weight:
            found |= weights.statistics(self._weights, of)
        if self.said == "label":
            counts = found["label_counts"] = measures.counts(self._said_of, self.codes, self.labels)
            found["baselines"]["majority"] = measures.majority(counts)
            return found
        texts = list(self.labels)
        characters = {split: Counter[str]() for split in SPLITS}
        for split, at in of.items():
            for i in self._said_of[at].tolist():
                characters[split].update(texts[i])
        lengths, steps = self._lengths()
        per_step = self._width_per_step()
        unseen = set(characters["dev"]) - set(characters["train"])
        return found | {
            "characters": {split: dict(characters[split].most_common()) for split in SPLITS},
            "unseen_characters": {c: characters["dev"][c] for c in sorted(unseen)},
            "text_length": {split: measures.percentiles(lengths[at]) for split, at in of.items()},
            "length_histogram": measures.histogram(lengths, self.codes),
            "width_per_step": {
                split: {
                    "percentiles": np.percentile(per_step[at], range(101)).round(3).tolist(),
                    "tightest": np.stack([steps, width, height], axis=-1)[_tightest(at, per_step, steps)].tolist(),
                }
                for split, at in of.items()
            },
            "line_widths": {
                split: np.percentile((width * LINE_HEIGHT / height)[at], range(101)).round(1).tolist()
                for split, at in of.items()
            },
        }

    def _duplicates(self) -> dict[str, int]:
        """Rows whose picture is another row's, by its bytes."""
        twice = measures.duplicates(self._hashes, self.codes, self._said_of)
        for split, again in twice.again.items():
            self.found_warning("Rows of %(split)s whose picture occurs earlier in it: %(count)d.", again, split=split)
        self.found_warning(
            "Rows of dev whose picture is among the training rows: %(count)d. The evaluation looks better than it is.",
            twice.leaked,
        )
        if self.said == "label":
            self.found_warning("Rows whose picture has another label elsewhere: %(count)d.", twice.contradicting)
        else:
            self.found_warning("Rows whose picture has another text elsewhere: %(count)d.", twice.contradicting)
        return twice.counted

    # --- writing -----------------------------------------------------------------------------

    def _line(self, at: int) -> tuple[str, tuple[int, int], tuple[int, int], str]:
        """Id, place and size of the picture, and what is said of it."""
        row, picture, pictures = int(self._row[at]), int(self._picture[at]), self.pictures
        size = (pictures.widths[picture], pictures.heights[picture])
        return self.name(row), pictures.places[picture], size, self.rows.said[row]

    def write(self, scratch: Path, target: Path, writer: ImagesWriter, statistics: dict[str, Any], stage: Stage) -> str:
        row_weights = self._weights if self.rows.weight else None
        with (scratch / "rows.jsonl").open("w", encoding="utf-8", errors="replace", newline="\n") as lines:
            for at in range(len(self.codes)):
                name, place, size, said = self._line(at)
                weight = {} if row_weights is None else {WEIGHT: to_json_number(float(row_weights[at]))}
                lines.write(row_line(name, place, size, {self.said: said, **weight}))
        rows_hash, _first = splits.write(scratch / "rows.jsonl", self.codes, target, stage)
        content = hashlib.sha256(f"rows {rows_hash}\nimages {writer.digest}\n".encode()).hexdigest()
        # What comes after this is for pages only: thumbnails, behind the pictures.
        stage("making thumbnails", 0, 0)
        statistics["samples"] = {
            split: [self._sample(at, writer) for at in self._chosen(code)] for code, split in enumerate(SPLITS)
        }
        if self.said == "text":
            per_step = self._width_per_step()
            for code, split in enumerate(SPLITS):
                mine = np.flatnonzero(self.codes == code)
                worst = mine[np.argsort(per_step[mine], kind="stable")[:NARROWEST]]
                statistics["width_per_step"][split]["narrowest"] = [
                    self._sample(i, writer) | {"value": round(float(per_step[i]), 3)} for i in worst.tolist()
                ]
        return content

    def _sample(self, at: int, writer: ImagesWriter) -> dict[str, Any]:
        name, place, size, said = self._line(at)
        shown = place
        if place[1] > THUMBNAIL_FROM_BYTES:
            with suppress(NoPicture):
                shown = writer.add(thumbnail(writer.read(*place), THUMBNAIL_SIDE))
        return {
            "id": printable(name, 200),
            self.said: printable(said, 200),
            "size": list(size),
            "image": list(shown),
            "of": list(place),
        }

    def _chosen(self, code: int) -> list[int]:
        """Rows of a split that pages show: of training some of each label, else some from all over it."""
        of_split = np.flatnonzero(self.codes == code)
        if self.said == "text" or code != TRAIN:
            return _evenly(of_split, SAMPLES_OF_SPLIT)
        counts = np.bincount(self._said_of[of_split], minlength=len(self.labels))
        commonest = sorted(self.labels, key=lambda label: (-counts[self.labels[label]], label))[:SAMPLE_LABELS]
        return [
            at
            for label in sorted(commonest)
            for at in _evenly(of_split[self._said_of[of_split] == self.labels[label]], SAMPLES_OF_LABEL)
        ]


def _tightest(at: Numbers, per_step: Numbers, steps: Numbers) -> Numbers:
    """Rows of the mask `at` that are the first not to fit a model that has more pixels per step, or a limit of its width."""
    mine = np.flatnonzero(at)
    narrow = mine[np.argsort(per_step[mine], kind="stable")[:MOST_TIGHT]]
    long = mine[np.argsort(-steps[mine], kind="stable")[:MOST_LONG]]
    return np.union1d(narrow, long)


def _evenly(rows: Numbers, most: int) -> list[int]:
    chosen: list[int] = rows[np.linspace(0, len(rows) - 1, min(most, len(rows))).round().astype(np.int64)].tolist()
    return chosen


# --- decoding --------------------------------------------------------------------------------


def _decoded(members: Iterator[tuple[int, bytes | BadRow]]) -> Iterator[tuple[int, bytes, Seen | BadRow]]:
    """In the order they come, decoded in threads: Pillow lets others run meanwhile."""
    waiting: deque[tuple[int, bytes, Future[Seen | BadRow]]] = deque()
    ahead = 0
    with ThreadPoolExecutor(THREADS) as pool:
        try:
            for number, read in members:
                data = b"" if isinstance(read, BadRow) else read
                waiting.append((number, data, pool.submit(_seen, number, read)))
                ahead += len(data)
                while len(waiting) > AHEAD or ahead > AHEAD_BYTES:
                    number, data, future = waiting.popleft()
                    ahead -= len(data)
                    yield number, data, future.result()
            while waiting:
                number, data, future = waiting.popleft()
                yield number, data, future.result()
        finally:
            pool.shutdown(cancel_futures=True)


_large = threading.Lock()


def _seen(number: int, read: bytes | BadRow) -> Seen | BadRow:
    if isinstance(read, BadRow):
        return read
    if not read:
        return problem("Pictures that are empty files: %(count)d.", number)
    try:
        width, height = opened(read).size
        if width * height <= LARGE_PIXELS:
            return verified(read)
        with _large:
            return verified(read)
    except TooLarge as error:
        limit = MOST_PIXELS // 10**6
        shown = f"{error.width} × {error.height}"
        return problem(
            "Pictures of more than %(limit)d million pixels: %(count)d. Shrink them.", number, shown, limit=limit
        )
    except NoPicture as error:
        return problem(
            "Files that are no whole picture (PNG, JPEG, BMP, WebP, GIF): %(count)d. Save them anew, or leave them out.",
            number,
            str(error),
        )
