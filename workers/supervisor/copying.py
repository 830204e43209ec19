"""Copies of folders between the two roots: whole and verified, or not there at all."""

from __future__ import annotations

import glob
import hashlib
import json
import os
import shutil
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import IO, Any

MANIFEST = "manifest.json"
_CHUNK_BYTES = 4 * 2**20

Files = dict[str, dict[str, Any]]
"""Name relative to the folder -> {"bytes", "sha256"}."""


class CopyError(Exception):
    """The source is not what it should be; the message says which file and why."""


class Stopped(Exception):
    """The caller's `stop` said so."""


def copy_folder(
    source: Path,
    target: Path,
    expected: Files | None,
    stop: Callable[[], bool] = lambda: False,
    *,
    only: set[str] | None = None,
) -> Files:
    """Copy `source` to `target`, which appears complete and synced to disk under its name, or not at all.

    With `expected`, exactly these files (and the manifest) are copied and must match; with `only`,
    these files; else all.
    Every copy is read again. Replaces an older `target`. Raises CopyError, Stopped or OSError.
    """
    root = source.resolve()
    if not root.is_dir():
        raise CopyError(f"there is no folder {source.name}")
    names = sorted(expected if expected is not None else only or _names(source))
    if expected is not None and (source / MANIFEST).exists():
        names.append(MANIFEST)
    target.parent.mkdir(parents=True, exist_ok=True)
    # Of a process that was killed while it copied; only one at a time writes a target.
    for left in target.parent.glob(f".{glob.escape(target.name)}.*"):
        shutil.rmtree(left, ignore_errors=True)
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
    try:
        copied: Files = {}
        for name in names:
            # A name or a link must not lead out of the folder.
            if ".." in PurePosixPath(name).parts or not (source / name).resolve().is_relative_to(root):
                raise CopyError(f"{name} lies outside of {source.name}")
            copied[name] = _copy_file(source / name, partial / name, stop)
            if _digest(partial / name, stop) != copied[name]:
                raise CopyError(f"{name} reads back differently than it was written")
            if expected is not None and name in expected and expected[name] != copied[name]:
                raise CopyError(f"{name} does not match its checksum in the manifest")
        _sync_folders(partial)
        _replace(partial, target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return copied


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a checkpoint; CopyError if it is missing or makes no sense."""
    try:
        manifest: dict[str, Any] = json.loads((folder / MANIFEST).read_bytes())
        manifest["files"] = {
            name: {"bytes": int(file["bytes"]), "sha256": str(file["sha256"])}
            for name, file in manifest["files"].items()
        }
        return manifest
    except FileNotFoundError:
        raise CopyError(f"{folder.name} has no {MANIFEST}") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CopyError(f"the {MANIFEST} of {folder.name} cannot be read: {error}") from None


def pack(folder: Path, tar: Path) -> dict[str, Any]:
    """Write `folder` as an uncompressed tar, the same bytes for the same content. Returns {"bytes", "sha256"}."""
    for left in tar.parent.glob(f".{glob.escape(tar.name)}.*"):
        left.unlink()
    partial = tar.with_name(f".{tar.name}.{os.getpid()}.partial")
    try:
        with partial.open("wb") as file:
            with tarfile.open(fileobj=file, mode="w") as archive:
                for name in sorted(_names(folder)):
                    archive.add(folder / name, arcname=f"{folder.name}/{name}", filter=_anonymous)
            file.flush()
            os.fsync(file.fileno())
        digest = _digest(partial, lambda: False)
        partial.replace(tar)
        _sync(tar.parent)
        return digest
    finally:
        partial.unlink(missing_ok=True)


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    member.mtime = 0
    member.mode = 0o644
    return member


def _names(folder: Path) -> Iterator[str]:
    for base, _, files in os.walk(folder):
        for file in files:
            yield (Path(base) / file).relative_to(folder).as_posix()


def _chunks(file: IO[bytes], stop: Callable[[], bool]) -> Iterator[bytes]:
    while chunk := file.read(_CHUNK_BYTES):
        if stop():
            raise Stopped
        yield chunk


def _copy_file(source: Path, target: Path, stop: Callable[[], bool]) -> dict[str, Any]:
    target.parent.mkdir(parents=True, exist_ok=True)
    digest, size = hashlib.sha256(), 0
    try:
        reader = source.open("rb")
    except FileNotFoundError:
        raise CopyError(f"{source.name} is missing") from None
    with reader, target.open("wb") as writer:
        for chunk in _chunks(reader, stop):
            writer.write(chunk)
            digest.update(chunk)
            size += len(chunk)
        writer.flush()
        os.fsync(writer.fileno())
    return {"bytes": size, "sha256": digest.hexdigest()}


def _digest(path: Path, stop: Callable[[], bool]) -> dict[str, Any]:
    digest, size = hashlib.sha256(), 0
    with path.open("rb") as file:
        for chunk in _chunks(file, stop):
            digest.update(chunk)
            size += len(chunk)
    return {"bytes": size, "sha256": digest.hexdigest()}


def _replace(partial: Path, target: Path) -> None:
    """A folder cannot be renamed onto another one that has content: the old one steps aside first."""
    old = target.with_name(f".{target.name}.{os.getpid()}.old")
    if target.exists():
        target.rename(old)
    partial.rename(target)
    _sync(target.parent)
    shutil.rmtree(old, ignore_errors=True)


def _sync_folders(folder: Path) -> None:
    for base, _, _ in os.walk(folder):
        _sync(Path(base))


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
