"""From a file on somebody's computer to a trained model, through the pages' own requests, with Paddle."""

from __future__ import annotations

import json
from contextlib import closing

import pytest

from jobs.models import Dataset, Job
from tests.end_to_end.stack import Stack, until, why
from tests.end_to_end.visitor import Visitor
from tests.jobs.views.test_job_new import filled
from workers.contract.states import EndReason

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

TINY = {
    "data.max_length": "16", "model.hidden_size": "16", "model.layers": "1", "model.heads": "2",
    "model.vocabulary_size": "100", "training.epochs": "4", "training.batch_size": "8", "optimizer.learning_rate": "0.003",
}  # fmt: skip
READING = {
    "format": "table", "encoding": "gb18030", "delimiter": "comma", "header": "on", "quotes": "on", "text_column": "评论",
    "label_column": "类别", "dev_fraction": "0.1", "seed": "1",
}  # fmt: skip


def upload_and_submit(visitor: Visitor) -> Job:
    table = "评论,类别\r\n" + "".join(f'"{("好书", "坏书")[i % 2]},第{i}本",{"正负"[i % 2]}\r\n' for i in range(400))
    body = table.encode("gb18030")
    announced = json.dumps([{"field": "file", "name": "书评.csv", "bytes": len(body)}])
    answer = visitor.post(
        "/datasets/new/", {"source": "file", "name": "书评", "announced": announced}, Accept="application/json"
    )
    begun = json.loads(answer.read())
    for offset in range(0, len(body), 4000):
        part = body[offset : offset + 4000]
        visitor.ask("POST", f"{begun['uploads'][0]}?offset={offset}", part, Accept="application/json").read()

    page = visitor.ask("GET", f"{begun['next']}describe/").read().decode()
    assert "好书,第0本" in page and '<option value="gb18030" selected>' in page
    visitor.post(f"{begun['next']}describe/", READING).read()
    dataset = Dataset.objects.get()
    until(lambda: Dataset.objects.exclude(state="checking").exists(), "the check", 200)
    dataset.refresh_from_db()
    assert (dataset.state, dataset.splits) == ("ready", {"train": 360, "dev": 40}), dataset.findings
    assert "[CLS]" in visitor.ask("GET", begun["next"]).read().decode()
    rows = visitor.ask("GET", f"/datasets/{dataset.pk}/train.jsonl").read().decode().splitlines()
    assert len(rows) == 360 and set(json.loads(rows[0])) == {"text", "label"}

    asked = filled(dataset) | TINY | {"anyway": "on"}
    answer = visitor.post("/jobs/new/", asked)
    assert (answer.status, answer.read()) == (302, b"")
    job = Job.objects.get()
    assert answer.headers["Location"] == f"/jobs/{job.pk}/"
    return job


def test_an_uploaded_table_is_described_checked_and_trained_on(stack: Stack) -> None:
    with closing(Visitor(stack.url)) as visitor:
        job = upload_and_submit(visitor)
        attempt = stack.wait_for_end(job, 300)
        assert attempt.end_reason == EndReason.COMPLETED, why(attempt)
        assert attempt.evaluations.latest("pk").metrics["accuracy"] > 0.9
        assert "succeeded" in visitor.ask("GET", f"/jobs/{job.pk}/").read().decode().lower()
