"""Every recipe from the filled form to a downloaded model that answers, with real ranks."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import re
import subprocess
import sys
import tarfile
import uuid
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User

from jobs.forms import SettingsForm
from jobs.models import Dataset, Job
from tests.end_to_end.stack import ROOT, Stack, why
from tests.end_to_end.visitor import Visitor
from tests.workers.recipes.examples import EXAMPLES, Example, glyphs
from workers.contract.datasets import SPLITS, dataset_key
from workers.contract.states import EndReason
from workers.datasets.written import content_hash
from workers.recipes.registry import recipe

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SAYS = {
    "text_classification": "scores",
    "text_regression": "value",
    "token_classification": "spans",
    "sequences": "value",
    "image_classification": "scores",
    "text_lines": "text",
}
ANSWER = "import json, sys; from pathlib import Path; from importlib import import_module as of; " + (
    "rows = of(sys.argv[1]).load(Path(sys.argv[2]))(json.load(sys.stdin)); "
    "print(json.dumps([row.model_dump() for row in rows]))"
)


def a_picture() -> str:
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(glyphs("abc")).save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()


def asked_of(name: str) -> dict[str, str]:
    (field,) = recipe(name).trial.fields  # type: ignore[union-attr]
    return {field.name: {"text": "好书妙", "numbers": "1,5 2,5 3,5", "image": a_picture()}[field.kind]}


def prepared(stack: Stack, name: str, example: Example) -> Dataset:
    """As a check leaves it."""
    key = dataset_key(uuid.uuid4().hex)
    folder = stack.data_dir / "storage" / key
    example.write(folder)
    files = {split: folder / f"{split}.jsonl" for split in SPLITS}
    rows = {split: len(file.read_text().splitlines()) for split, file in files.items()}
    content = content_hash({split: hashlib.sha256(file.read_bytes()).hexdigest() for split, file in files.items()})
    kind = recipe(name).dataset_kind
    return Dataset.objects.create(
        name=name, owner=User.objects.get(username="owner"), kind=kind, key=key, splits=rows, content_hash=content,
        labels=list(example.labels) if kind in ("texts", "tokens", "images") else [],
    )  # fmt: skip


def submit(visitor: Visitor, name: str, dataset: Dataset, example: Example) -> Job:
    form = {"name": f"{name} by form", "dataset": str(dataset.pk), "recipe": name}
    for item in SettingsForm(recipe(name)).fields():
        if item.kind != "checkbox":
            form[item.name] = item.value
        elif item.checked:
            form[item.name] = "on"
    chosen = example.settings | {"devices": {"devices_per_node": 2}, "precision": {"mode": "fp16"}}
    chosen["training"] = chosen["training"] | {"batch_size": 16}
    form |= {f"{group}.{key}": str(value) for group, of_group in chosen.items() for key, value in of_group.items()}
    answer = visitor.post("/jobs/new/", form)
    page = answer.read().decode()
    assert answer.status == 302, re.findall(r'class="[^"]*error[^"]*"[^>]*>([^<]+)', page)
    return Job.objects.get(pk=int(answer.headers["Location"].strip("/").split("/")[-1]))


def answers(name: str, folder: Path) -> list[dict[str, Any]]:
    command = [sys.executable, "-W", "ignore", "-c", ANSWER, recipe(name).trial.module, str(folder)]  # type: ignore[union-attr]
    said = subprocess.run(command, cwd=ROOT, input=json.dumps([asked_of(name)]), capture_output=True, text=True)
    assert said.returncode == 0, said.stderr[-2000:]
    found: list[dict[str, Any]] = json.loads(said.stdout.strip().splitlines()[-1])
    return found


@pytest.mark.parametrize("name", EXAMPLES)
def test_from_the_form_to_a_downloaded_model_that_answers(stack: Stack, tmp_path: Path, name: str) -> None:
    example = EXAMPLES[name]
    with closing(Visitor(stack.url)) as visitor:
        job = submit(visitor, name, prepared(stack, name, example), example)
        attempt = stack.wait_for_end(job, 300)
        assert attempt.end_reason == EndReason.COMPLETED, why(attempt)
        stack.assert_all_stored_once(attempt, ranks=2)
        page = visitor.ask("GET", f"/jobs/{job.pk}/").read().decode()
        for artifact in attempt.artifacts.all():
            address = f"/jobs/{job.pk}/artifacts/{artifact.pk}/"
            assert f'"{address}"' in page
            answer = visitor.ask("GET", address)
            with tarfile.open(fileobj=io.BytesIO(answer.read())) as archive:
                archive.extractall(tmp_path / artifact.name, filter="data")
    assert (tmp_path / "model").is_dir()
    (made,) = tmp_path.glob("inference*")
    folder = made if (made / "README.md").exists() else next(made.iterdir())
    (answered,) = answers(name, folder)
    assert answered[SAYS[name]] not in (None, [])
