"""A model that stays in memory for a while, as a process of its own with limits.

    python -m workers.trials.serve FOLDER MODULE MEMORY_BYTES

loads the artifact in FOLDER by the `load` of MODULE (see workers/contract/trials.py). Rows come on stdin and predictions
go to stdout, a line of JSON each. It ends with its stdin. What was typed goes nowhere else.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from workers.contract.trials import LARGEST_ANSWER_BYTES, Failed, Prediction, Row

_PR_SET_PDEATHSIG = 1
# Paddle reserves far more addresses than it uses (2.7 GB for 0.56 GB [measured]). What is used is what counts, and is
# looked at from outside; this is for what grows too fast for that.
RESERVED_BYTES = 4 * 2**30


def main() -> None:
    folder, module, memory_bytes = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    _limit(memory_bytes)
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    # Libraries print what they like, and not into the answers.
    os.dup2(2, 1)

    def say(**answer: Any) -> None:
        line = json.dumps(answer, ensure_ascii=False)
        if (size := len(line.encode())) > LARGEST_ANSWER_BYTES:
            line = json.dumps({"error": "too large", "bytes": size})
        answers.write(line + "\n")
        answers.flush()

    started = time.monotonic()
    try:
        predict: Callable[[list[Row]], list[Prediction]] = importlib.import_module(module).load(folder)
    except Exception as error:  # noqa: BLE001 - whatever it is, people are told
        say(error=_in_words(error))
        return
    say(start_seconds=time.monotonic() - started)
    for line in sys.stdin:
        rows = json.loads(line)
        started = time.monotonic()
        try:
            predictions = [prediction.model_dump(mode="json") for prediction in predict(rows)]
        except Failed as failed:
            say(template=failed.template, values=failed.values)
        except Exception as error:  # noqa: BLE001
            say(error=_in_words(error))
        else:
            say(predictions=predictions, seconds=time.monotonic() - started)


def _in_words(error: Exception) -> str:
    if isinstance(error, MemoryError):
        return "out of memory"
    line = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {line}"[:300]


def _limit(memory_bytes: int) -> None:
    # The thread that started us speaks with us for as long as we are of use, and ends with the worker.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    most = memory_bytes + RESERVED_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    # No lower priority than what trains: it is one core for seconds, and somebody waits (beside busy ranks a start took
    # 59 s at a niceness of 5 [measured]).
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


if __name__ == "__main__":
    main()
