"""Django's admin: machine-owned rows, and retrying many jobs at once."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import User
from django.test import Client

from jobs.models import Attempt, Dataset, Job
from tests.browser import seed
from workers.contract.states import EndReason

URL = "/admin/jobs/job/"


@pytest.fixture
def admin(db: None) -> Client:
    client = Client()
    client.force_login(User.objects.create_superuser("root"))
    return client


@pytest.fixture
def failed(owner: User, dataset: Dataset) -> list[Job]:
    jobs = [seed.submit(owner, dataset, f"job {number}") for number in range(3)]
    for job in jobs[:2]:
        seed.fail_with_nan(job, at=30)
    return jobs


def _selected(jobs: list[Job], **more: str) -> dict[str, object]:
    return {"action": "retry_selected", "_selected_action": [job.pk for job in jobs], **more}


MODELS = ("job", "attempt", "host", "dataset", "jobevent", "checkpoint", "evaluation", "artifact", "placement")


@pytest.mark.parametrize("model", MODELS)
def test_every_list_and_row_opens_under_the_strict_policy(admin: Client, failed: list[Job], model: str) -> None:
    seed.host()
    answer = admin.get(f"/admin/jobs/{model}/")
    assert answer.status_code == 200
    assert "default-src 'self'" in answer["Content-Security-Policy"]
    assert "<style" not in answer.text and not any(
        "src=" not in tag for tag in answer.text.split("<script")[1:] if "application/json" not in tag[:80]
    )


@pytest.mark.parametrize("model", [model for model in MODELS if model not in ("host", "dataset")])
def test_what_machines_write_cannot_be_changed(admin: Client, failed: list[Job], model: str) -> None:
    assert admin.get(f"/admin/jobs/{model}/add/").status_code == 403
    attempt = Attempt.objects.get(job=failed[0])
    rows = {"job": failed[0].pk, "attempt": attempt.pk}
    if model in rows:
        page = f"/admin/jobs/{model}/{rows[model]}/change/"
        assert admin.get(page).status_code == 200
        assert admin.post(page, {"status": "succeeded"}).status_code == 403
        assert admin.post(f"/admin/jobs/{model}/{rows[model]}/delete/", {"post": "yes"}).status_code == 403


def test_failed_jobs_are_filtered_by_reason(admin: Client, failed: list[Job]) -> None:
    page = admin.get(URL, {"status__exact": "failed", "end_reason__exact": EndReason.NON_FINITE.value}).text
    assert "job 0" in page and "job 1" in page and "job 2" not in page


def test_the_page_in_between_shows_each_job_with_its_reason(admin: Client, failed: list[Job]) -> None:
    page = admin.post(URL, _selected(failed)).text
    assert page.count("Loss was NaN at step 30 on rank 1") == 2
    assert "cannot be retried" in page and 'name="optimizer.learning_rate"' in page
    assert Attempt.objects.count() == 3


def test_only_what_is_filled_in_is_changed(admin: Client, failed: list[Job]) -> None:
    changes = {"retry": "Retry", "optimizer.learning_rate": "1e-5", "clipping.max_norm": "", "start": "checkpoint"}
    answer = admin.post(URL, _selected(failed[:2], **changes), follow=True)
    for job in failed[:2]:
        job.refresh_from_db()
        new = job.newest
        assert new is not None and new.number == 2 and new.asked_by is not None
        assert new.asked_by.get_username() == "root"
        assert [change["name"] for change in new.settings_changed] == ["optimizer.learning_rate"]
        assert new.start_from is not None and new.start_from.step == 15
        assert f"#{job.pk} {job.name}: attempt 2 is queued, from step 15." in answer.text


def test_a_setting_that_may_be_empty_is_emptied_by_none(admin: Client, failed: list[Job]) -> None:
    admin.post(URL, _selected(failed[:1], retry="Retry", **{"clipping.max_norm": "none"}))
    failed[0].refresh_from_db()
    assert failed[0].newest is not None and failed[0].newest.settings["clipping"]["max_norm"] is None


def test_one_that_cannot_be_retried_does_not_keep_the_others_from_it(admin: Client, failed: list[Job]) -> None:
    answer = admin.post(URL, _selected(failed, retry="Retry", start="scratch"), follow=True)
    assert [job.attempts.count() for job in failed] == [2, 2, 1]
    assert "was not retried" in answer.text and "still in progress" in answer.text
    assert Attempt.objects.filter(number=2, start_from__isnull=False).count() == 0


def test_a_wrong_value_starts_nothing_and_is_kept(admin: Client, failed: list[Job]) -> None:
    answer = admin.post(URL, _selected(failed[:2], retry="Retry", **{"optimizer.learning_rate": "slow"}))
    assert Attempt.objects.count() == 3
    assert "not “slow”" in answer.text and 'value="slow"' in answer.text


def test_staff_sees_and_retries_as_on_its_pages_and_others_do_not(staff: User, owner: User, failed: list[Job]) -> None:
    """Staff that is no superuser has no permission of Django's, and needs none."""
    client = Client()
    client.force_login(owner)
    assert client.post(URL, _selected(failed[:2], retry="Retry")).status_code == 302
    assert Attempt.objects.count() == 3
    client.force_login(staff)
    assert client.get(URL).status_code == 200
    client.post(URL, _selected(failed[:2], retry="Retry"))
    assert Attempt.objects.count() == 5
