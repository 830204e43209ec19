"""Make the virtual environment, or say in one sentence why not. Runs on any Python 3."""

import importlib.util
import os
import shutil
import subprocess
import sys

NEEDED_BYTES = 4 * 2**30


def main(folder):
    version = sys.version_info[:2]
    if not (3, 10) <= version <= (3, 12):
        sys.exit(
            "Evenkeel needs Python 3.10, 3.11 or 3.12; %s is %d.%d. "
            "Name another one: make setup PYTHON=python3.11" % (sys.executable, version[0], version[1])
        )
    free = shutil.disk_usage(os.path.dirname(os.path.abspath(folder))).free
    if free < NEEDED_BYTES:
        sys.exit("The packages need 4 GiB of free disk; only %.1f GiB are left here." % (free / 2**30))
    print("== Virtual environment with Python %d.%d" % version, flush=True)
    if importlib.util.find_spec("ensurepip") is not None:
        subprocess.check_call([sys.executable, "-m", "venv", "--clear", folder])
        return
    # Debian keeps ensurepip in a package of its own; an ordinary user may still have pip.
    if importlib.util.find_spec("pip") is None:
        sys.exit("Python's venv and pip are missing. As root: apt-get install python%d.%d-venv" % version)
    subprocess.check_call([sys.executable, "-m", "venv", "--clear", "--without-pip", folder])
    packages = os.path.join(folder, "lib", "python%d.%d" % version, "site-packages")
    subprocess.check_call([sys.executable, "-m", "pip", "install", "-q", "--target", packages, "pip==24.3.1"])


if __name__ == "__main__":
    main(sys.argv[1])
