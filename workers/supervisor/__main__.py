"""`python -m workers.supervisor RUN_FOLDER INCOMING` or `… --recover RUN_FOLDER`.

Detaches itself at once: whoever started it may wait for it without waiting long, and is not its parent.
"""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m workers.supervisor")
    parser.add_argument("folder", type=Path, help="the run folder")
    parser.add_argument("incoming", type=Path, nargs="?", help="file with the AttemptSpec of the start message")
    parser.add_argument("--recover", action="store_true", help="end what a dead supervisor left behind")
    options = parser.parse_args()
    if options.recover == (options.incoming is not None):
        parser.error("give either INCOMING or --recover")

    if os.fork():
        os._exit(0)

    # After the fork: whoever waits need not wait for the imports.
    from workers.config import Config
    from workers.run_folder import RunFolder
    from workers.supervisor import processes, supervise

    processes.become_subreaper()
    processes.hide_environment()
    folder = RunFolder(options.folder)
    try:
        if options.recover:
            supervise.recover(folder, Config.from_environment())
        else:
            supervise.start(folder, options.incoming, Config.from_environment())
        status = 0
    except BaseException:  # noqa: BLE001 - the last place where anyone could read it
        traceback.print_exc()
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    # A thread may hang in a stalled mount for ever; the ranks, if any are left, go with this process.
    os._exit(status)


if __name__ == "__main__":
    main()
