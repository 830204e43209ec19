"""What lies in an archive (zip, tar, tar.gz) or a folder: looked at and read member by member, never unpacked to a path.

Names are only compared and shown. Links, devices, names that lead out and what is encrypted are facts, and never followed.
"""

from __future__ import annotations

import gzip
import lzma
import os
import stat
import struct
import tarfile
import zipfile
import zlib
from array import array
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from workers.datasets.findings import Source
from workers.datasets.parsing import BadRow, Unreadable, printable, problem

MOST_MEMBERS = 1_000_000
MOST_UNPACKED_BYTES = 512 * 2**30
# An archive that is so many times larger unpacked, and larger than so much, was made to fill the disk: pictures hardly shrink.
MOST_RATIO, RATIO_FROM_BYTES = 200, 2**30
LARGEST_PICTURE_BYTES = 64 * 2**20
LARGEST_LIST_BYTES = 256 * 2**20
# Label files and files with names of labels, all together; what goes beyond it is said and not read.
MOST_TEXT_BYTES = 512 * 2**20
# What a look at the beginning takes at most, which is made without limits on memory: of label files, of what is unpacked, and of
# a zip's directory (some 150,000 files).
HEAD_TEXT_BYTES, HEAD_UNPACKED_BYTES, HEAD_DIRECTORY_BYTES = 16 * 2**20, 256 * 2**20, 16 * 2**20
# A name in a tar that is longer fills memory.
_LONGEST_HEADER_BYTES = 2**20
# As paths on Linux. The dataset is given back as a zip, which has 65,535 bytes for a name.
LONGEST_NAME = 4096
TEXT_SUFFIXES = (".txt", ".tsv", ".csv")
PICTURE_SUFFIXES = (".png", ".jpg", ".jpeg", ".jpe", ".jfif", ".bmp", ".dib", ".webp", ".gif")
OTHER_PICTURES = (
    ".tif", ".tiff", ".heic", ".heif", ".avif", ".svg", ".psd", ".ico", ".jp2", ".jxl", ".ppm", ".pgm", ".pbm", ".tga",
    ".exr", ".dcm", ".raw", ".dng", ".cr2", ".nef",
)  # fmt: skip
_JUNK = {"thumbs.db", "desktop.ini", "__macosx", "@eadir"}
_TAR_BLOCK = 512
# Zeros behind the last member, up to the checksum of a tar.gz.
_MOST_BEHIND_BYTES = 64 * 2**20
_HEAD_BYTES = 64 * 1024

Progress = Callable[[int, int], None]


@dataclass
class Contents:
    """The regular members with safe names, in the order of the archive."""

    names: list[str] = field(default_factory=list)
    sizes: array[int] = field(default_factory=lambda: array("Q"))
    numbers: array[int] = field(default_factory=lambda: array("I"))
    texts: dict[str, bytes] = field(default_factory=dict)  # of those that may be label files
    unread: dict[str, int] = field(default_factory=dict)  # label files that are too large, and their bytes
    problems: list[BadRow] = field(default_factory=list)
    unpacked: int = 0
    whole: bool = True  # or only the beginning was looked at

    def take(self, number: int, name: str, size: int) -> bool:
        """Whether the name is safe and no junk."""
        plain = safe_name(name)
        if plain is None:
            self.problems.append(problem("Members whose names lead out of the archive: %(count)d.", number, name))
            return False
        if is_junk(plain):
            return False
        if len(plain) > LONGEST_NAME:
            raise Unreadable("The archive is broken or not whole: %(said)s.", said=f"a name of {len(plain)} characters")
        if any(ord(c) < 32 or ord(c) == 127 for c in plain):
            self.problems.append(problem("Members with control characters in their names: %(count)d.", number, name))
            return False
        self.names.append(plain)
        self.sizes.append(size)
        self.numbers.append(number)
        return True

    def keep_text(self, name: str, read: Callable[[int], bytes], size: int, most: int) -> None:
        """Of a text file all, if it is short or looks like a label file; where only a look is taken (`most`), its beginning."""
        plain = safe_name(name)
        left = (HEAD_TEXT_BYTES if most else MOST_TEXT_BYTES) - sum(map(len, self.texts.values()))
        if plain is None or (most and left <= 0):
            return
        head = read(min(size, _HEAD_BYTES))
        if not most and size > min(left, LARGEST_LIST_BYTES):
            if names_pictures(head):
                self.unread[plain] = size
        elif size <= _HEAD_BYTES:
            if names_pictures(head) or len(self.texts) < 100:
                self.texts[plain] = head
        elif names_pictures(head):
            body = head + read(min(size, max(left, _HEAD_BYTES)) - len(head))
            if len(body) < size:
                self.whole = False
                body = body[: body.rfind(b"\n") + 1]
            self.texts[plain] = body


def names_pictures(head: bytes) -> bool:
    """Whether the first lines begin with names of pictures: whether it is a label file."""
    return separator(head) is not None


def separator(head: bytes) -> bytes | None:
    """What stands behind the names of pictures in the first lines of a label file: a tab, a comma, or spaces."""
    lines = [line.strip() for line in head.removeprefix(b"\xef\xbb\xbf").split(b"\n")[:20] if line.strip()]
    ends = tuple(suffix.encode() for suffix in PICTURE_SUFFIXES)
    for sign in (b"\t", b",", b" "):
        names = [
            line.rpartition(sign)[0] if sign == b" " else line.partition(sign)[0] for line in lines if sign in line
        ]
        named = sum(name.strip(b' "').lower().endswith(ends) for name in names)
        if named and 2 * named >= len(lines):
            return sign
    # Nothing but names: it is one, and says nothing.
    return b"\t" if lines and all(line.lower().endswith(ends) for line in lines) else None


def safe_name(name: str) -> str | None:
    """Parts with / between; None if it is absolute or leads upwards."""
    plain = name.replace("\\", "/")
    if plain.startswith("/") or (len(plain) > 1 and plain[1] == ":"):
        return None
    parts = [part for part in plain.split("/") if part not in ("", ".")]
    if not parts or ".." in parts or "\0" in plain:
        return None
    return "/".join(parts)


def is_junk(name: str) -> bool:
    """What systems leave behind: hidden files, resource forks, thumbnails."""
    return any(part.startswith(".") or part.lower() in _JUNK for part in name.split("/"))


def is_other_picture(name: str) -> bool:
    """Of a format that is not read."""
    return suffix(name) in OTHER_PICTURES


def suffix(name: str) -> str:
    """In lower case, as of PurePosixPath, which takes ten times as long: label files have millions of names."""
    stem, _dot, end = name.rstrip("/").rpartition("/")[2].rpartition(".")
    return f".{end.lower()}" if stem and end else ""


class Archive:
    """Something with members. `look` comes first, then `read`, as often as wanted."""

    def look(self, progress: Progress = lambda done, total: None, most: int = 0) -> Contents:
        """All members, or about the first `most`. Raises Unreadable."""
        raise NotImplementedError

    def read(self, wanted: Container[int]) -> Iterator[tuple[int, bytes | BadRow]]:
        """The members with those numbers, in the order of the archive. Raises Unreadable."""
        raise NotImplementedError

    def close(self) -> None:
        pass

    def _too_much(self, contents: Contents, packed: int) -> None:
        if len(contents.names) + len(contents.problems) > MOST_MEMBERS:
            raise Unreadable(
                "There are more than %(limit)d files in the archive or folder: divide it into several datasets.",
                limit=MOST_MEMBERS,
            )
        if contents.unpacked > MOST_UNPACKED_BYTES:
            raise Unreadable(
                "Unpacked the archive has more than %(limit)s: shrink the pictures, or divide it into several datasets.",
                limit=f"{MOST_UNPACKED_BYTES // 2**30} GiB",
            )
        if contents.unpacked > max(RATIO_FROM_BYTES, MOST_RATIO * packed):
            raise Unreadable(
                "Unpacked the archive has more than %(ratio)d times its %(size)s: that is no archive of pictures.",
                ratio=MOST_RATIO,
                size=f"{packed / 2**20:.1f} MiB",
            )


def opened(source: Source) -> Archive:
    """Raises Unreadable if it is neither an archive nor a folder. Who opened `source.file` is its owner no more."""
    if source.file is None and source.path.is_dir():
        return Folder(source.path)
    file = source.file or source.path.open("rb")
    head = file.read(_TAR_BLOCK)
    file.seek(0)
    if head.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        return Zip(file)
    if head.startswith(b"\x1f\x8b"):
        return Tar(file, compressed=True)
    if head[257:262] == b"ustar":
        return Tar(file)
    file.close()
    if not head:
        raise Unreadable("The file is empty.")
    raise Unreadable("This is neither a zip nor a tar nor a tar.gz archive.")


class Zip(Archive):
    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._packed = os.fstat(file.fileno()).st_size
        self._zip: zipfile.ZipFile | None = None

    def _members(self) -> list[zipfile.ZipInfo]:
        if self._zip is not None:
            return self._zip.infolist()
        try:
            self._zip = zipfile.ZipFile(self._file)
        except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
            raise Unreadable("The archive is broken or not whole: %(said)s.", said=_said(error)) from None
        # Chinese Windows writes GBK, and others UTF-8, where the format knows only the IBM PC's characters.
        members = self._zip.infolist()
        raw = [member.filename.encode("cp437", "replace") for member in members if _is_unsaid(member)]
        self._encoding = _encoding(b"/".join(raw))
        return members

    def _directory_bytes(self) -> int:
        """As zipfile will read it at once; 0 if it will not."""
        try:
            record: Any = zipfile._EndRecData(self._file)  # type: ignore[attr-defined]
            return int(record[5]) if record else 0
        except (OSError, ValueError, zipfile.BadZipFile):
            return 0

    def look(self, progress: Progress = lambda done, total: None, most: int = 0) -> Contents:
        contents = Contents()
        if most and self._directory_bytes() > HEAD_DIRECTORY_BYTES:
            contents.whole = False
            return contents
        members = self._members()
        for number, member in enumerate(members, 1):
            if number % 1000 == 1:
                progress(number, len(members))
            if most and number > most:
                contents.whole = False
                break
            if member.is_dir():
                continue
            name = self._name(member)
            mode = member.external_attr >> 16
            if stat.S_IFMT(mode) not in (0, stat.S_IFREG):
                contents.problems.append(_no_file(number, name))
                continue
            if member.flag_bits & 1:
                raise Unreadable("The archive is encrypted: pack it anew without a password.")
            contents.unpacked += member.file_size
            self._too_much(contents, self._packed)
            if contents.take(number, name, member.file_size) and suffix(name) in TEXT_SUFFIXES:
                try:
                    with self._opened.open(member) as text:
                        contents.keep_text(name, text.read, member.file_size, most)
                except _BROKEN as error:
                    contents.problems.append(_broken(number, name, error))
        return contents

    def read(self, wanted: Container[int]) -> Iterator[tuple[int, bytes | BadRow]]:
        for number, member in enumerate(self._members(), 1):
            if number not in wanted:
                continue
            if member.file_size > LARGEST_PICTURE_BYTES:
                yield number, _too_large(number, member.file_size)
                continue
            try:
                # Of its own size at most: zipfile reads no further than that.
                yield number, self._opened.read(member)
            except _BROKEN as error:
                yield number, _broken(number, self._name(member), error)

    def _name(self, member: zipfile.ZipInfo) -> str:
        if not _is_unsaid(member):
            return member.filename
        return member.filename.encode("cp437", "replace").decode(self._encoding, "replace")

    @property
    def _opened(self) -> zipfile.ZipFile:
        assert self._zip is not None
        return self._zip

    def close(self) -> None:
        if self._zip is not None:
            self._zip.close()
        self._file.close()


def _is_unsaid(member: zipfile.ZipInfo) -> bool:
    return not member.flag_bits & 0x800 and not member.filename.isascii()


class Tar(Archive):
    """Read from the beginning each time: a compressed one knows no other way."""

    def __init__(self, file: BinaryIO, *, compressed: bool = False) -> None:
        self._file, self._compressed = file, compressed
        self._packed = os.fstat(file.fileno()).st_size

    def look(self, progress: Progress = lambda done, total: None, most: int = 0) -> Contents:
        contents = Contents()
        for number, member, tar in self._members():
            if number % 200 == 1:
                progress(self._file.tell(), self._packed)
            # Before the next one is asked for: what lies between is unpacked.
            if most and (number > most or contents.unpacked + member.size > HEAD_UNPACKED_BYTES):
                contents.whole = False
                break
            name = _decoded(member.name.encode("utf-8", "surrogateescape"))
            if member.isdir():
                continue
            if not member.isreg() or member.issparse():
                contents.problems.append(_no_file(number, name))
                continue
            contents.unpacked += member.size
            self._too_much(contents, self._packed)
            if contents.take(number, name, member.size) and suffix(name) in TEXT_SUFFIXES:
                text = tar.extractfile(member)
                if text is not None:
                    with _whole():
                        contents.keep_text(name, text.read, member.size, most)
        return contents

    def read(self, wanted: Container[int]) -> Iterator[tuple[int, bytes | BadRow]]:
        for number, member, tar in self._members():
            if number not in wanted:
                continue
            if member.size > LARGEST_PICTURE_BYTES:
                yield number, _too_large(number, member.size)
                continue
            file = tar.extractfile(member)
            with _whole():
                data = file.read() if file is not None else _no_file(number, member.name)
            yield number, data

    def _members(self) -> Iterator[tuple[int, tarfile.TarInfo, tarfile.TarFile]]:
        self._file.seek(0)
        # Unlike tarfile's own way this says if a compressed file is cut or changed.
        plain: Any = gzip.GzipFile(fileobj=self._file) if self._compressed else self._file
        with _whole():
            with tarfile.open(fileobj=plain, mode="r|", errors="surrogateescape", tarinfo=_Member) as tar:
                for number, member in enumerate(tar, 1):
                    yield number, member, tar
                    # It would keep them all.
                    tar.members = []  # type: ignore[attr-defined]
            behind = 0
            while self._compressed and behind < _MOST_BEHIND_BYTES and (rest := plain.read(2**20)):
                behind += len(rest)

    def close(self) -> None:
        self._file.close()


@contextmanager
def _whole() -> Iterator[None]:
    """Reading a tar: raises Unreadable if it is broken or cut there."""
    try:
        yield
    except (tarfile.TarError, zlib.error, OSError, EOFError, ValueError) as error:
        raise Unreadable("The archive is broken or not whole: %(said)s.", said=_said(error)) from None


class _Member(tarfile.TarInfo):
    """Its long names and other notes are read into memory, whatever length they claim to have."""

    def _proc_pax(self, tar: tarfile.TarFile) -> Any:
        self._limit()
        return super()._proc_pax(tar)  # type: ignore[misc]

    def _proc_gnulong(self, tar: tarfile.TarFile) -> Any:
        self._limit()
        return super()._proc_gnulong(tar)  # type: ignore[misc]

    def _limit(self) -> None:
        if self.size > _LONGEST_HEADER_BYTES:
            raise tarfile.ReadError(f"a header of {self.size} bytes")


class Folder(Archive):
    """What lies below a folder, by name. No link is followed, wherever it comes from meanwhile."""

    def __init__(self, path: Path) -> None:
        """`path` is real: it was found to be one that may be read. Should a part of it be a link by now, it is not."""
        self._descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        self._real = self._real_of(self._descriptor)
        if self._real != path:
            os.close(self._descriptor)
            raise Unreadable("The folder was moved meanwhile.")
        self._names: list[str] = []

    def look(self, progress: Progress = lambda done, total: None, most: int = 0) -> Contents:
        contents = Contents()
        self._names = []
        number = 0
        for here, folders, files, descriptor in os.fwalk(".", dir_fd=self._descriptor, follow_symlinks=False):
            folders[:] = sorted(name for name in folders if not is_junk(name))
            for file in sorted(files):
                if most and number >= most:
                    break
                number += 1
                name = (PurePosixPath(here) / file).as_posix()
                self._names.append(name)
                if number % 1000 == 1:
                    progress(0, 0)
                try:
                    found = os.stat(file, dir_fd=descriptor, follow_symlinks=False)
                except OSError:
                    continue
                if not stat.S_ISREG(found.st_mode):
                    contents.problems.append(_no_file(number, name))
                    continue
                contents.unpacked += found.st_size
                self._too_much(contents, contents.unpacked)
                shown = name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
                if contents.take(number, shown, found.st_size) and suffix(name) in TEXT_SUFFIXES:
                    text = self._open(name)
                    if text is not None:
                        with text:
                            contents.keep_text(shown, text.read, found.st_size, most)
            if most and number >= most:
                contents.whole = False
                break
        return contents

    def read(self, wanted: Container[int]) -> Iterator[tuple[int, bytes | BadRow]]:
        for number, name in enumerate(self._names, 1):
            if number not in wanted:
                continue
            file = self._open(name)
            if file is None:
                yield number, _no_file(number, name)
                continue
            with file:
                data = file.read(LARGEST_PICTURE_BYTES + 1)
                size = max(os.fstat(file.fileno()).st_size, len(data))
            yield number, data if len(data) <= LARGEST_PICTURE_BYTES else _too_large(number, size)

    def _open(self, name: str) -> BinaryIO | None:
        """None if it is no regular file of this folder (any more)."""
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            descriptor = os.open(name, flags, dir_fd=self._descriptor)
        except OSError:
            return None
        regular = stat.S_ISREG(os.fstat(descriptor).st_mode)
        if not regular or not self._real_of(descriptor).is_relative_to(self._real):
            os.close(descriptor)
            return None
        return os.fdopen(descriptor, "rb")

    @staticmethod
    def _real_of(descriptor: int) -> Path:
        return Path(f"/proc/self/fd/{descriptor}").readlink()

    def close(self) -> None:
        os.close(self._descriptor)


_BROKEN: tuple[Any, ...] = (
    zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error, OSError, EOFError, NotImplementedError, RuntimeError, ValueError,
)  # fmt: skip


def _no_file(number: int, name: str) -> BadRow:
    return problem("Members that are links or no files, which are never followed: %(count)d.", number, name)


def _too_large(number: int, size: int) -> BadRow:
    limit = f"{LARGEST_PICTURE_BYTES // 2**20} MiB"
    shown = f"{size / 2**20:.1f} MiB"
    return problem("Pictures larger than %(limit)s: %(count)d. Shrink them.", number, shown, limit=limit)


def _broken(number: int, name: str, error: Exception) -> BadRow:
    return problem(
        "Members that cannot be unpacked: %(count)d. Pack the archive anew.", number, f"{name}: {_said(error)}"
    )


def _said(error: Exception) -> str:
    return printable(str(error).rstrip(".") or type(error).__name__, 200)


def _encoding(raw: bytes) -> str:
    for encoding in ("utf-8", "gb18030"):
        try:
            raw.decode(encoding)
        except UnicodeDecodeError:
            continue
        return encoding
    return "utf-8"


def _decoded(raw: bytes) -> str:
    return raw.decode(_encoding(raw), "replace")
