from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
READERS = ["webapp/settings.py", "workers/config.py", "workers/recipes/registry.py"]
COMPOSE = (ROOT / "docker-compose.yml").read_text()
READ = re.compile(r"""(?:env\.\w+|_\w+|environ\.get)\(\s*"([A-Z][A-Z0-9_]+)\"""")


def read_by_code() -> set[str]:
    return {name for reader in READERS for name in READ.findall((ROOT / reader).read_text())} | {"PORT"}


def used_by_compose() -> set[str]:
    return set(re.findall(r"\$\{([A-Z_]+)", COMPOSE))


def in_example() -> set[str]:
    return set(re.findall(r"^#?([A-Z][A-Z0-9_]+)=", (ROOT / ".env.example").read_text(), re.MULTILINE))


def test_example_environment_names_every_variable_that_is_read_and_no_other() -> None:
    assert in_example() == read_by_code() | used_by_compose()


def test_every_variable_is_explained() -> None:
    explained = set(re.findall(r"^\| `([A-Z][A-Z0-9_]+)`", (ROOT / "docs/configuration.md").read_text(), re.MULTILINE))
    assert explained == read_by_code() | used_by_compose()


def test_example_environment_changes_nothing_when_it_is_used_as_it_is() -> None:
    lines = (ROOT / ".env.example").read_text().splitlines()
    assert [line for line in lines if line and not line.startswith("#")] == []


@pytest.mark.parametrize("lock", sorted(ROOT.glob("requirements/*.txt")), ids=lambda path: path.name)
def test_locks_name_no_registry(lock: Path) -> None:
    assert "://" not in lock.read_text()


@pytest.mark.parametrize(
    "name, value, said",
    [
        ("HTTPS", "maybe", "HTTPS must be true or false, not “maybe”."),
        ("LEASE_S", "long", "LEASE_S must be a number, not “long”."),
        ("DATABASE_URL", "mysql://x", "DATABASE_URL must begin with postgresql:// or sqlite://, not “mysql://”."),
        ("DATA_DIR", "/proc/nowhere", "DATA_DIR: /proc/nowhere cannot be written (No such file or directory)."),
        ("DEVICES", "many", "CommandError: DEVICES must be auto, cpu, cpu:2, gpu or gpu:0,1, not “many”."),
    ],
)
def test_a_wrong_value_is_one_sentence_at_start(name: str, value: str, said: str) -> None:
    result = subprocess.run(
        [sys.executable, "manage.py", "up"], cwd=ROOT, env=os.environ | {name: value}, capture_output=True, text=True
    )
    assert result.returncode != 0
    assert result.stderr.strip() == said
