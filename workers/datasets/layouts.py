"""What belongs to the pictures of an archive: their folder's name is a label, or label files name them. Knows names and
label files only; the pictures themselves are pictures.py's."""

from __future__ import annotations

import csv
import re
import unicodedata
from array import array
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import chain, islice, takewhile

from workers.contract.datasets import SPLITS, ImageReading, Kind, ListFile, Reading
from workers.datasets import archives, weights
from workers.datasets.archives import PICTURE_SUFFIXES, Archive, Contents, names_pictures, suffix
from workers.datasets.findings import Source, Stage
from workers.datasets.parsing import BOM, BadRow, Unreadable, printable, problem
from workers.datasets.splits import DEV, OPEN, OUT, TRAIN

MOST_LABELS = 10_000
LONGEST_LABEL, LONGEST_TEXT = 200, 1000
MOST_LISTS = 20
_SPLITS = {
    **dict.fromkeys(("train", "training", "训练", "训练集"), TRAIN),
    **dict.fromkeys(("dev", "val", "valid", "validation", "eval", "evaluation", "验证", "验证集", "开发集"), DEV),
    **dict.fromkeys(("test", "testing", "测试", "测试集"), OUT),
}
_BESIDE_SPLITS = {"set", "data", "images", "imgs", "image", "img", "split", "pictures"}
_CODES = {"": OPEN, "train": TRAIN, "dev": DEV, "out": OUT}

Complain = Callable[[BadRow, str], None]


@dataclass
class Store:
    """An archive and what was seen in it."""

    name: str
    split: str  # "": to be decided
    contents: Contents


@dataclass
class Label:
    """A file with a line per picture."""

    name: str
    split: int
    body: bytes
    folder: str  # paths may begin here
    stores: list[int]

    def parts(self, kind: Kind, weights: bool = False) -> Iterator[tuple[int, str, str, str, BadRow | None]]:
        """Of each line that is not blank its number, path, text or label, and weight as it stands there."""
        sign = archives.separator(self.body[:65536])
        for number, line, bad in _lines(self.body):
            path, said, weight = "", "", ""
            if bad is None and weights:
                line, weight = _without_weight(line, sign)
            if bad is None:
                path, said, bad = _parts(line, number, kind, sign)
            if number == 1 and sign == b"," and not is_picture(path) and not archives.is_other_picture(path):
                continue  # the names of the columns
            yield number, path, said, weight, bad


@dataclass
class Rows:
    """What is known of each row before its picture is read: where the picture lies, what belongs to it, who said so."""

    store: array[int] = field(default_factory=lambda: array("H"))
    member: array[int] = field(default_factory=lambda: array("I"))  # index into the contents' names
    said: list[str] = field(default_factory=list)
    split: array[int] = field(default_factory=lambda: array("B"))
    file: array[int] = field(default_factory=lambda: array("H"))
    number: array[int] = field(default_factory=lambda: array("I"))
    weight: array[float] = field(default_factory=lambda: array("d"))  # empty if there are none
    files: list[str] = field(default_factory=list)
    out: int = 0  # rows of the test split, which are not here
    unnamed: list[tuple[int, int]] = field(default_factory=list)  # store and member of pictures that no line names
    order: list[str] = field(default_factory=list)  # of the labels, if a file says it
    others: int = 0  # members that are neither pictures nor label files

    def __len__(self) -> int:
        return len(self.said)

    def add(self, store: int, member: int, said: str, split: int, file: int, number: int) -> None:
        self.store.append(store)
        self.member.append(member)
        self.said.append(said)
        self.split.append(split)
        self.file.append(file)
        self.number.append(number)


def look(
    sources: list[Source], stack: ExitStack, stage: Stage, most: int = 0
) -> tuple[list[Archive], list[Store], list[tuple[str, str, bytes]]]:
    """What lies in the archives, and the label files beside them: name, split and body. Raises Unreadable."""
    archived, stores, beside = [], [], []
    whole = True
    for source in sources:
        if archives.suffix(source.name) in archives.TEXT_SUFFIXES:
            file = source.file or source.path.open("rb")
            with file:
                body = file.read((archives.HEAD_TEXT_BYTES if most else archives.LARGEST_LIST_BYTES) + 1)
            if most and len(body) > archives.HEAD_TEXT_BYTES:
                body, whole = body[: body.rfind(b"\n") + 1], False
            elif len(body) > archives.LARGEST_LIST_BYTES:
                raise Unreadable(
                    "The label file “%(name)s” has more than %(limit)s: divide it, and its pictures, into several datasets.",
                    name=source.name[:200],
                    limit=f"{archives.LARGEST_LIST_BYTES // 2**20} MiB",
                )
            beside.append((source.name, source.split, body))
            continue
        archive = archives.opened(source)
        stack.callback(archive.close)
        archived.append(archive)
        contents = archive.look(lambda done, total: stage("looking into the archive", done, total), most)
        stores.append(Store(source.name, source.split, contents))
    if not stores:
        raise Unreadable("A label file needs its pictures: an archive or a folder.")
    # Of an archive and label files of train and dev, the archive is of both.
    if len(stores) == 1 and beside:
        stores[0].split = ""
    stores[0].contents.whole &= whole
    return archived, stores, beside


def too_large(name: str, size: int) -> Unreadable:
    """Of a label file in an archive."""
    return Unreadable(
        "The label file “%(name)s” has %(size)s and was not read: at most %(limit)s of one, and %(together)s of all together, "
        "can be. Divide it, and its pictures, into several datasets.",
        name=printable(name, 200),
        size=f"{size / 2**20:.1f} MiB",
        limit=f"{archives.LARGEST_LIST_BYTES // 2**20} MiB",
        together=f"{archives.MOST_TEXT_BYTES // 2**20} MiB",
    )


def is_picture(name: str) -> bool:
    return suffix(name) in PICTURE_SUFFIXES


def named(reading: Reading, stores: list[Store], beside: list[tuple[str, str, bytes]], complain: Complain) -> Rows:
    """`beside` are label files by themselves: name, split and body. Raises Unreadable."""
    how = reading.images
    if how.layout == "lists" or reading.kind == "lines":
        rows = _by_lists(reading, how, stores, beside, complain)
    else:
        rows = _by_folders(reading, stores, complain)
    if DEV not in rows.split:
        # Of training rows only, a part is set apart.
        rows.split = array("B", bytes([OPEN]) * len(rows))
    return rows


# --- a folder per label ----------------------------------------------------------------------


def _by_folders(reading: Reading, stores: list[Store], complain: Complain) -> Rows:
    rows = Rows(files=[store.name for store in stores])
    labels = set(reading.labels)
    for at, store in enumerate(stores):
        contents = store.contents
        folders = FolderLayout([name for name in contents.names if _claims_to_be_one(name)])
        for member, name in enumerate(contents.names):
            number = contents.numbers[member]
            if not _claims_to_be_one(name):
                rows.others += 1
                continue
            label, split = folders.label_and_split(name)
            split = SPLITS.index(store.split) if store.split else split
            if split == OUT:
                rows.out += 1
                continue
            bad = _unread(name, number)
            if not bad and not label:
                bad = problem("Pictures that lie in no folder of a label: %(count)d.", number, name)
            if bad := bad or _label_fault(label, number, labels, reading):
                complain(bad, store.name)
            else:
                rows.add(at, member, label, split, at, number)
    return rows


def _claims_to_be_one(name: str) -> bool:
    return suffix(name) in PICTURE_SUFFIXES or archives.is_other_picture(name)


def _unread(name: str, number: int) -> BadRow | None:
    if archives.is_other_picture(name):
        return problem(
            "Pictures of a format that is not read: %(count)d. Save them as PNG, JPEG, BMP, WebP or GIF.", number, name
        )
    return None


class FolderLayout:
    """Of pictures by their folders: which part of the path is the split, and which the label."""

    def __init__(self, names: list[str]) -> None:
        folders = {name.rpartition("/")[0] for name in names}
        parts = sorted(folder.split("/") if folder else [] for folder in folders)
        # What all have in common says nothing.
        root = _common(parts[0], parts[-1]) if parts else []
        self._depth = len(root)
        tops = {part[self._depth] for part in parts if len(part) > self._depth}
        if not tops and root and split_of_folder(root[-1]) is None:
            # One folder only: its name is the one label.
            self._depth -= 1
            tops = {root[-1]}
        splits = {top: split_of_folder(top) for top in tops}
        found = set(splits.values()) - {None}
        self.has_splits = TRAIN in found or (len(found) > 1 and None not in splits.values())

    def label_and_split(self, name: str) -> tuple[str, int]:
        parts = name.split("/")[self._depth : -1]
        split: int | None = OPEN
        if self.has_splits:
            split = split_of_folder(parts[0]) if parts else None
            parts = parts[1:] if split is not None else []
        return parts[0].strip() if parts else "", OPEN if split is None else split


def _common(first: list[str], last: list[str]) -> list[str]:
    return [one for one, _ in takewhile(lambda both: both[0] == both[1], zip(first, last, strict=False))]


def split_of_folder(name: str) -> int | None:
    words = [word for word in re.split(r"[\W_]+", name.lower()) if word and word not in _BESIDE_SPLITS]
    return _SPLITS.get(words[0]) if len(words) == 1 else None


def _label_fault(label: str, number: int, labels: set[str], reading: Reading) -> BadRow | None:
    if len(label) > LONGEST_LABEL:
        return problem(
            "Rows with a label longer than %(limit)d characters: %(count)d.",
            number,
            f"{len(label)}: {label}",
            limit=LONGEST_LABEL,
        )
    if not label.isprintable():
        return problem("Rows with a control character in the label: %(count)d.", number, label)
    if reading.labels and label not in labels:
        return problem("Rows with a label outside of the label set: %(count)d.", number, label)
    if not reading.labels:
        labels.add(label)
        if len(labels) > MOST_LABELS:
            raise Unreadable("There are more than %(limit)d different labels: is the layout right?", limit=MOST_LABELS)
    return None


# --- label files -----------------------------------------------------------------------------


def _by_lists(
    reading: Reading,
    how: ImageReading,
    stores: list[Store],
    beside: list[tuple[str, str, bytes]],
    complain: Complain,
) -> Rows:
    lists = _lists(how, stores, beside)
    rows = Rows(files=[one.name for one in lists])
    pictures = [_Places(store.contents.names) for store in stores]
    used = [bytearray(len(store.contents.names)) for store in stores]
    labels = set(reading.labels)
    names = label_names(_text_of(how.label_names, stores, beside)) if how.label_names else {}
    rows.order = list(dict.fromkeys(names.values()))
    for file, one in enumerate(lists):
        for number, path, said, given, bad in one.parts(reading.kind, how.weights):
            if bad is None and one.split == OUT:
                rows.out += 1
                for store, member in pictures_of(path, one, pictures):
                    used[store][member] = 1
                continue
            places = pictures_of(path, one, pictures) if bad is None else []
            if bad is None and not places:
                bad = problem(
                    "Lines whose picture is not there: %(count)d. Add the pictures, or take the lines out.",
                    number,
                    path,
                )
            if places:
                used[places[0][0]][places[0][1]] = 1
            if bad is None and reading.kind == "lines":
                bad = _text_fault(said, number)
            elif bad is None:
                if names:
                    said = names.get(said, said)
                bad = _label_fault(said, number, labels, reading)
            if bad is None:
                bad = _unread(path, number)
            weight = weights.read(given, number) if how.weights and bad is None else 1.0
            if isinstance(weight, BadRow):
                bad = weight if given else replace(weight, shown=printable(path))
            if bad is not None:
                complain(bad, one.name)
            else:
                if how.weights and isinstance(weight, float):
                    rows.weight.append(weight)
                split = one.split
                if split == OPEN and (given := stores[places[0][0]].split):
                    split = SPLITS.index(given)
                rows.add(*places[0], said, split, file, number)
    rows.unnamed = [
        (at, member)
        for at, store in enumerate(stores)
        for member, name in enumerate(store.contents.names)
        if not used[at][member] and _claims_to_be_one(name)
    ]
    return rows


def _lists(how: ImageReading, stores: list[Store], beside: list[tuple[str, str, bytes]]) -> list[Label]:
    chosen = how.lists or guessed_lists(stores, beside)
    wanted = {one.name for one in how.lists}
    for store in stores:
        for name, size in store.contents.unread.items():
            if not wanted or name in wanted:
                raise too_large(name, size)
    lists = []
    everywhere = list(range(len(stores)))
    for one in chosen:
        code = _CODES[one.split]
        found = [Label(name, code, body, "", everywhere) for name, _split, body in beside if name == one.name] or [
            Label(
                one.name,
                _CODES[store.split] if store.split else code,
                store.contents.texts[one.name],
                one.name.rpartition("/")[0],
                [at],
            )
            for at, store in enumerate(stores)
            if one.name in store.contents.texts
        ]
        if not found:
            raise Unreadable("There is no label file “%(name)s”.", name=one.name[:200])
        lists += found
    if not lists:
        raise Unreadable(
            "There is no label file: a text file whose lines have the path of a picture, a tab, and what belongs to it. Pack it "
            "with the pictures, or upload it beside them."
        )
    if len(lists) > MOST_LISTS:
        raise Unreadable(
            "There are %(count)d label files, and at most %(limit)d can be read: put some together.",
            count=len(lists),
            limit=MOST_LISTS,
        )
    for label in lists:
        if b'[{"transcription"' in label.body[:4096]:
            raise Unreadable(
                "The label file “%(name)s” is one of text detection, with boxes: export it for recognition (rec_gt.txt).",
                name=label.name[:200],
            )
    return lists


def guessed_lists(stores: list[Store], beside: list[tuple[str, str, bytes]]) -> list[ListFile]:
    """All that name pictures, with the split that was given or that their names say. Where there are files of train and test only, as with
    PaddleOCR, the test file is for evaluation."""
    found = [name for name, _split, body in beside if names_pictures(body[:65536])]
    found += sorted({name for store in stores for name, body in store.contents.texts.items() if names_pictures(body)})
    splits = {name: _split_of_file(name) for name in found}
    splits |= {name: _CODES[split] for name, split, _body in beside if split and name in splits}
    test = DEV if TRAIN in splits.values() and DEV not in splits.values() else OUT
    words = {TRAIN: "train", DEV: "dev", OUT: "dev" if test == DEV else "out", None: ""}
    return [ListFile(name=name, split=words[splits[name]]) for name in found]


def _split_of_file(name: str) -> int | None:
    words = re.split(r"[\W_\d]+", name.rpartition("/")[2].lower())
    return next((_SPLITS[word] for word in words if word in _SPLITS), None)


def _text_of(name: str, stores: list[Store], beside: list[tuple[str, str, bytes]]) -> bytes:
    for other, _split, body in beside:
        if other == name:
            return body
    for store in stores:
        if name in store.contents.texts:
            return store.contents.texts[name]
    raise Unreadable("There is no file “%(name)s” with the names of the labels.", name=name[:200])


def label_names(body: bytes) -> dict[str, str]:
    """What stands in label files → its name: of “0 cat” in a line, or of a name in each, from 0."""
    lines = [line.strip() for line in _decoded(body).splitlines() if line.strip()]
    numbered = [re.fullmatch(r"(\d+)[\s,:]+(.+)", line) for line in lines]
    if all(numbered):
        return {match[1]: match[2].strip() for match in numbered if match}
    return {str(i): line for i, line in enumerate(lines)}


def _decoded(body: bytes) -> str:
    body = body.removeprefix(BOM)
    for encoding in ("utf-8", "gb18030"):
        try:
            return body.decode(encoding)
        except UnicodeDecodeError:
            continue
    return body.decode("utf-8", "replace")


def _lines(body: bytes) -> Iterator[tuple[int, str, BadRow | None]]:
    """Lines that are not blank, with their numbers. UTF-8, or all of it GB18030."""
    body = body.removeprefix(BOM)
    encoding = "utf-8"
    try:
        body.decode(encoding)
    except UnicodeDecodeError:
        try:
            body.decode("gb18030")
            encoding = "gb18030"
        except UnicodeDecodeError:
            pass
    for number, raw in enumerate(body.split(b"\n"), 1):
        raw = raw.rstrip(b"\r")
        if not raw.strip():
            continue
        try:
            yield number, raw.decode(encoding), None
        except UnicodeDecodeError:
            shown = raw.decode(encoding, "replace")
            yield number, "", problem("Rows that are not %(encoding)s: %(count)d.", number, shown, encoding="UTF-8")


def _parts(line: str, number: int, kind: Kind, sign: bytes | None) -> tuple[str, str, BadRow | None]:
    """Path, text or label."""
    path, tab, said = line.partition("\t")
    if not tab and sign == b",":
        path, tab, said = _by_comma(line)
    if kind == "lines":
        if not tab:
            return "", "", problem("Lines without a tab between the path and the text: %(count)d.", number, line)
        if not said.strip():
            return "", "", problem("Rows with an empty text: %(count)d.", number, line)
    else:
        if not tab:
            path, _space, said = line.strip().rpartition(" ")
        said = said.strip()
        if not said or not path.strip() or is_picture(said):
            return "", "", problem("Rows without a label: %(count)d.", number, line)
    return path.strip(), said, None


def _without_weight(line: str, sign: bytes | None) -> tuple[str, str]:
    """The weight stands last; empty if there is only a path with its label or text."""
    mark = "," if sign == b"," and "\t" not in line else "\t"
    if line.count(mark) < 2:
        return line, ""
    rest, _mark, weight = line.rpartition(mark)
    return rest, weight.strip().strip('"')


def _by_comma(line: str) -> tuple[str, str, str]:
    """As of a CSV file; a text that no marks enclose goes on to the end."""
    path, comma, said = line.partition(",")
    if '"' in line:
        fields = next(csv.reader([line], skipinitialspace=True), [])
        path, said = (fields[0], fields[1]) if len(fields) > 1 else (path, said)
    return path, comma, said.strip()


def _text_fault(text: str, number: int) -> BadRow | None:
    if len(text) > LONGEST_TEXT:
        return problem(
            "Rows with a text longer than %(limit)d characters: %(count)d.",
            number,
            f"{len(text)}: {text}",
            limit=LONGEST_TEXT,
        )
    if any(unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp") for c in text):
        return problem(
            "Rows with a control character in the text, such as a tab: %(count)d. No picture shows one.", number, text
        )
    return None


class _Places:
    """Pictures by their paths as a label file gives them: from the root, from its own folder, or from elsewhere."""

    def __init__(self, names: list[str]) -> None:
        self.names = names
        self.exact = {name: i for i, name in enumerate(names)}
        self._of_end: dict[str, list[int]] = {}
        # By a label file's folder how its last paths were made names: so many parts taken off, and what was put before.
        self._ways: dict[str, list[tuple[int, str]]] = {}

    def find(self, path: str, folder: str) -> int | None:
        parts = [part for part in path.replace("\\", "/").split("/") if part not in ("", ".")]
        ways = self._ways.setdefault(folder, [])
        as_given = [(0, f"{folder}/"), (0, "")] if folder else [(0, "")]
        for way in chain(as_given, ways, self._other_ways(parts, folder)):
            off, base = way
            if off < len(parts) and (found := self.exact.get(base + "/".join(parts[off:]))) is not None:
                if way not in as_given and way not in ways:
                    self._ways[folder] = [way, *ways[:3]]
                return found
        return None

    def _other_ways(self, parts: list[str], folder: str) -> Iterator[tuple[int, str]]:
        # Written on another machine, the path may begin with folders that are not here.
        for off in range(1, len(parts)):
            if folder:
                yield off, f"{folder}/"
            yield off, ""
        # Or the pictures lie in a folder that the path leaves out; then the rest must be all of it, or a folder and a name.
        if not self._of_end:
            for i, name in enumerate(self.names):
                self._of_end.setdefault(name.rpartition("/")[2], []).append(i)
        candidates = self._of_end.get(parts[-1], []) if parts else []
        for off in range(max(len(parts) - 1, 1)):
            rest = "/" + "/".join(parts[off:])
            ends = [i for i in candidates if self.names[i].endswith(rest)]
            if len(ends) == 1:
                yield off, self.names[ends[0]].removesuffix(rest[1:])
            if ends:
                return


def pictures_of(path: str, one: Label, places: list[_Places]) -> list[tuple[int, int]]:
    """Store and member, of the first archive that has it."""
    for store in one.stores:
        member = places[store].find(path, one.folder)
        if member is not None:
            return [(store, member)]
    return []


# --- a guess ---------------------------------------------------------------------------------


def guess(stores: list[Store], beside: list[tuple[str, str, bytes]]) -> tuple[Kind, ImageReading]:
    """By the label files, if there are any: few different labels, or a text for each picture."""
    lists = guessed_lists(stores, beside)[:MOST_LISTS]
    if not lists:
        return "images", ImageReading()
    texts = {name: body for store in stores for name, body in store.contents.texts.items()}
    texts |= {name: body for name, _split, body in beside}
    found = [Label(one.name, OPEN, texts[one.name], "", []) for one in lists]
    weighted = all(map(_have_weights, found))
    files = [list(islice(label.parts("images", weighted), 500)) for label in found]
    if all(map(_are_texts, files)):
        return "lines", ImageReading(layout="lists", lists=lists, weights=weighted)
    labels = [said for parts in files for _number, _path, said, _weight, bad in parts if bad is None]
    chosen = {one.name for one in lists}
    names = [name for name in texts if name not in chosen and re.search("label|class|names", name.lower())]
    numbered = bool(labels) and all(map(str.isdigit, labels))
    return "images", ImageReading(
        layout="lists", lists=lists, label_names=sorted(names)[0] if names and numbered else "", weights=weighted
    )


def _have_weights(label: Label) -> bool:
    """Behind a second tab; a label or text that ends with a comma and a number is more often just that."""
    lines = [line for _number, line, bad in islice(_lines(label.body), 500) if bad is None]
    weights_of = [line.rpartition("\t")[2] if line.count("\t") == 2 else "" for line in lines]
    return bool(lines) and all(isinstance(weights.read(weight, 0), float) for weight in weights_of)


def _are_texts(lines: list[tuple[int, str, str, str, BadRow | None]]) -> bool:
    """Of a label file: different ones mostly, and neither numbers nor names of folders."""
    parts = [(path, said) for _number, path, said, _weight, bad in lines if bad is None]
    texts = {said for _path, said in parts}
    named = sum(said in path.split("/") for path, said in parts)
    numbers = len(parts) < 50 and all(map(str.isdigit, texts))
    return bool(parts) and 2 * len(texts) > len(parts) and 2 * named < len(parts) and not numbers
