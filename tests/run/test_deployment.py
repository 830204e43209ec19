"""What can be said of the deployment's files by reading them. `make check-deployment` runs what needs tools."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
OF_HOSTS: dict[str, Any] = yaml.safe_load((ROOT / "docs/deployment/compose.worker.yml").read_text())
SERVICES: dict[str, Any] = COMPOSE["services"]
WORKERS = {f"{name} here": SERVICES[name] for name in ("worker", "worker-gpu")} | {
    f"{name} elsewhere": service for name, service in OF_HOSTS["services"].items()
}
DOCKERFILE = (ROOT / "Dockerfile").read_text()
UNITS = sorted((ROOT / "docs/deployment/systemd").glob("*.service"))


def test_the_parts_are_these() -> None:
    assert set(SERVICES) == {
        *("proxy", "web", "controller", "migrate", "worker", "worker-gpu", "database", "redis"),
    }


@pytest.mark.parametrize("name", [name for name in SERVICES if name != "migrate"])
def test_every_service_that_stays_has_a_health_check_and_comes_back(name: str) -> None:
    assert SERVICES[name]["healthcheck"]["test"]
    assert SERVICES[name]["restart"] == "unless-stopped"


def test_the_database_is_migrated_once_and_before_anything_reads_it() -> None:
    assert SERVICES["migrate"]["restart"] == "no"
    for name in ("web", "controller"):
        assert SERVICES[name]["depends_on"]["migrate"] == {"condition": "service_completed_successfully"}


@pytest.mark.parametrize("worker", WORKERS.values(), ids=list(WORKERS))
def test_hosts_get_no_credential_of_the_database_or_of_the_web_side(worker: dict[str, Any]) -> None:
    told = yaml.safe_dump(worker)
    for secret in ("DATABASE", "POSTGRES", "SECRET_KEY", "postgresql"):
        assert secret not in told
    assert "database" not in worker.get("networks", [])
    assert worker.get("env_file", []) in ([], ["/etc/evenkeel/worker.env"])


def test_only_web_controller_and_migrate_reach_the_database() -> None:
    assert {name for name, service in SERVICES.items() if "database" in service.get("networks", [])} == {
        *("web", "controller", "migrate", "database"),
    }
    assert COMPOSE["networks"]["database"] == {"internal": True}
    assert "ports" not in SERVICES["database"]


def test_only_the_proxy_is_reached_from_outside_unless_redis_is_published_on_purpose() -> None:
    published = {name: service["ports"] for name, service in SERVICES.items() if "ports" in service}
    assert set(published) == {"proxy", "redis"}
    assert published["redis"] == ["${REDIS_PUBLISH:-127.0.0.1:6379}:6379"]


def test_no_password_is_written_down_or_passed_as_an_argument() -> None:
    for name, service in SERVICES.items():
        assert not re.search(r"PASSWORD:?-?[^\"}]*:-", yaml.safe_dump(service))
        arguments = yaml.safe_dump([service.get("command"), service.get("healthcheck")])
        assert not re.search(r"(?<!\$)\$\{?(POSTGRES|REDIS)_PASSWORD|SECRET_KEY", arguments), name


def test_every_variable_can_be_set_in_containers() -> None:
    known = set(re.findall(r"^#([A-Z][A-Z0-9_]+)=", (ROOT / ".env.example").read_text(), re.MULTILINE))
    # For `manage.py up` and for finding errors, or fixed in the images.
    elsewhere = {"PORT", "DEBUG", "UPLOT_DIR", "STATIC_ROOT", "DATA_DIR", "MODEL_ROOTS"}
    used = set(re.findall(r"[A-Z][A-Z0-9_]+", (ROOT / "docker-compose.yml").read_text()))
    assert known - used == elsewhere


def test_redis_loses_no_message_because_it_is_full_and_keeps_them_through_a_restart() -> None:
    command = SERVICES["redis"]["command"][-1]
    assert "--maxmemory-policy noeviction" in command and "--appendonly yes" in command
    assert "requirepass" in command


@pytest.mark.parametrize(
    "service",
    [*(SERVICES[name] for name in ("proxy", "web", "controller", "migrate", "worker", "worker-gpu", "redis"))],
    ids=lambda service: service["image"],
)
def test_what_need_not_be_written_is_read_only(service: dict[str, Any]) -> None:
    assert service["read_only"] is True and service["cap_drop"] == ["ALL"]


def test_every_image_of_ours_has_a_user_of_its_own() -> None:
    stages = re.split(r"^FROM ", DOCKERFILE, flags=re.MULTILINE)[1:]
    by_name = {re.findall(r" AS (\S+)", stage)[0]: stage for stage in stages}
    targets = {service["build"]["target"] for service in [*SERVICES.values(), *WORKERS.values()] if "build" in service}
    assert targets == {"web", "worker-cpu", "worker-gpu", "proxy"}
    for target in targets:
        assert re.search(r"^USER (evenkeel|10001:10001)$", by_name[target], re.MULTILINE), target
    assert "trainer" not in by_name["web"] and "paddle" not in by_name["web"].lower()
    for worker in ("worker-cpu", "worker-gpu"):
        assert "web.txt" not in by_name[worker] and "COPY jobs" not in by_name[worker]


def test_what_images_copy_is_there_and_not_ignored() -> None:
    allowed = re.findall(r"^!(\S+)", (ROOT / ".dockerignore").read_text(), re.MULTILINE)
    copies = re.findall(r"^COPY (?!--)(.+) \S+$", DOCKERFILE, re.MULTILINE)
    for name in " ".join(copies).split():
        assert (ROOT / name).exists(), name
        assert any(name == entry or name.startswith(f"{entry}/") for entry in allowed), name


def test_images_are_named_without_a_registry() -> None:
    images = re.findall(r"^ARG \w+_IMAGE=(\S+)", DOCKERFILE, re.MULTILINE)
    images += [service["image"] for service in SERVICES.values()]
    assert len(images) > 6
    for image in images:
        assert "." not in image.partition(":")[0] and "localhost" not in image


def test_locks_that_images_install_are_complete() -> None:
    installs = [line for line in DOCKERFILE.replace("\\\n", " ").splitlines() if "pip install" in line]
    assert len(installs) == 3
    for line in installs:
        assert "--require-hashes --no-deps" in line


def test_a_restarted_worker_leaves_its_supervisors_alone() -> None:
    unit = (ROOT / "docs/deployment/systemd/evenkeel-worker.service").read_text()
    assert re.search("^KillMode=process$", unit, re.MULTILINE)
    # One rank that runs out of memory must not end the unit, and with it what else runs on the host.
    assert re.search("^OOMPolicy=continue$", unit, re.MULTILINE)
    # It would go with the unit, below the feet of those that live on.
    assert not re.search("^(PrivateTmp|RuntimeDirectory)=", unit, re.MULTILINE)


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.stem)
def test_units_run_as_a_user_of_their_own_and_read_what_they_need(unit: Path) -> None:
    text = unit.read_text()
    assert "User=evenkeel" in text
    environment = "worker.env" if unit.stem == "evenkeel-worker" else "web.env"
    assert re.findall(r"^EnvironmentFile=(\S+)", text, re.MULTILINE) == [f"/etc/evenkeel/{environment}"]


# --- the worker's loop in a container ------------------------------------------------------


@pytest.fixture
def fake_python(tmp_path: Path) -> Path:
    """A `python` that notes when it starts and ends, and lives until it is told otherwise."""
    program = tmp_path / "python"
    program.write_text(
        f"""#!/bin/sh
trap 'sleep 0.3; echo end >>{tmp_path}/log; exit 0' TERM
echo "start $$" >>{tmp_path}/log
[ -f {tmp_path}/status ] && exit "$(cat {tmp_path}/status)"
while :; do sleep 0.05; done
"""
    )
    program.chmod(0o755)
    return tmp_path


def in_container(fake_python: Path) -> subprocess.Popen[bytes]:
    env = {"PATH": f"{fake_python}:{os.environ['PATH']}"}
    return subprocess.Popen(["sh", str(ROOT / "docs/deployment/container-worker.sh")], env=env)


def lines(folder: Path, count: int) -> list[str]:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if (folder / "log").exists() and len(found := (folder / "log").read_text().splitlines()) >= count:
            return found
        time.sleep(0.05)
    pytest.fail(f"no {count} lines")


def test_a_container_outlives_its_worker_and_stops_with_it_when_told(fake_python: Path) -> None:
    with in_container(fake_python) as process:
        os.kill(int(lines(fake_python, 1)[0].split()[1]), signal.SIGKILL)
        started_again = lines(fake_python, 2)[1]
        time.sleep(0.3)
        process.terminate()
    assert process.returncode == 0
    assert (fake_python / "log").read_text().splitlines()[1:] == [started_again, "end"]


def test_a_container_whose_worker_refuses_its_settings_ends(fake_python: Path) -> None:
    (fake_python / "status").write_text("2")
    with in_container(fake_python) as process:
        assert process.wait(60) == 2
