from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from workers.config import BASE_DIR
from workers.supervisor import copying

# Stops in the middle of the file, as a process that waits for a stalled mount does.
_HANGS = """
import sys, time
from pathlib import Path
from workers.supervisor import copying

def hang() -> bool:
    print("copying", flush=True)
    time.sleep(60)
    return False

copying.copy_folder(Path(sys.argv[1]), Path(sys.argv[2]), None, hang)
"""


def test_what_a_killed_copy_left_is_gone_after_the_next_one(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "storage" / "step-1"
    source.mkdir()
    (source / "weights").write_bytes(b"w" * 1000)
    command = [sys.executable, "-c", _HANGS, str(source), str(target)]
    with subprocess.Popen(command, cwd=BASE_DIR, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline()
        process.send_signal(signal.SIGKILL)
    assert [path.name for path in target.parent.iterdir()] == [f".step-1.{process.pid}.partial"]
    (target.parent / ".step-1.tar.1.partial").write_bytes(b"half of it")

    copying.copy_folder(source, target, None)
    copying.pack(target, target.with_name("step-1.tar"))
    assert sorted(path.name for path in target.parent.iterdir()) == ["step-1", "step-1.tar"]
