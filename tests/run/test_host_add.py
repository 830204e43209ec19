from __future__ import annotations

import io
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from jobs.models import Host
from workers.config import Config

pytestmark = pytest.mark.django_db
ROOT = Path(__file__).parents[2]
PASSWORD = "s3cret%21"  # noqa: S105


@pytest.fixture(autouse=True)
def redis_on_the_network(settings: Any) -> None:
    settings.REDIS_URL = f"redis://:{PASSWORD}@redis.example.org:6380/1"


def script(*arguments: str) -> str:
    out = io.StringIO()
    call_command("host_add", *arguments, stdout=out)
    return out.getvalue()


def run_there(text: str, folder: Path) -> tuple[list[str], Path]:
    """The script on a machine that notes what would be done as root; (notes, the environment file)."""
    for name in ("opt", "srv/evenkeel/storage", "etc/evenkeel", "bin"):
        (folder / name).mkdir(parents=True)
    (folder / "opt/evenkeel").symlink_to(ROOT)
    programs = ["getent", "groupadd", "useradd", "install", "systemctl", "docker", "stty", "python3", "python"]
    for name in programs:
        program = folder / "bin" / name
        program.write_text(f'#!/bin/sh\necho "{name} $*" >>{folder}/notes\n' + ("exit 1\n" if name == "getent" else ""))
        program.chmod(0o755)
    text = text.replace(".venv/bin/python", "python").replace("[ -x python ]", "false")
    for root in ("/opt/", "/srv/", "/etc/"):
        text = text.replace(root, f"{folder}{root}")
    env = {"PATH": f"{folder}/bin:{os.environ['PATH']}", "PADDLE_INDEX": "index"}
    result = subprocess.run(["sh"], input=text, text=True, env=env, capture_output=True)
    assert result.returncode == 0, result.stderr
    assert "appears on the page Hosts" in result.stdout
    return (folder / "notes").read_text().splitlines(), folder / "etc/evenkeel/worker.env"


@pytest.mark.parametrize(
    ("devices", "packages", "never"),
    [
        ("gpu:0,1", ["trainer-gpu.txt", "worker.txt requirements/trainer-base.txt"], "trainer-cpu"),
        ("cpu:4", ["worker.txt requirements/trainer-cpu.txt"], "trainer-gpu"),
    ],
)
def test_the_script_installs_and_starts_the_worker(
    devices: str, packages: list[str], never: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes, environment = run_there(script("gpu-1", "--devices", devices, "--with-password"), tmp_path)
    done = "\n".join(notes)
    for expected in packages:
        assert expected in done
    assert never not in done
    assert notes[-1] == "systemctl restart evenkeel-worker"
    assert environment.stat().st_mode & 0o777 == 0o600
    # The password is in the file and in no command line.
    assert PASSWORD not in done
    for line in environment.read_text().splitlines():
        name, _, value = line.partition("=")
        monkeypatch.setenv(name, value)
    config = Config.from_environment()
    assert config.redis_url == f"redis://:{PASSWORD}@redis.example.org:6380/1"
    assert (config.host_name, config.devices, config.host_address) == ("gpu-1", devices, "")
    assert str(config.storage_root).endswith("/srv/evenkeel/storage")


def test_in_a_container_nothing_is_installed(tmp_path: Path) -> None:
    notes, _ = run_there(script("gpu-1", "--compose", "--with-password"), tmp_path)
    assert notes[-1] == "docker compose -f docs/deployment/compose.worker.yml --profile gpu up -d --build"
    assert not any("pip" in note or "systemctl" in note for note in notes)


def test_without_being_asked_the_password_is_not_shown() -> None:
    text = script("gpu-1", "--address", "10.0.0.7")
    assert PASSWORD not in text
    assert "REDIS_URL=redis://:$password@redis.example.org:6380/1" in text
    assert "read -r password </dev/tty" in text and "HOST_ADDRESS=10.0.0.7" in text
    assert subprocess.run(["sh", "-n"], input=text, text=True).returncode == 0


def test_no_credential_of_the_database_or_of_web_is_in_it(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgresql://u:p@h/d")
    text = script("gpu-1", "--with-password")
    assert "DATABASE_URL" not in text and "SECRET_KEY" not in text and settings.SECRET_KEY not in text


def test_what_must_be_the_same_here_and_there_is_taken_along(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVENKEEL_RECIPES", "ours.recipe")
    monkeypatch.setenv("LOG_CAP_BYTES", "1000")
    text = script("gpu-1")
    assert "\nEVENKEEL_RECIPES=ours.recipe\n" in text and "\nLOG_CAP_BYTES=1000\n" in text


@pytest.mark.parametrize(
    ("url", "given", "there"),
    [
        ("redis://:p@localhost:6379/0", "train.example.org", "redis://:$password@train.example.org:6379/0"),
        ("redis://:p@redis:6379/0", "10.0.0.1:7000", "redis://:$password@10.0.0.1:7000/0"),
        ("rediss://worker:p@r.example.org/0", "", "rediss://worker:$password@r.example.org:6379/0"),
        ("redis://[fd00::1]:6379/0", "", "redis://[fd00::1]:6379/0"),
    ],
)
def test_redis_is_named_as_the_host_sees_it(url: str, given: str, there: str, settings: Any) -> None:
    settings.REDIS_URL = url
    text = script("gpu-1", *(["--redis", given] if given else []))
    assert re.findall(r"^REDIS_URL=(.*)$", text, re.MULTILINE) == [there]


@pytest.mark.parametrize(
    ("arguments", "url", "said"),
    [
        (["gpu 1"], "", "letters, digits, dots and dashes"),
        (["gpu-1", "--devices", "many"], "", "--devices must be"),
        (["gpu-1", "--address", "a;b"], "", "--address must be"),
        (["gpu-1", "--redis", "$(x)"], "", "--redis must be"),
        (["gpu-1"], "unix:///data/redis.sock", "embedded one"),
        (["gpu-1"], "redis://:p@127.0.0.1:6379/0", "does not reach Redis under “127.0.0.1”"),
        (["gpu-1"], "redis://:p@redis:6379/0", "does not reach Redis under “redis”"),
    ],
)
def test_what_cannot_work_is_refused_in_one_sentence(arguments: list[str], url: str, said: str, settings: Any) -> None:
    settings.REDIS_URL = url or settings.REDIS_URL
    with pytest.raises(CommandError, match=re.escape(said)):
        script(*arguments)


def test_a_name_is_not_given_twice() -> None:
    host = Host.objects.create(name="gpu-1", online=True)
    with pytest.raises(CommandError, match="online already"):
        script("gpu-1")
    Host.objects.filter(pk=host.pk).update(online=False)
    assert script("gpu-1")
