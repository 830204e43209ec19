from __future__ import annotations

import ipaddress
import os
import re
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from jobs.models import Host
from workers.config import DEVICES, HOST_NAME

ADDRESS = re.compile(r"[A-Za-z0-9][A-Za-z0-9.:-]*|\[[0-9a-fA-F:]+\](:\d+)?")
# What a host needs of the project, to run and to build its image.
CODE = "workers requirements pyproject.toml docs/deployment Dockerfile .dockerignore"

HEAD = """\
#!/bin/sh
# Joins the host “{name}” to Evenkeel ({devices}). It may run again at any time: running attempts go on.
#
# 1. Mount the shared storage on {target} at /srv/evenkeel/storage, writable by user {uid}.
# 2. Here, in the project's folder: the code, so that both sides are of the same version.
#      tar -cz {code} | ssh root@{target} 'mkdir -p /opt/evenkeel && tar --no-same-owner -xzC /opt/evenkeel'
# 3. {how}
set -eu
umask 022

# A function, so that all of it has arrived before anything is done, and nothing in it reads the rest as its input.
join() {{
cd /opt/evenkeel
[ -f workers/__main__.py ] || {{ echo "/opt/evenkeel does not hold the code, see step 2."; exit 1; }}
[ -d /srv/evenkeel/storage ] || {{ echo "The shared storage is not mounted at /srv/evenkeel/storage, see step 1."; exit 1; }}

# The same number on all machines: it owns what lies in the shared storage.
getent group evenkeel >/dev/null || groupadd --gid {uid} evenkeel
getent passwd evenkeel >/dev/null || useradd --uid {uid} --gid {uid} --home-dir /srv/evenkeel/data --shell /usr/sbin/nologin evenkeel
install -d -o evenkeel -g evenkeel -m 0750 /srv/evenkeel/scratch /srv/evenkeel/data /srv/evenkeel/models
install -d -m 0700 /etc/evenkeel
"""

ASK = """
# The password goes from the terminal into the file, and into no command line.
stty -echo </dev/tty
printf 'Password of Redis, as REDIS_URL has it: ' >/dev/tty
IFS= read -r password </dev/tty
stty echo </dev/tty
echo >/dev/tty
"""

ENVIRONMENT = """
(umask 077; cat >/etc/evenkeel/worker.env) <<{end}
{lines}
END
"""

SYSTEMD = """
[ -x .venv/bin/python ] || python3 requirements/install.py venv .venv
{packages}
.venv/bin/python -m compileall -q workers
install -m 0644 docs/deployment/systemd/evenkeel-worker.service /etc/systemd/system/evenkeel-worker.service
systemctl daemon-reload
systemctl enable --quiet evenkeel-worker
systemctl restart evenkeel-worker
echo "Started. “{name}” appears on the page Hosts within seconds; what it says: journalctl -u evenkeel-worker"
"""

CPU_PACKAGES = ".venv/bin/python requirements/install.py packages requirements/worker.txt requirements/trainer-cpu.txt"

GPU_PACKAGES = """\
# Unverified: nothing of Evenkeel has run on a GPU yet. The locks come last, so that their versions hold.
: "${PADDLE_INDEX:?is not set: the address of Paddle's own package index for the CUDA version of this host, from Paddle's install page}"
.venv/bin/python -m pip install --extra-index-url "$PADDLE_INDEX" -r requirements/trainer-gpu.txt
.venv/bin/python requirements/install.py packages requirements/worker.txt requirements/trainer-base.txt"""

COMPOSE = """
docker compose -f docs/deployment/compose.worker.yml --profile {profile} up -d --build
echo "Started. “{name}” appears on the page Hosts within seconds."
echo "What it says: docker compose -f docs/deployment/compose.worker.yml --profile {profile} logs"
"""

TAIL = """\
}

join </dev/null
"""

# The user's number in the images, too.
UID = 10001


class Command(BaseCommand):
    help = "Print the script that joins a host: its environment, packages and service. Changes nothing here."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("name", help="letters, digits, dots and dashes; unique among the hosts")
        parser.add_argument("--devices", default="gpu", help="gpu, gpu:0,1, cpu:4 (slots) or auto; default: gpu")
        parser.add_argument("--address", default="", help="under which other hosts, and ssh from here, reach it")
        parser.add_argument("--redis", default="", metavar="ADDRESS[:PORT]", help="under which the host reaches Redis")
        parser.add_argument("--compose", action="store_true", help="in a container instead of under systemd")
        parser.add_argument(
            "--with-password",
            action="store_true",
            help="write the password of Redis into the script, to be piped to ssh; otherwise the script asks for it",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        name, devices, address = options["name"], options["devices"], options["address"]
        if not HOST_NAME.fullmatch(name):
            raise CommandError(f"A host's name is letters, digits, dots and dashes, at most 100, not “{name}”.")
        if not DEVICES.fullmatch(devices):
            raise CommandError(f"--devices must be auto, cpu, cpu:2, gpu or gpu:0,1, not “{devices}”.")
        for option in ("address", "redis"):
            if options[option] and not ADDRESS.fullmatch(options[option]):
                raise CommandError(f"--{option} must be a name or an address, not “{options[option]}”.")
        if Host.objects.filter(name=name, online=True).exists():
            raise CommandError(f"A host “{name}” is online already; names are unique.")

        cpu = devices.startswith("cpu")
        target = address or name
        url, password = redis_for_hosts(options["redis"])
        asks = bool(password) and not options["with_password"]
        how = "There, as root: save this script and run it."
        if not asks:
            again = f"host_add {name} --devices {devices}" + (
                f" --redis {options['redis']}" if options["redis"] else ""
            )
            again += (f" --address {address}" if address else "") + (" --compose" if options["compose"] else "")
            how = f"There, as root. From here: manage.py {again} --with-password | ssh root@{target} sh"
        lines = [
            f"REDIS_URL={url.replace('PASSWORD', '$password' if asks else password)}",
            f"HOST_NAME={name}",
            f"DEVICES={devices}",
            *([f"HOST_ADDRESS={address}"] if address else []),
            # In a container these are the image's.
            "STORAGE_ROOT=/srv/evenkeel/storage",
            "SCRATCH_ROOT=/srv/evenkeel/scratch",
            "DATA_DIR=/srv/evenkeel/data",
            "MODEL_ROOTS=/srv/evenkeel/models",
            # Same on web and hosts.
            *(
                f"{shared}={os.environ[shared]}"
                for shared in ("DATASET_ROOTS", "LOG_CAP_BYTES", "EVENKEEL_RECIPES")
                if os.environ.get(shared)
            ),
        ]
        script = HEAD.format(name=name, devices=devices, target=target, uid=UID, code=CODE, how=how)
        script += ASK if asks else ""
        script += ENVIRONMENT.format(end="END" if asks else "'END'", lines="\n".join(lines))
        if options["compose"]:
            script += COMPOSE.format(name=name, profile="cpu" if cpu else "gpu")
        else:
            script += SYSTEMD.format(name=name, packages=CPU_PACKAGES if cpu else GPU_PACKAGES)
        self.stdout.write(script + TAIL, ending="")


def redis_for_hosts(given: str) -> tuple[str, str]:
    """(URL with PASSWORD in the password's place, the password as the URL has it)."""
    parts = urlsplit(settings.REDIS_URL)
    if parts.scheme not in ("redis", "rediss"):
        raise CommandError(
            "This installation's Redis server is an embedded one, which no other machine reaches: set REDIS_URL to one "
            "on the network (docs/deployment.md)."
        )
    where = (
        given or f"{f'[{parts.hostname}]' if ':' in (parts.hostname or '') else parts.hostname}:{parts.port or 6379}"
    )
    if not given and known_only_here(parts.hostname or ""):
        raise CommandError(
            f"Another machine does not reach Redis under “{parts.hostname}”; say --redis ADDRESS[:PORT] as seen from there."
        )
    if not re.search(r"[^:]:\d+$|\]:\d+$", where):
        where += f":{parts.port or 6379}"
    credentials, password = "", parts.password or ""
    if password:
        credentials = f"{parts.username or ''}:PASSWORD@"
    return f"{parts.scheme}://{credentials}{where}{parts.path}", password


def known_only_here(host: str) -> bool:
    """This machine's own addresses, and names without a domain, such as that of a service in docker-compose.yml."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return "." not in host
