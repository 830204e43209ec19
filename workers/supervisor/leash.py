"""`python leash.py PARENT COMMAND…` becomes COMMAND, which is killed when its parent thread ends.

A program of its own, because the supervisor has threads and must not run Python between fork and
exec. PDEATHSIG survives exec.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1

if __name__ == "__main__":
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(sys.argv[1]):
        sys.exit("the supervisor is gone")
    os.execv(sys.argv[2], sys.argv[2:])
