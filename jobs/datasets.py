"""Verbs for datasets: upload, describe, have them checked, take the answer, delete. Reading and checking itself is
workers/datasets/, which hosts run; the command `register_dataset` runs the same code here and now."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from django.conf import settings
from django.contrib.auth.models import User
from django.db import IntegrityError, transaction
from django.db.models import Max
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop, ngettext

from jobs import limits, picture_datasets
from jobs.limits import in_bytes
from jobs.models import Dataset
from jobs.picture_datasets import PictureLook
from jobs.services import Refused
from workers.contract.datasets import (
    PICTURE_KINDS,
    SPLITS,
    CheckResult,
    CheckSpec,
    Finding,
    Kind,
    Reading,
    SequenceReading,
    SourceFile,
    TagReading,
    check_key,
    dataset_key,
    upload_key,
)
from workers.datasets import archives, guess, places
from workers.datasets.checking import Source, check
from workers.datasets.parsing import Look, Unreadable, look
from workers.datasets.run import add_what_the_recipe_says

State = Dataset.State
BLOCK = 1 << 20
# Free disk that an upload needs, beside itself: the splits, and the scratch of the check on the same disk.
ROOM = 3
SHORTEST_ROOM_BYTES = 256 * 2**20
_TRIES_FOR_A_VERSION = 5


class Unfit(Exception):
    """What is wrong with a dataset: a text each, in English, with row numbers."""

    def __init__(self, errors: list[str]) -> None:
        super().__init__("\n".join(errors))
        self.errors = errors


class Behind(Exception):
    """A part of an upload that does not begin where the file ends: `offset` is where to go on."""

    def __init__(self, offset: int) -> None:
        super().__init__(offset)
        self.offset = offset


# --- a new version ---------------------------------------------------------------------------


def begin_upload(
    *, owner: User, name: str, shared: bool, description: str, files: list[tuple[str, str, int]]
) -> Dataset:
    """A version whose files, (name, split or "", bytes), are to come through `receive`. Raises Refused."""
    total = sum(size for _name, _split, size in files)
    errors: dict[str, str] = {}
    if not files or not all(size > 0 for _name, _split, size in files):
        errors["file"] = _("The file is empty.")
    elif total > settings.UPLOAD_LIMIT_BYTES:
        errors["file"] = _("%(size)s are more than the limit of %(limit)s.") % {
            "size": in_bytes(total),
            "limit": in_bytes(settings.UPLOAD_LIMIT_BYTES),
        }
    elif too_much := limits.against_upload(owner, total):
        errors["file"] = too_much
    elif _free_bytes() < ROOM * total + SHORTEST_ROOM_BYTES:
        errors["file"] = _("The storage has not enough room for this upload.")
    for file_name, _split, _size in files:
        if not places.is_known(file_name):
            errors.setdefault("file", _wrong_suffix(file_name))
    if not errors and places.is_archive(files[0][0]):
        wrong = [name for name, _split, _size in files if not places.is_archive(name) and not is_label_file(name)]
        if wrong:
            errors["file"] = _("“%(name)s” is neither an archive nor a label file.") % {"name": wrong[0][:60]}
    elif not errors and any(places.is_archive(name) for name, _split, _size in files):
        errors["dev_file"] = _("Rows and pictures cannot be mixed.")
    if errors:
        raise Refused(errors)
    uid = uuid.uuid4().hex
    source = {
        "uploads": upload_key(uid),
        "files": [
            {"name": Path(file_name).name[:200], "split": split, "key": f"{upload_key(uid)}/{i}", "bytes": size}
            for i, (file_name, split, size) in enumerate(files)
        ],
    }
    dataset = _new_version(
        owner=owner, name=name, shared=shared, description=description, state=State.UPLOADING, source=source
    )
    (settings.STORAGE_ROOT / upload_key(uid)).mkdir(parents=True, mode=0o755)
    return dataset


def begin_path(
    *,
    owner: User,
    name: str,
    shared: bool,
    description: str,
    path: str,
    dev_path: str = "",
    label_path: str = "",
    label_split: str = "",
) -> Dataset:
    """A version from files, or a folder of pictures, that lie below DATASET_ROOTS. Raises Refused."""
    files = []
    for field, split, given in (
        ("path", "train" if dev_path else "", path),
        ("dev_path", "dev", dev_path),
        ("label_path", label_split, label_path),
    ):
        if not given:
            continue
        about: dict[str, Any] = {"name": Path(given).name[:200], "split": split, "path": given}
        try:
            source = places.source_below(Path(given), about["name"], split, settings.DATASET_ROOTS)
        except Unreadable as error:
            raise Refused({field: _(error.template) % error.values}) from None
        if source.file is None:
            about["folder"] = True
        else:
            with source.file as file:
                about["bytes"] = os.fstat(file.fileno()).st_size
        files.append(about)
    of_pictures = [bool(file.get("folder")) or places.is_archive(file["name"]) for file in files]
    if of_pictures[0]:
        wrong = [file["name"] for file, is_one in zip(files, of_pictures, strict=True) if not is_one]
        wrong = [name for name in wrong if not is_label_file(name)]
        if wrong:
            raise Refused({"path": _("“%(name)s” is neither an archive nor a label file.") % {"name": wrong[0][:60]}})
    elif any(of_pictures):
        raise Refused({"dev_path": _("Rows and pictures cannot be mixed.")})
    dataset = _new_version(
        owner=owner, name=name, shared=shared, description=description, state=State.MAPPING, source={"files": files}
    )
    guess_reading(dataset)
    return dataset


def begin_paddlenlp(*, owner: User, name: str, shared: bool, description: str, paddlenlp: str) -> Dataset:
    """A version of a dataset that PaddleNLP knows by name; a host loads it."""
    return _new_version(
        owner=owner,
        name=name,
        shared=shared,
        description=description,
        state=State.MAPPING,
        source={"paddlenlp": paddlenlp},
        reading=Reading().model_dump(mode="json"),
    )


def _new_version(*, owner: User | None, name: str, **fields: Any) -> Dataset:
    """The next number of the name. Who comes second to a number takes the one after."""
    for _try in range(_TRIES_FOR_A_VERSION):
        newest = Dataset.objects.filter(owner=owner, name=name).aggregate(newest=Max("version"))["newest"] or 0
        try:
            with transaction.atomic():
                return Dataset.objects.create(owner=owner, name=name, version=newest + 1, **fields)
        except IntegrityError:
            continue
    raise Refused({"name": _("Others are uploading under this name at this moment; try again.")})


def _free_bytes() -> int:
    settings.STORAGE_ROOT.mkdir(parents=True, exist_ok=True)
    return shutil.disk_usage(settings.STORAGE_ROOT).free


def _wrong_suffix(name: str) -> str:
    if Path(name).suffix.lower() in (".xlsx", ".xls"):
        return _("This is a zip or Excel file: unpack it, or save the sheet as CSV (UTF-8).")
    known = ", ".join((*places.SUFFIXES, *places.ARCHIVES))
    return _("“%(name)s” is none of %(known)s.") % {"name": Path(name).name[:60], "known": known}


def is_label_file(name: str) -> bool:
    return archives.suffix(name) in archives.TEXT_SUFFIXES


# --- receiving -------------------------------------------------------------------------------


def receive(dataset: Dataset, index: int, offset: int, body: BinaryIO) -> int:
    """Appends a part to an upload's file; returns how long it is now. Once all files are there they can be described.

    Raises Behind if the part does not begin where the file ends: a part that came twice, or one that was lost.
    """
    files = dataset.source.get("files", [])
    if dataset.state != State.UPLOADING or not 0 <= index < len(files):
        raise Refused({"": _("Nothing is being uploaded here.")})
    expected = files[index]["bytes"]
    path = settings.STORAGE_ROOT / files[index]["key"]
    with path.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        there = os.fstat(file.fileno()).st_size
        if offset != there:
            raise Behind(there)
        try:
            while block := body.read(BLOCK):
                there += len(block)
                if there > expected:
                    raise Refused({"": _("The file has become longer since the upload began.")})
                file.write(block)
            file.flush()
        except BaseException:
            os.ftruncate(file.fileno(), offset)
            raise
        if there == expected:
            os.fsync(file.fileno())
    if all(_size(file) == file["bytes"] for file in files):
        guess_reading(dataset)
        Dataset.objects.filter(pk=dataset.pk, state=State.UPLOADING).update(state=State.MAPPING)
        dataset.state = State.MAPPING
    return there


def _size(file: dict[str, Any]) -> int:
    try:
        size: int = (settings.STORAGE_ROOT / file["key"]).stat().st_size
    except FileNotFoundError:
        return 0
    return size


def received(dataset: Dataset) -> int:
    """Bytes of the upload that are there."""
    return sum(_size(file) for file in dataset.source.get("files", []) if "key" in file)


# --- describing ------------------------------------------------------------------------------


def look_at(dataset: Dataset, reading: Reading | None = None) -> Look:
    """The first rows of the first file, read so, or by a guess. Raises Unreadable."""
    first = dataset.source["files"][0]
    if "key" in first:
        file = places.open_key(first["key"], settings.STORAGE_ROOT)
    else:
        file = places.open_below(Path(first["path"]), settings.DATASET_ROOTS)
    with file:
        return look(file, first["name"], reading)


def guess_reading(dataset: Dataset) -> None:
    try:
        if picture_datasets.are_pictures(dataset):
            reading = picture_datasets.look_at(picture_datasets.sources_of(dataset)).reading
        else:
            reading = guessed(look_at(dataset))
    except Unreadable:
        reading = Reading()  # the page says what is wrong
    dataset.reading, dataset.kind = reading.model_dump(mode="json"), reading.kind
    Dataset.objects.filter(pk=dataset.pk).update(reading=dataset.reading, kind=dataset.kind)


def guessed_sequences(look: Look | None) -> SequenceReading:
    return (look and guess.sequences(look, asked=True)) or SequenceReading()


def guessed_tags(look: Look | None) -> TagReading:
    return (look and guess.tags(look)) or TagReading()


def guessed(look: Look) -> Reading:
    if tagged := guess.tags(look):
        return look.reading.model_copy(update={"kind": "tokens", "tagging": tagged})
    how = guess.sequences(look)
    return look.reading.model_copy(update={"kind": "sequences", "sequences": how}) if how else look.reading


# --- checking --------------------------------------------------------------------------------


def ask_for_check(dataset: Dataset, reading: Reading) -> None:
    """The controller finds a host for it. A refused version may be described anew; a ready one never changes."""
    before = dataset.check_uid
    changes: dict[str, Any] = {
        "state": State.CHECKING,
        "kind": reading.kind,
        "reading": reading.model_dump(mode="json"),
        "check_uid": uuid.uuid4().hex,
        "check_try": 0,
        "check_host": "",
        "check_sent_at": None,
        "check_progress": {},
        "findings": [],
    }
    mine = Dataset.objects.filter(pk=dataset.pk, state__in=[State.MAPPING, State.REFUSED], check_uid=before)
    if mine.update(**changes) != 1:
        raise Refused({"": _("This version is being checked already, or it is ready.")})
    for name, value in changes.items():
        setattr(dataset, name, value)


def spec_of(dataset: Dataset) -> CheckSpec:
    names = SourceFile.model_fields
    return CheckSpec(
        uid=dataset.check_uid,
        number=dataset.check_try,
        files=[
            SourceFile(**{key: value for key, value in file.items() if key in names})
            for file in dataset.source.get("files", [])
        ],
        paddlenlp=dataset.source.get("paddlenlp", ""),
        reading=Reading.model_validate(dataset.reading),
    )


def conclude(dataset: Dataset, result: CheckResult) -> None:
    """The answer to the check that is asked for now; to another one nothing happens."""
    key = dataset_key(dataset.check_uid)
    findings = list(result.findings)
    fit = result.fit and set(result.splits) == set(SPLITS) and (settings.STORAGE_ROOT / key).is_dir()
    if result.fit and not fit:
        findings.insert(0, _error(gettext_noop("The files that the check should have written are not in the storage.")))
    if fit and (same := _same(dataset.owner, dataset.name, result.content_hash)):
        findings.insert(0, _error(gettext_noop("The same rows are version %(version)d already."), version=same.version))
        fit = False
    changes: dict[str, Any] = {
        "state": State.READY if fit else State.REFUSED,
        "findings": [finding.model_dump(mode="json") for finding in findings],
        "columns": result.columns,
        "checked_at": timezone.now(),
        "check_progress": {},
    }
    if fit:
        changes |= {
            "key": key,
            "bytes": result.bytes,
            "content_hash": result.content_hash,
            "labels": result.labels,
            "splits": result.splits,
            "statistics": result.statistics,
        }
    mine = Dataset.objects.filter(pk=dataset.pk, state=State.CHECKING, check_uid=dataset.check_uid)
    # By itself: a number that no column holds is the caller's to deal with.
    with transaction.atomic():
        if mine.update(**changes) != 1:
            return
    for name, value in changes.items():
        setattr(dataset, name, value)
    # After the word that it is ready: what a crash leaves behind is tidied up by the controller.
    _remove(check_key(dataset.check_uid))
    if fit:
        _remove(dataset.source.get("uploads", ""))
    else:
        _remove(key)


def refuse(dataset: Dataset, finding: Finding) -> None:
    """The controller's: no host could say anything."""
    conclude(dataset, CheckResult(number=dataset.check_try, host="", seconds=0, findings=[finding]))


def _error(template: str, **values: str | int) -> Finding:
    return Finding(level="error", template=template, values=values)


def _same(owner: User | None, name: str, content: str) -> Dataset | None:
    found: Dataset | None = Dataset.objects.ready().filter(owner=owner, name=name, content_hash=content).first()
    return found


# --- deleting --------------------------------------------------------------------------------


def delete(dataset: Dataset) -> None:
    """The row, then the files. Raises Refused while jobs use it."""
    with transaction.atomic():
        locked = Dataset.objects.select_for_update().get(pk=dataset.pk)
        # In the order of submitting: a job that comes now finds no dataset, one that was there is seen.
        numbers = list(locked.jobs.order_by("pk").values_list("pk", flat=True))
        if numbers:
            shown = ", ".join(f"#{number}" for number in numbers[:5]) + (" …" if len(numbers) > 5 else "")
            text = ngettext(
                "It is used by %(count)d job (%(jobs)s), whose results would no longer be explained. Delete the job first.",
                "It is used by %(count)d jobs (%(jobs)s), whose results would no longer be explained. Delete the jobs first.",
                len(numbers),
            )
            raise Refused({"": text % {"count": len(numbers), "jobs": shown}})
        keys = [locked.key, locked.source.get("uploads", ""), check_key(locked.check_uid) if locked.check_uid else ""]
        locked.delete()
    for key in keys:
        _remove(key)


def _remove(key: str) -> None:
    """A folder below STORAGE_ROOT, and nothing else."""
    root = settings.STORAGE_ROOT.resolve()
    if key and (folder := (root / key).resolve()).is_relative_to(root) and folder != root:
        shutil.rmtree(folder, ignore_errors=True)


# --- registering here and now ----------------------------------------------------------------


def register(
    source: Path,
    *,
    name: str,
    owner: User | None = None,
    shared: bool = False,
    description: str = "",
    text_column: str = "text",
    text_b_column: str = "",
    label_column: str = "label",
    weight_column: str = "",
    kind: Kind = "texts",
    sequences: dict[str, Any] | None = None,
    tagging: dict[str, Any] | None = None,
    label_files: list[Path] | None = None,
    leave_out: bool = False,
    dev_fraction: float = 0.1,
    seed: int = 2026,
    baseline: bool = True,
    stage: Callable[[str, int, int], None] = lambda name, done, total: None,
) -> tuple[Dataset, bool]:
    """The ready version, and whether it is new: the same rows under the same name are registered once.

    `source` is a folder with train.jsonl and dev.jsonl, or with one file, or a file: JSON Lines, CSV or TSV. One file
    is split, label by label, with `seed`. `sequences` and `tagging` go over the guess of how these are read.
    Or it is an archive or a folder of pictures (`kind` images or lines), with label files within or beside it. Raises Unfit.
    """
    name = name.strip()
    if not name or len(name) > 100:
        raise Unfit(["The name must have 1 to 100 characters."])
    of_pictures = kind in PICTURE_KINDS or places.is_archive(source.name)
    sources = _picture_sources(source, label_files or []) if of_pictures else _sources(source)
    chosen: dict[str, Any] = {
        "kind": kind, "split_column": "", "dev_fraction": dev_fraction, "seed": seed, "leave_out": leave_out,
        "weight_column": weight_column,
    }  # fmt: skip
    try:
        if of_pictures:
            seen: Look | PictureLook = picture_datasets.look_at(sources)
        else:
            with sources[0].path.open("rb") as file:
                seen = look(file, sources[0].name)
    except Unreadable as error:
        raise Unfit([f"{sources[0].name}: {error}"]) from None
    if isinstance(seen, PictureLook):
        chosen["kind"] = kind if kind in PICTURE_KINDS else seen.reading.kind
        chosen["images"] = picture_datasets.guessed(seen, chosen["kind"])
    elif kind in ("texts", "numbers"):
        chosen |= {"text_column": text_column, "text_b_column": text_b_column, "label_column": label_column}
    elif kind == "tokens":
        chosen["tagging"] = TagReading.model_validate(guessed_tags(seen).model_dump() | (tagging or {}))
    else:
        how = guessed_sequences(seen).model_dump() | (sequences or {})
        chosen["sequences"] = SequenceReading.model_validate(how)
    reading = seen.reading.model_copy(update=chosen)
    root = settings.STORAGE_ROOT / "datasets"
    root.mkdir(parents=True, exist_ok=True)
    uid = uuid.uuid4().hex
    target = root / f".new-{uid}"
    target.mkdir()
    try:
        with tempfile.TemporaryDirectory(dir=root, prefix=".new-") as scratch:
            outcome = check(sources, reading, Path(scratch), target, stage)
        if not outcome.fit:
            raise Unfit([in_english(finding) for finding in outcome.findings if finding.level == "error"])
        known = _same(owner, name, outcome.content_hash)
        if known is not None:
            return known, False
        if baseline:
            add_what_the_recipe_says(reading.kind, target, outcome, stage)
        target.rename(settings.STORAGE_ROOT / dataset_key(uid))
    finally:
        shutil.rmtree(target, ignore_errors=True)
    dataset = _new_version(
        owner=owner,
        name=name,
        shared=shared,
        description=description,
        state=State.READY,
        kind=reading.kind,
        source={"files": [{"name": file.name, "split": file.split} for file in sources]},
        reading=reading.model_dump(mode="json"),
        findings=[finding.model_dump(mode="json") for finding in outcome.findings],
        checked_at=timezone.now(),
        key=dataset_key(uid),
        bytes=outcome.bytes,
        content_hash=outcome.content_hash,
        columns=outcome.columns,
        labels=outcome.labels,
        splits=outcome.splits,
        statistics=outcome.statistics,
    )
    return dataset, True


def _picture_sources(source: Path, label_files: list[Path]) -> list[Source]:
    for path in (source, *label_files):
        if not path.exists():
            raise Unfit([f"There is no file or folder {path}."])
    wrong = [path.name for path in label_files if not is_label_file(path.name)]
    if wrong:
        raise Unfit([f"A label file is named .txt, .tsv or .csv, not {wrong[0]}."])
    return [Source(source.resolve(), source.name), *(Source(path, path.name) for path in label_files)]


def _sources(source: Path) -> list[Source]:
    if source.is_file():
        return [Source(source, source.name)]
    if not source.is_dir():
        raise Unfit([f"There is no file or folder {source}."])
    both = [Source(source / f"{split}.jsonl", f"{split}.jsonl", split) for split in SPLITS]
    if all(file.path.is_file() for file in both):
        return both
    found = sorted(path for path in source.iterdir() if path.suffix.lower() in places.SUFFIXES and path.is_file())
    if len(found) != 1:
        raise Unfit([f"{source} must have train.jsonl and dev.jsonl, or one file; it has {len(found)} files."])
    return [Source(found[0], found[0].name)]


def in_english(finding: Finding) -> str:
    """With the rows, for a terminal."""
    where = ", ".join(f"{ref.file}:{ref.row}" + (f" ({ref.shown})" if ref.shown else "") for ref in finding.rows)
    more = " …" if finding.count > len(finding.rows) else ""
    return f"{finding.text} {where}{more}" if where else finding.text


def stale_uploads(older_than_s: float) -> list[Dataset]:
    """Uploads that nobody goes on with: of their files none has grown for so long."""
    found = []
    for dataset in Dataset.objects.filter(state=State.UPLOADING):
        folder = settings.STORAGE_ROOT / dataset.source.get("uploads", "")
        times = [path.stat().st_mtime for path in folder.glob("*")] if folder.is_dir() else []
        newest = max([dataset.created_at.timestamp(), *times])
        if time.time() - newest > older_than_s:
            found.append(dataset)
    return found
