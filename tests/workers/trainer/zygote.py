"""A process that has imported Paddle once and forks a rank whenever it is asked to.

Importing Paddle and PaddleNLP takes 5 to 11 seconds per process; forking after it works on CPU.
Requests and answers are lines of JSON on stdin and stdout; a rank is the real
`workers.trainer.__main__.main`, with its own environment, log and exit status; without "export", the
export is left out, which takes longer than all the rest of a small run.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback
from typing import Any


def rank(request: dict) -> None:
    log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.environ.update(request["environment"])
    if not request["export"]:
        finish.finish = lambda run, reason: reason
    main = importlib.import_module(request.get("module", "workers.trainer.__main__")).main

    code = 70
    try:
        code = main(request["folder"])
    except BaseException:  # noqa: BLE001  (a forked child must never return into the zygote)
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


finish: Any = None  # the module, once Paddle is there


def serve() -> None:
    global finish
    import paddle  # noqa: F401
    import paddlenlp.transformers  # noqa: F401

    import workers.trainer.start  # noqa: F401
    from workers.trainer import finish

    print(json.dumps("ready"), flush=True)
    children: dict[int, int] = {}
    for line in sys.stdin:
        request = json.loads(line)
        if "folder" in request:
            pid = os.fork()
            if pid == 0:
                rank(request)
            print(json.dumps(pid), flush=True)
        else:
            pid = request["wait"]
            if pid not in children:
                children[pid] = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            print(json.dumps(children[pid]), flush=True)


if __name__ == "__main__":
    serve()
