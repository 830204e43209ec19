"""The facts for the checks across fields (workers/contract/checks.py), and their findings in the reader's language."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from django.contrib.auth.models import User
from django.http import QueryDict
from django.utils.translation import gettext as _

from jobs.models import Dataset, Host, Job
from workers.contract import checks as contract
from workers.contract.checks import DatasetFacts, Estimate, Facts, Finding, HostFacts, SourceFacts, memory_suffices
from workers.contract.datasets import WEIGHT
from workers.contract.fields import SettingsGroup
from workers.recipes import registry


def findings(
    recipe: str, settings: SettingsGroup, dataset: Dataset | None, owner: User, cloned_from: Job | None = None
) -> list[Finding]:
    """Of all the recipe's checks, errors first and advice last."""
    checks = registry.recipe(recipe).checks
    if not checks:
        return []
    facts = _facts(settings, dataset, owner, cloned_from)
    found = [finding for check in checks for finding in check(settings, facts)]
    return sorted(found, key=lambda finding: ("error", "warning", "advice").index(finding.level))


def estimates(recipe: str) -> bool:
    """Whether memory and disk of the recipe's models can be estimated."""
    return memory_suffices in registry.recipe(recipe).checks


def estimate(
    recipe: str, settings: SettingsGroup, dataset: Dataset | None, owner: User, cloned_from: Job | None = None
) -> Estimate | None:
    """What one rank needs; None if it is not known before the model is loaded."""
    return contract.estimate(settings, _facts(settings, dataset, owner, cloned_from)) if estimates(recipe) else None


def judged(findings: list[Finding], sent: QueryDict) -> dict[str, Any]:
    """What a form shows of them, each with its text, and whether those who sent it said "anyway"."""
    said = [(finding, in_words(finding)) for finding in findings]
    warnings = [pair for pair in said if pair[0].level == "warning"]
    shown = sent.getlist("shown")
    return {
        "blocking": [pair for pair in said if pair[0].level == "error"],
        "warnings": warnings,
        "advice": [pair for pair in said if pair[0].level == "advice"],
        # Consent to a warning that the page had not shown is none.
        "anyway": bool(sent.get("anyway")) and all(pair[0].code in shown for pair in warnings),
    }


def in_words(finding: Finding) -> str:
    text: str = _(finding.template) % finding.values
    return text


def _facts(settings: SettingsGroup, dataset: Dataset | None, owner: User, cloned_from: Job | None) -> Facts:
    return Facts(of_dataset(dataset), _hosts(), _source(settings, owner, cloned_from))


def of_dataset(dataset: Dataset | None) -> DatasetFacts | None:
    if dataset is None:
        return None
    statistics = dataset.statistics
    tokens = ((statistics.get("token_lengths") or {}).get("percentiles") or {}).get("train")
    if tokens:
        measured = {f"p{percent}": length for percent, length in enumerate(tokens)}
    else:
        of_kind = "sequence_length" if dataset.kind == Dataset.Kind.SEQUENCES else "text_length"
        measured = (statistics.get(of_kind) or {}).get("train") or {}
    features = statistics.get("features") or []
    weights = (statistics.get("weights") or {}).get("train") or {}
    rows = int(dataset.splits.get("train") or 0)
    return DatasetFacts(
        train_rows=rows,
        lengths={name: int(value) for name, value in measured.items()},
        in_tokens=bool(tokens),
        columns=tuple(dataset.columns),
        features=tuple(feature["name"] for feature in features),
        target=str(statistics.get("target") or ""),
        largest=max((max(abs(feature["min"]), abs(feature["max"])) for feature in features), default=None),
        tightest=tuple(
            (int(steps), int(width), int(height))
            for of_split in (statistics.get("width_per_step") or {}).values()
            for steps, width, height in of_split.get("tightest") or []
        ),
        line_widths=tuple((statistics.get("line_widths") or {}).get("train") or []),
        weight_column=_weight_column(dataset),
        weightless=weights["zero"] / rows if rows and "zero" in weights else None,
        weights_not_finite=_found(dataset, "Rows whose weight is not finite: %(count)d."),
    )


def _weight_column(dataset: Dataset) -> str | None:
    """What was checked as weights; empty: nothing, None: it is not known."""
    if (dataset.reading.get("images") or {}).get("weights"):
        return WEIGHT
    column: str | None = dataset.reading.get("weight_column")
    # Of sequences only the column in the file has a name of its own.
    return WEIGHT if column and dataset.kind == Dataset.Kind.SEQUENCES else column


def _found(dataset: Dataset, template: str) -> int:
    """How many rows the check of the dataset (workers/datasets/) told of in these words."""
    return sum(int(said["values"]["count"]) for said in dataset.findings if said.get("template") == template)


def _hosts() -> tuple[HostFacts, ...]:
    """Online ones that take attempts. Where there is a GPU, attempts go to GPUs only (jobs/controller/place.py)."""
    hosts = list(Host.objects.filter(enabled=True))
    kind = "gpu" if any(device["kind"] == "gpu" for host in hosts for device in host.devices) else "cpu"
    return tuple(_host(host, kind) for host in Host.objects.accepting())


def _host(host: Host, kind: Any) -> HostFacts:
    devices = [device for device in host.devices if device["kind"] == kind]
    capabilities: list[float] = []
    for device in devices:
        with suppress(TypeError, ValueError):
            capabilities.append(float(device.get("compute_capability")))
    return HostFacts(
        name=host.name,
        kind=kind,
        devices=len(devices),
        memory_bytes=max((int(device.get("memory_bytes") or 0) for device in devices), default=0),
        disk_free_bytes=host.disk_free_bytes,
        compute_capabilities=tuple(capabilities),
        device_names=tuple(str(device.get("name") or "") for device in devices),
    )


def _source(settings: Any, owner: User, cloned_from: Job | None) -> SourceFacts | None:
    """The job whose weights are taken; else the one that was cloned. None if it was made by another recipe."""
    model = getattr(settings, "model", None)
    number = getattr(model, "job", None) if str(getattr(model, "source", "")) == "job" else None
    job = Job.objects.visible_to(owner).filter(pk=number).first() if number else cloned_from
    if job is None or job.newest is None:
        return None
    old, attempt = job.newest.settings, job.newest
    if "optimizer" not in old or "clipping" not in old:
        return None
    return SourceFacts(
        job=job.pk,
        world_size=attempt.nodes * attempt.devices_per_node,
        learning_rate=old["optimizer"].get("learning_rate"),
        max_norm=old["clipping"].get("max_norm"),
        parameters=attempt.plan.get("parameters") if number else None,
    )
