"""`python -m workers`: the worker of this host, with the options it needs."""

from __future__ import annotations

import sys


def main() -> int:
    try:
        from workers.app import app, config
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    app.worker_main(
        [
            "worker",
            # The task takes a fraction of a second; threads of our own do the rest.
            *("--pool", "solo"),
            *("--queues", app.conf.task_default_queue, "--hostname", f"evenkeel@{config.host_name}"),
            # Chatter between workers, which also makes reconnecting after a restart of Redis fragile.
            *("--without-gossip", "--without-mingle", "--without-heartbeat"),
            *("--loglevel", "INFO"),
        ]
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
