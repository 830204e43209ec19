"""Set-up's installer: `install.py venv FOLDER` makes the virtual environment, `install.py packages LOCK …` fills it.

Pip does the work, not a faster tool: it follows the mirror that people have set for it. The locks are
complete, so nothing is resolved. Here only its long output becomes one line of progress.
"""

import importlib.util
import os
import re
import selectors
import shutil
import subprocess
import sys
import sysconfig
import time

NEEDED_BYTES = 4 * 2**30
last_shown = [0.0]
PACKAGE = r"(?:Collecting|Requirement already satisfied:) (\S+)"


def make_venv(folder):
    version = sys.version_info[:2]
    if not (3, 10) <= version <= (3, 13):
        sys.exit(
            "Evenkeel needs Python 3.10, 3.11, 3.12 or 3.13, and %s is %d.%d. "
            "If there is another one, name it: make setup PYTHON=python3.11" % (sys.executable, version[0], version[1])
        )
    free = shutil.disk_usage(os.path.dirname(os.path.abspath(folder))).free
    if free < NEEDED_BYTES:
        sys.exit("The packages need 4 GiB of free disk, and only %.1f GiB are left here." % (free / 2**30))
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


def install(locks):
    pip = [sys.executable, "-m", "pip", "install", "--require-hashes", "--no-deps", "--no-input"]
    pip += ["--disable-pip-version-check", "--progress-bar", "off"]
    total = 0
    for lock in locks:
        pip += ["-r", lock]
        with open(lock) as file:
            total += len(re.findall(r"^\S+==", file.read(), re.MULTILINE))
    process = subprocess.Popen(pip, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, bufsize=0)
    output, seen, before = [], 0, 0
    selector = selectors.DefaultSelector()
    selector.register(process.stdout, selectors.EVENT_READ)
    while True:
        if selector.select(timeout=2):
            line = process.stdout.readline().decode(errors="replace")
            if not line:
                break
            output.append(line)
            if line.startswith("Ignoring "):
                total -= 1
            elif re.match(PACKAGE, line):
                seen += 1
                progress("   %d of %d  %s" % (seen, total, re.match(PACKAGE, line).group(1)))
            elif line.startswith("Installing collected packages:"):
                before = installed()
        elif before:
            # Pip is silent while it unpacks and compiles.
            progress("   unpacking: %d of %d" % (installed() - before, seen))
    if process.wait() != 0:
        sys.exit(
            "\n" + "".join(output[-20:]) + "Installing the packages failed, see above; “make setup” goes on from here."
        )
    progress("   %d packages" % seen)
    if sys.stdout.isatty():
        print(flush=True)


def installed():
    return sum(name.endswith(".dist-info") for name in os.listdir(sysconfig.get_path("purelib")))


def progress(text):
    """On a terminal one line that changes, elsewhere a line every few seconds."""
    if sys.stdout.isatty():
        width = shutil.get_terminal_size().columns - 1
        print("\r" + text[:width].ljust(width), end="", flush=True)
    elif time.monotonic() - last_shown[0] > 5:
        last_shown[0] = time.monotonic()
        print(text, flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "venv":
        make_venv(sys.argv[2])
    else:
        install(sys.argv[2:])
