"""What a submission does with findings, and where the facts come from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command
from django.utils import translation

from jobs import checks, services
from jobs.models import Dataset, Host, Job, JobEvent
from jobs.templatetags.evenkeel import in_words
from workers.recipes.text_classification.settings import TextClassificationSettings

pytestmark = [pytest.mark.django_db, pytest.mark.postgresql_too]

WARNED = {"loss_scaling": {"init_scale": 1024}}
BLOCKED = {"training": {"batch_size": 101}}  # the dataset has 100 rows


@pytest.fixture
def submit(owner: User, dataset: Dataset) -> Any:
    def submit(**more: Any) -> Job:
        given = {"owner": owner, "actor": owner, "name": "x", "recipe": "text_classification", "dataset": dataset}
        return services.submit(**(given | more))

    return submit


def test_an_error_blocks_whatever_was_accepted(submit: Any) -> None:
    with pytest.raises(services.Refused) as caught:
        submit(settings=BLOCKED | WARNED, accepted_warnings=True)
    assert not isinstance(caught.value, services.Warned)
    assert list(caught.value.errors) == ["training.batch_size"]
    assert "training set of 100 rows" in caught.value.errors["training.batch_size"]
    assert not Job.objects.exists()


def test_a_warning_wants_consent_and_is_then_recorded(submit: Any, owner: User) -> None:
    with pytest.raises(services.Warned) as caught:
        submit(settings=WARNED)
    assert [finding.code for finding in caught.value.warnings] == ["loss_scaling_unused"]
    assert not Job.objects.exists()
    job = submit(settings=WARNED, accepted_warnings=True)
    event = JobEvent.objects.get(job=job, kind="warning_accepted")
    assert (event.actor, event.reason, event.attempt) == (owner, "loss_scaling_unused", job.newest)
    assert in_words(event).startswith("Submitted in spite of a warning: Loss scaling was changed")
    with translation.override("zh-hans"):
        assert "Loss scaling" not in in_words(event)


def test_consent_to_nothing_leaves_no_trace(submit: Any) -> None:
    submit(settings={}, accepted_warnings=True)
    assert not JobEvent.objects.filter(kind="warning_accepted").exists()


def test_the_command_line_wants_a_word_too(tmp_path: Path, owner: User, dataset: Dataset) -> None:
    file = tmp_path / "job.yaml"
    file.write_text("name: x\ndataset: reviews\nsettings: {loss_scaling: {init_scale: 1024}}\n")
    with pytest.raises(CommandError, match=r"precision.mode: warning: [\s\S]*add --anyway") as refused:
        call_command("submit", str(file))
    assert refused.value.returncode == 2
    assert not Job.objects.exists()
    call_command("submit", str(file), "--anyway")
    assert JobEvent.objects.filter(kind="warning_accepted").count() == 1


def host(name: str, **fields: Any) -> Host:
    return Host.objects.create(name=name, **({"online": True, "disk_free_bytes": 10**12} | fields))


def codes(owner: User, dataset: Dataset | None = None, cloned_from: Job | None = None, **changes: Any) -> list[str]:
    settings = TextClassificationSettings.model_validate(changes)
    findings = checks.findings("text_classification", settings, dataset, owner, cloned_from)
    last = ["advice"] if settings.model.source == "scratch" else []
    assert [finding.level for finding in findings if finding.level == "advice"] == last
    assert not last or findings[-1].code == "rate_for_pretrained"
    return [finding.code for finding in findings if finding.level != "advice"]


GPU = {"index": 0, "kind": "gpu", "name": "P100", "memory_bytes": 2**34, "compute_capability": "6.0"}
CPU = {"index": 0, "kind": "cpu", "name": "CPU", "memory_bytes": 2**34, "compute_capability": None}


def test_only_hosts_that_take_attempts_count(owner: User) -> None:
    host("old", devices=[GPU])
    assert codes(owner, precision={"mode": "bf16"}) == ["bf16_unsupported"]
    new = host("new", devices=[GPU | {"compute_capability": "8.6"}])
    assert codes(owner, precision={"mode": "bf16"}) == []
    Host.objects.filter(pk=new.pk).update(online=False)
    assert codes(owner, precision={"mode": "bf16"}) == ["bf16_unsupported"]


def test_where_there_are_gpus_slots_of_cpus_are_no_devices(owner: User) -> None:
    host("cpu", devices=[CPU, CPU | {"index": 1}])
    assert codes(owner, devices={"devices_per_node": 2}) == []
    host("gpu", devices=[GPU])
    assert codes(owner, devices={"devices_per_node": 2}) == ["more_ranks_than_devices"]


def test_lengths_are_those_measured_at_registration(owner: User, dataset: Dataset) -> None:
    assert codes(owner, dataset) == []
    dataset.statistics = {"text_length": {"train": {"min": 1, "p50": 60, "p90": 80, "p99": 90, "max": 200}}}
    assert codes(owner, dataset) == ["texts_are_cut"]
    # Counted tokens are better than characters.
    dataset.statistics |= {"token_lengths": {"percentiles": {"train": [10] * 101}}}
    assert codes(owner, dataset) == []
    dataset.statistics |= {"token_lengths": {"percentiles": {"train": [10] * 90 + [99] * 11}}}
    assert codes(owner, dataset) == ["texts_are_cut"]


NOT_FINITE = "Rows whose weight is not finite: %(count)d."


def test_weights_are_those_that_were_checked(owner: User, dataset: Dataset) -> None:
    weighted = {"data": {"weight_column": "weight"}}
    dataset.columns, dataset.reading = ["text", "label", "weight"], {}
    assert codes(owner, dataset, **weighted) == [], "datasets from the command line were not checked at all"
    dataset.reading = {"weight_column": ""}
    assert codes(owner, dataset, **weighted) == ["weights_unchecked"]
    dataset.reading = {"weight_column": "weight"}
    dataset.statistics = {"weights": {"train": {"zero": 100}}}
    assert codes(owner, dataset, **weighted) == ["weights_all_zero"]
    dataset.statistics = {"weights": {"train": {"zero": 60}}}
    dataset.findings = [{"level": "warning", "template": NOT_FINITE, "values": {"count": 2}, "rows": []}]
    assert codes(owner, dataset, **weighted) == ["weights_mostly_zero", "weights_not_finite"]
    assert codes(owner, dataset) == []


def test_what_a_job_needs_is_estimated_where_its_model_is_known(owner: User, dataset: Dataset) -> None:
    def parameters(**model: Any) -> int | None:
        settings = TextClassificationSettings.model_validate({"model": model})
        found = checks.estimate("text_classification", settings, dataset, owner)
        return found and found.parameters

    assert parameters(source="hub", name="ernie-3.0-nano-zh") == 17_912_232
    assert parameters(source="folder", folder="my-own") is None
    assert parameters() is not None
    assert checks.estimates("text_classification") and not checks.estimates("sequences")


def test_the_source_is_the_job_whose_weights_are_taken_or_that_was_cloned(job: Job, owner: User, other: User) -> None:
    two = {"devices": {"devices_per_node": 2}}
    assert codes(owner, cloned_from=job, **two) == ["world_size_changed"]
    assert codes(owner, model={"source": "job", "job": job.pk}, **two) == ["world_size_changed"]
    assert codes(other, model={"source": "job", "job": job.pk}, **two) == [], "nothing is told about others' jobs"


def test_errors_come_first(owner: User, dataset: Dataset) -> None:
    assert codes(owner, dataset, **(WARNED | BLOCKED)) == ["batch_larger_than_dataset", "loss_scaling_unused"]
