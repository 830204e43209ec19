from __future__ import annotations

import pytest
from django.utils import timezone

from jobs import services
from jobs.models import Attempt, Checkpoint, Dataset, Evaluation, Host, Job, Placement
from jobs.views.job import PARTS
from tests.browser import seed
from tests.jobs.views.conftest import MINE, People
from workers.contract.messages import Request
from workers.contract.states import EndReason, Status


@pytest.fixture
def running(job: Job) -> Attempt:
    return seed.start(job)


def test_only_the_owner_and_staff_see_it(people: People, job: Job) -> None:
    assert people.ask(f"/jobs/{job.pk}/") == MINE
    assert people.owner.get(f"/jobs/{job.pk + 1}/").status_code == 404


@pytest.mark.parametrize("part", PARTS)
def test_only_the_owner_and_staff_see_each_section(people: People, running: Attempt, part: str) -> None:
    assert people.ask(f"/jobs/{running.job_id}/", data={"part": part}) == MINE
    assert "<html" not in people.owner.get(f"/jobs/{running.job_id}/", {"part": part}).text


def test_an_unknown_section_or_attempt_is_not_there(people: People, job: Job) -> None:
    assert people.owner.get(f"/jobs/{job.pk}/", {"part": "secrets"}).status_code == 404
    assert people.owner.get(f"/jobs/{job.pk}/", {"attempt": "2"}).status_code == 404
    assert people.owner.get(f"/jobs/{job.pk}/", {"attempt": "x"}).status_code == 404


def _buttons(people: People, job: Job) -> set[str]:
    may = people.owner.get(f"/jobs/{job.pk}/").context["may"]
    return {name for name, allowed in may.items() if allowed}


def test_offers_only_what_makes_sense_in_the_state(people: People, job: Job, attempt: Attempt) -> None:
    assert _buttons(people, job) == {"cancel", "pause"}
    services.transition(attempt, Status.STARTING)
    assert _buttons(people, job) == {"cancel", "pause"}
    services.transition(attempt, Status.RUNNING)
    assert _buttons(people, job) == {"cancel", "pause", "finish", "checkpoint"}
    services.ask_to_leave(job, Request.PAUSE, actor=None)
    assert _buttons(people, job) == {"cancel"}
    attempt.refresh_from_db()
    services.transition(attempt, Status.PAUSED, reason=EndReason.PAUSED)
    assert _buttons(people, job) == {"resume", "retry"}


def test_a_queued_job_says_what_it_waits_for(people: People, job: Job, attempt: Attempt) -> None:
    host = seed.host()
    assert "Waiting for a host with" in people.owner.get(f"/jobs/{job.pk}/").text
    Attempt.objects.filter(pk=attempt.pk).update(devices_per_node=len(host.devices) + 1)
    assert "No host has" in people.owner.get(f"/jobs/{job.pk}/").text
    for change in ({"draining": True}, {"draining": False, "online": False}):
        Host.objects.update(**change)
        assert "No host takes jobs now" in people.owner.get(f"/jobs/{job.pk}/").text


def test_an_attempt_that_a_full_disk_keeps_from_its_start_says_so(people: People, job: Job, attempt: Attempt) -> None:
    host = seed.host(disk_total_bytes=2**30, disk_free_bytes=0)
    services.transition(attempt, Status.STARTING)
    placement = Placement.objects.create(attempt=attempt, host=host, node=0, device_kind="cpu", devices=[0])
    assert "The disk of cpu-1 is full." in people.owner.get(f"/jobs/{job.pk}/").text
    placement.claimed_at = timezone.now()
    placement.save()
    assert "The disk of" not in people.owner.get(f"/jobs/{job.pk}/").text


def test_a_job_that_never_ran_promises_nothing(people: People, job: Job) -> None:
    services.ask_to_leave(job, Request.CANCEL, actor=None)
    page = people.owner.get(f"/jobs/{job.pk}/").text
    assert "No model was exported." in page and "It was never started." in page
    assert "is exported when training ends" not in page and "Not started yet" not in page


def test_a_job_that_never_made_a_step_has_no_empty_charts_and_results(people: People, job: Job) -> None:
    assert "No model was exported." not in people.owner.get(f"/jobs/{job.pk}/").text
    services.ask_to_leave(job, Request.CANCEL, actor=None)
    page = people.owner.get(f"/jobs/{job.pk}/").text
    assert "It made no step." in page and '<div class="charts when-shown" hidden>' in page
    for part in ("evaluations", "try", "devices"):
        assert f'<section id="{part}"' not in page, part


def test_what_may_be_done_now_and_then_is_in_a_menu(people: People, job: Job, running: Attempt) -> None:
    def menu() -> str:
        page = people.owner.get(f"/jobs/{job.pk}/", {"part": "status"}).text
        return str(page.split('class="menu-items"')[1].split("</details>")[0])

    assert f"/jobs/{job.pk}/checkpoint/" in menu() and "clone=" in menu() and "/delete/" not in menu()
    seed.end(running, EndReason.COMPLETED)
    assert "/archive/" in menu() and "/delete/" in menu() and f"/jobs/{job.pk}/retry/" in menu()
    assert "/checkpoint/" not in menu()


@pytest.mark.parametrize(("epochs", "words"), [(1, "1 epoch of 7 steps over 50 rows, 1 rank, "), (3, "3 epochs of 7 ")])
def test_the_plan_is_a_sentence(people: People, running: Attempt, epochs: int, words: str) -> None:
    plan = {"total_steps": 7 * epochs, "epochs": epochs, "steps_per_epoch": 7, "train_rows": 50, "world_size": 1}
    Attempt.objects.filter(pk=running.pk).update(plan=plan | {"parameters": 9, "precision": "fp16"})
    page = people.owner.get(f"/jobs/{running.job_id}/").text
    assert words in page and "9 parameters, fp16" in page and "at most" not in page
    Attempt.objects.filter(pk=running.pk).update(plan=plan | {"max_steps": 5})
    assert "at most 5 steps" in people.owner.get(f"/jobs/{running.job_id}/").text


def test_a_limit_of_single_elements_is_not_drawn_beside_the_norm_of_the_whole(people: People, running: Attempt) -> None:
    assert 'data-threshold="clip_norm"' in people.owner.get(f"/jobs/{running.job_id}/").text
    for mode in ("value", "per_tensor"):
        running.settings["clipping"] = {"mode": mode}
        running.save(update_fields=["settings"])
        assert 'data-threshold=""' in people.owner.get(f"/jobs/{running.job_id}/").text


def test_a_failure_says_why_where_and_what_is_kept(people: People, job: Job, running: Attempt) -> None:
    Checkpoint.objects.create(attempt=running, step=300, applied=300, key="k", bytes=1, good=True)
    seed.end(running, EndReason.NON_FINITE, "Loss was NaN at step 341 on rank 1.", step=341, rank=1)
    Attempt.objects.filter(pk=running.pk).update(
        rank_states={"0": {"pid": 1, "exit_code": 0}, "1": {"pid": 2, "exit_code": None, "signal": 9, "first": True}}
    )
    page = people.owner.get(f"/jobs/{job.pk}/").text
    assert "Loss, gradients or input were NaN or infinite." in page
    assert "Loss was NaN at step 341 on rank 1." in page
    assert "at step 300 of attempt 1" in page
    assert "first to fail" in page and "signal 9" in page


def test_numbers_keep_nan_and_say_when_loss_scaling_is_not_used(people: People, job: Job, running: Attempt) -> None:
    rows = seed.records(1, 20, nan_from=15, loss_scale=None)
    seed.add_steps(running, rows)
    page = people.owner.get(f"/jobs/{job.pk}/", {"part": "numbers"}).text
    assert "NaN" in page and "not used" in page
    skipped = sum(row["skipped"] is not None for row in rows)
    assert f"{skipped} <small>{100 * skipped / 20:.2f} %" in page


def test_an_emulated_precision_is_labelled(people: People, job: Job, running: Attempt) -> None:
    assert "emulated on CPU" not in people.owner.get(f"/jobs/{job.pk}/").text
    Attempt.objects.filter(pk=running.pk).update(plan=running.plan | {"emulated": True})
    assert "emulated on CPU" in people.owner.get(f"/jobs/{job.pk}/").text


def test_evaluations_stand_beside_the_baselines(people: People, job: Job, running: Attempt, dataset: Dataset) -> None:
    baselines = {"majority": 0.52, "bag_of_characters_logistic_regression": 0.81}
    Dataset.objects.filter(pk=dataset.pk).update(statistics={"baselines": baselines})
    seed.evaluate(running, 100, 0.75, 0.5)
    seed.evaluate(running, 200, 0.79, 0.45, best=True)
    page = people.owner.get(f"/jobs/{job.pk}/", {"part": "evaluations"})
    assert [row["evaluation"].step for row in page.context["evaluations"]] == [100, 200]
    assert page.context["best"].step == 200
    assert "0.81" in page.text and "does not beat a simple baseline" in page.text
    Evaluation.objects.filter(step=200).update(metrics={"accuracy": 0.9, "loss": "nan"})
    page = people.owner.get(f"/jobs/{job.pk}/", {"part": "evaluations"})
    assert "does not beat" not in page.text and "NaN" in page.text


def test_a_retry_marks_its_settings_and_links_the_attempts(people: People, job: Job, running: Attempt) -> None:
    seed.end(running, EndReason.NON_FINITE)
    changed = running.settings | {"optimizer": running.settings["optimizer"] | {"learning_rate": 1e-5}}
    services.retry(job, actor=job.owner, settings=changed, from_checkpoint=False)
    page = people.owner.get(f"/jobs/{job.pk}/")
    assert page.context["attempt"].number == 2
    assert "Learning rate 5e-5 → 1e-5" in page.text
    old = people.owner.get(f"/jobs/{job.pk}/", {"attempt": "1"})
    assert old.context["attempt"].number == 1 and "The newest is attempt 2." in old.text
    # Buttons belong to the newest attempt.
    assert not any(old.context["may"].values())


def test_a_finished_job_opens_no_stream(people: People, job: Job, running: Attempt) -> None:
    assert f'data-live="/jobs/{job.pk}/live/"' in people.owner.get(f"/jobs/{job.pk}/").text
    seed.end(running, EndReason.COMPLETED)
    assert 'data-live=""' in people.owner.get(f"/jobs/{job.pk}/").text


def test_what_users_wrote_is_escaped(people: People, job: Job) -> None:
    Job.objects.filter(pk=job.pk).update(name="<img src=x onerror=alert(1)>")
    assert "<img src=x" not in people.owner.get(f"/jobs/{job.pk}/").text


def test_pages_hold_no_inline_script_or_style(people: People, job: Job, running: Attempt) -> None:
    """The content security policy would silently switch them off."""
    seed.add_steps(running, seed.records(1, 5))
    for url in ("/", "/jobs/new/", f"/jobs/{job.pk}/", "/hosts/"):
        answer = people.owner.get(url)
        assert "style=" not in answer.text and "<style" not in answer.text
        assert "onclick" not in answer.text and "javascript:" not in answer.text
        policy = answer["Content-Security-Policy"]
        assert "default-src 'self'" in policy and "unsafe" not in policy


def test_an_old_lost_attempt_stops_being_live(job: Job, running: Attempt) -> None:
    from jobs.live import SETTLING, is_live

    running.ended_at, running.complete_at = timezone.now(), None
    assert is_live(running)
    running.ended_at -= SETTLING
    assert not is_live(running)


@pytest.mark.parametrize("number", ["9" * 25, "-" + "9" * 25, "9" * 5000, "²", "\N{ARABIC-INDIC DIGIT ONE}"])
def test_a_number_that_no_column_can_hold_is_not_found_or_ignored(people: People, job: Job, number: str) -> None:
    page = f"/jobs/{job.pk}/"
    for url in (page, f"{page}chart/", f"{page}log/"):
        assert people.owner.get(url, {"attempt": number}).status_code == 404
    assert people.owner.get(f"{page}chart/", {"rank": number, "first": number}).status_code == 200
    assert people.owner.get(f"{page}log/", {"log_rank": number}).status_code == 200
    assert people.owner.get("/", {"q": f"#{number}"}).status_code == 200
