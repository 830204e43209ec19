from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from jobs.forms import SettingsForm, shown
from jobs.models import Artifact, Dataset, Job
from tests.jobs.views.conftest import People
from workers.recipes.registry import recipe

URL = "/jobs/new/"


def filled(on: Dataset, /, **changes: str) -> dict[str, str]:
    """What a browser sends when someone has typed a name and pressed the button."""
    data = {"name": "my job", "dataset": str(on.pk), "recipe": "text_classification"}
    for item in SettingsForm(recipe("text_classification")).fields():
        if item.kind != "checkbox":
            data[item.name] = item.value
        elif item.checked:
            data[item.name] = "on"
    return data | {name.replace("__", "."): value for name, value in changes.items()}


def test_one_must_log_in(client: Client, db: None) -> None:
    assert client.get(URL).status_code == 302
    assert client.post(URL).status_code == 302
    assert not Job.objects.exists()


def test_everybody_else_may_see_the_form(people: People) -> None:
    assert people.ask(URL) == {"anonymous": 302, "owner": 200, "other": 200, "staff": 200}


def test_every_setting_has_a_field_with_its_title_and_help(people: People, dataset: Dataset) -> None:
    page = people.owner.get(URL).text
    for name, group in recipe("text_classification").settings.model_fields.items():
        for key, info in group.annotation.model_fields.items():  # type: ignore[union-attr]
            assert f'name="{name}.{key}"' in page
            assert str(info.title) in page


def test_the_untouched_form_submits_the_defaults(people: People, dataset: Dataset, owner: User) -> None:
    answer = people.owner.post(URL, filled(dataset))
    job = Job.objects.get()
    assert answer.status_code == 302 and answer["Location"] == f"/jobs/{job.pk}/"
    assert job.owner == owner and job.dataset == dataset and job.name == "my job"
    assert job.newest is not None
    assert job.newest.settings == recipe("text_classification").settings().model_dump(mode="json")


def test_numbers_may_be_written_as_people_write_them(people: People, dataset: Dataset) -> None:
    people.owner.post(
        URL,
        filled(
            dataset,
            optimizer__learning_rate="3e-5",
            clipping__max_norm="",
            precision__mode="fp16",
            loss_scaling__init_scale="1e4",
        ),
    )
    attempt = Job.objects.get().newest
    assert attempt is not None
    assert attempt.settings["optimizer"]["learning_rate"] == 3e-5
    assert attempt.settings["clipping"]["max_norm"] is None
    assert attempt.settings["loss_scaling"]["init_scale"] == 10000.0


def test_a_ticked_box_is_on_and_an_unticked_one_off(people: People, dataset: Dataset) -> None:
    for data, on in ((filled(dataset, monitoring__local_norms="on"), True), (filled(dataset), False)):
        people.owner.post(URL, data)
        attempt = Job.objects.latest("pk").newest
        assert attempt is not None and attempt.settings["monitoring"]["local_norms"] is on


@pytest.mark.parametrize(
    ("changes", "texts"),
    [
        ({"optimizer__learning_rate": "fast"}, ["Must be a number, not “fast”.", "more than 0"]),
        ({"training__epochs": "0"}, ["Must be at least 1, not 0."]),
        ({"training__epochs": "1.5"}, ["Must be a whole number, not “1.5”."]),
        ({"optimizer__learning_rate": "nan"}, ["not", "nan"]),
        ({"precision__mode": "int4"}, ["Must be one of", "“int4”"]),
        ({"loss_scaling__floor": "99999999"}, ["must lie between the floor"]),
        ({"model__source": "hub"}, ["fill in “name”"]),
        ({"name": ""}, ["Give the job a name."]),
        ({"dataset": "99999"}, ["Choose a dataset."]),
    ],
)
def test_an_error_says_what_is_wrong_and_keeps_what_was_typed(
    people: People, dataset: Dataset, changes: dict[str, str], texts: list[str]
) -> None:
    data = filled(dataset, **changes) | {"training.seed": "4242"}
    answer = people.owner.post(URL, data)
    assert answer.status_code == 422 and not Job.objects.exists()
    for text in texts:
        assert text in answer.text
    assert 'value="4242"' in answer.text
    form: Any = answer.context["form"]
    for name, value in changes.items():
        item = form.field(name.replace("__", "."))
        if item is not None:
            assert item.value == value


def test_all_errors_are_shown_at_once(people: People, dataset: Dataset) -> None:
    answer = people.owner.post(URL, filled(dataset, name="", training__epochs="many", optimizer__beta1="2"))
    assert "Give the job a name." in answer.text
    assert "Must be a whole number, not “many”." in answer.text
    assert "Must be less than 1, not 2." in answer.text


def test_an_error_in_a_closed_group_opens_it(people: People, dataset: Dataset) -> None:
    answer = people.owner.post(URL, filled(dataset, optimizer__beta1="2"))
    groups = {group.name: group for group in answer.context["form"].groups}
    assert groups["optimizer"].must_be_seen and not groups["data"].must_be_seen


def test_nobody_submits_on_another_users_dataset(people: People, dataset: Dataset) -> None:
    page = people.other.get(URL).text
    assert dataset.name not in page
    assert people.other.post(URL, filled(dataset)).status_code == 422
    Dataset.objects.update(shared=True)
    assert dataset.name in people.other.get(URL).text
    assert people.other.post(URL, filled(dataset)).status_code == 302


def test_what_was_typed_is_escaped(people: People, dataset: Dataset) -> None:
    answer = people.owner.post(URL, filled(dataset, optimizer__learning_rate="<script>alert(1)</script>"))
    assert "<script>alert(1)" not in answer.text and "&lt;script&gt;" in answer.text


def test_a_form_without_token_does_nothing(strict: Client, dataset: Dataset) -> None:
    assert strict.post(URL, filled(dataset)).status_code == 403
    assert not Job.objects.exists()


def test_values_are_written_as_one_would_type_them() -> None:
    assert [shown(value) for value in (5e-5, 65536.0, 1e4, 0.1, 1e-8, 2.0**40, None, True, 3)] == [
        "5e-5", "65536", "10000", "0.1", "1e-8", "1099511627776", "", "True", "3",
    ]  # fmt: skip


# --- checks across fields -------------------------------------------------------------------

WARNED = {"loss_scaling__init_scale": "1024"}


def test_a_warning_wants_a_tick_and_is_then_recorded(people: People, dataset: Dataset) -> None:
    asked = people.owner.post(URL, filled(dataset, **WARNED))
    assert asked.status_code == 422 and not Job.objects.exists()
    assert "Nothing was submitted yet: there are warnings." in asked.text
    assert asked.text.count("Loss scaling was changed, but it is used with fp16 only") == 2
    assert 'value="1024"' in asked.text
    done = people.owner.post(URL, filled(dataset, **WARNED) | {"anyway": "on", "shown": "loss_scaling_unused"})
    assert done.status_code == 302
    assert Job.objects.get().events.filter(kind="warning_accepted").count() == 1
    assert "Submitted in spite of a warning" in people.owner.get(done["Location"]).text


def test_a_tick_does_not_cover_a_warning_that_was_not_shown(people: People, dataset: Dataset) -> None:
    answer = people.owner.post(
        URL,
        filled(dataset, **WARNED, optimizer__weight_decay="0", regularisation__dropout="0")
        | {"anyway": "on", "shown": "loss_scaling_unused"},
    )
    assert answer.status_code == 422 and not Job.objects.exists()
    assert answer.context["anyway"] is False


def test_an_error_across_fields_hangs_on_its_field_and_no_tick_helps(people: People, dataset: Dataset) -> None:
    answer = people.owner.post(URL, filled(dataset, training__batch_size="101") | {"anyway": "on"})
    assert answer.status_code == 422 and not Job.objects.exists()
    assert "larger than the training set of 100 rows" in answer.context["form"].field("training.batch_size").error


def test_the_check_alone_submits_nothing_and_a_live_one_is_a_part_of_the_page(people: People, dataset: Dataset) -> None:
    data = filled(dataset, **WARNED) | {"do": "check"}
    whole = people.owner.post(URL, data)
    part = people.owner.post(URL, data, headers={"hx-request": "true"})
    assert whole.status_code == part.status_code == 200 and not Job.objects.exists()
    assert "<html" in whole.text and "<html" not in part.text
    for answer in (whole, part):
        assert "Loss scaling was changed" in answer.text
        assert ".venv/bin/python manage.py submit my-job.yaml --owner olga --anyway" in answer.text
        assert "init_scale: 1024.0" in answer.text


def test_a_check_says_what_is_wrong_with_single_fields_too(people: People, dataset: Dataset) -> None:
    data = filled(dataset, optimizer__learning_rate="fast") | {"do": "check"}
    text = people.owner.post(URL, data, headers={"hx-request": "true"}).text
    assert "Learning rate: Must be a number, not “fast”." in text
    assert "learning_rate: fast" in text


# --- presets and modes ----------------------------------------------------------------------


def test_a_preset_fills_its_own_fields_and_keeps_what_was_typed_elsewhere(people: People, dataset: Dataset) -> None:
    data = filled(dataset, optimizer__learning_rate="0.5", data__max_length="99") | {"do": "fill", "preset": "small"}
    form = people.owner.post(URL, data).context["form"]
    values = {item.name: item.value for item in form.fields()}
    assert values["optimizer.learning_rate"] == "5e-5"
    assert values["optimizer.weight_decay"] == "0.0005"
    assert values["regularisation.dropout"] == "0.3"
    assert values["early_stopping.patience"] == "3"
    assert values["data.max_length"] == "99"
    assert not form.changes


def test_a_preset_can_be_asked_for_by_address(people: People, dataset: Dataset) -> None:
    form = people.owner.get(URL + "?preset=scratch").context["form"]
    assert form.field("clipping.max_norm").value == "5"
    assert form.field("optimizer.learning_rate").value == "0.0005"


def test_the_difference_to_the_preset_is_shown_by_field_and_together(people: People, dataset: Dataset) -> None:
    answer = people.owner.post(URL, filled(dataset, clipping__max_norm="2") | {"do": "check", "preset": "scratch"})
    assert [item.name for item in answer.context["form"].changes] == [
        "training.epochs",
        "optimizer.learning_rate",
        "clipping.max_norm",
    ]
    assert "Difference to the preset “From scratch”" in answer.text
    assert "preset: 0.0005" in answer.text


def test_the_standard_preset_is_what_the_untouched_form_has(people: People) -> None:
    assert people.owner.get(URL).context["form"].changes == []


def test_the_mode_is_remembered_and_nothing_typed_is_lost(people: People, dataset: Dataset) -> None:
    assert people.owner.get(URL).context["mode"] == "basic"
    answer = people.owner.post(URL, filled(dataset, training__seed="4242") | {"do": "full"})
    assert answer.context["mode"] == "full" and 'value="4242"' in answer.text
    assert people.owner.get(URL).context["mode"] == "full"
    assert people.owner.get(URL + "?mode=basic").context["mode"] == "basic"
    assert people.other.get(URL).context["mode"] == "basic"


# --- like another job -----------------------------------------------------------------------


def test_a_clone_has_the_settings_and_the_dataset_of_its_model(people: People, job: Job) -> None:
    assert job.newest is not None
    job.newest.settings["training"]["epochs"] = 17
    job.newest.save()
    answer = people.owner.get(f"{URL}?clone={job.pk}")
    form = answer.context["form"]
    assert form.field("training.epochs").value == "17"
    assert answer.context["given"] == {"name": "sentiment, again", "dataset": job.dataset_id, "tags": ""}
    assert f'name="cloned_from" value="{job.pk}"' in answer.text


def test_only_visible_jobs_can_be_cloned_or_started_from(people: People, job: Job) -> None:
    for way in ("clone", "from"):
        asked = people.ask(f"{URL}?{way}={job.pk}")
        assert asked == {"anonymous": 302, "owner": 200, "other": 404, "staff": 200}
    assert people.owner.get(f"{URL}?clone=999").status_code == 404


def test_what_a_clone_changes_in_ranks_is_noticed(people: People, job: Job, dataset: Dataset) -> None:
    data = filled(dataset, devices__devices_per_node="2") | {"do": "check"}
    assert "ran on 1 ranks" in people.owner.post(URL, data | {"cloned_from": str(job.pk)}).text
    assert "ran on 1 ranks" not in people.owner.post(URL, data).text
    assert "ran on 1 ranks" not in people.other.post(URL, data | {"cloned_from": str(job.pk)}).text


def test_models_on_offer_are_those_of_visible_jobs(people: People, job: Job) -> None:
    assert job.newest is not None
    Artifact.objects.create(attempt=job.newest, name="model", key="artifacts/x/model", bytes=1, sha256="0" * 64)
    offered = (str(job.pk), f"#{job.pk} sentiment")
    assert people.owner.get(URL).context["form"].field("model.job").offers == [offered]
    assert people.other.get(URL).context["form"].field("model.job").offers == []
    form = people.owner.get(f"{URL}?from={job.pk}").context["form"]
    assert form.field("model.source").value == "job" and form.field("model.job").value == str(job.pk)


def test_a_chosen_model_that_is_gone_stays_to_be_seen(people: People, dataset: Dataset) -> None:
    answer = people.owner.post(URL, filled(dataset, model__source="job", model__job="77"))
    assert answer.status_code == 422
    assert '<option value="77" selected>77</option>' in answer.text


def test_what_it_needs_is_estimated_or_said_to_be_unknown(people: People, dataset: Dataset) -> None:
    def check(**changes: str) -> str:
        data = filled(dataset, **changes) | {"do": "check"}
        return people.owner.post(URL, data, headers={"hx-request": "true"}).text

    known = check(model__source="hub", model__name="ernie-3.0-base-zh")
    assert (
        "of memory per rank" in known
        and "117\N{NARROW NO-BREAK SPACE}944\N{NARROW NO-BREAK SPACE}832 parameters" in known
    )
    unknown = check(model__source="folder", model__folder="my-own")
    assert "is not known for this model; a dry run measures it" in unknown


def test_a_blank_form_begins_with_the_first_preset_of_its_recipe_and_misses_a_name(people: People) -> None:
    page = people.owner.get(URL, {"recipe": "sequences"}).text
    assert "Difference to the preset “Recurrent”" in page and '<tr class="changed">' not in page
    assert "Still to be given: a name, a dataset." in page and "Nothing speaks against it." not in page


def test_a_clone_is_compared_with_the_preset_that_it_is_nearest_to(people: People, dataset: Dataset) -> None:
    scratch = recipe("text_classification").preset("scratch")
    assert scratch is not None
    changes = {name.replace(".", "__"): shown(value) for name, value in scratch.values.items()}
    people.owner.post(URL, filled(dataset, **changes | {"clipping__max_norm": "4"}))
    page = people.owner.get(URL, {"clone": str(Job.objects.get().pk)}).text
    assert "Difference to the preset “From scratch”" in page and page.count('<tr class="changed">') == 1


def test_a_part_of_the_form_is_told_that_nobody_is_logged_in(client: Client, db: None) -> None:
    assert client.post(URL, {"do": "check"}, headers={"HX-Request": "true"}).status_code == 401


def test_no_other_dataset_takes_the_place_of_one_that_is_gone(people: People, dataset: Dataset) -> None:
    assert f'<option value="{dataset.pk}" selected>' in people.owner.get(URL).text
    answer = people.owner.post(URL, filled(dataset, dataset="999999"))
    assert answer.status_code == 422 and "Choose a dataset." in answer.text and not Job.objects.exists()
    assert '<option value="">—</option>' in answer.text and f'<option value="{dataset.pk}" selected>' not in answer.text


def test_the_form_begins_with_what_a_dataset_of_sequences_can_teach(people: People, dataset: Dataset) -> None:
    for target, goal in (("number", "regression"), ("label", "classification"), ("none", "next_value")):
        Dataset.objects.filter(pk=dataset.pk).update(kind="sequences", statistics={"target": target})
        page = people.owner.get(URL, {"dataset": dataset.pk}).text
        assert f"<option selected>{goal}</option>" in page, target


def test_the_form_begins_with_the_weights_that_were_checked_with_the_dataset(people: People, dataset: Dataset) -> None:
    page = people.owner.get(f"{URL}?dataset={dataset.pk}&mode=full").text
    assert 'name="data.weight_column" value=""' in page
    dataset.reading, dataset.columns = {"weight_column": "trust"}, ["text", "label", "trust"]
    dataset.save()
    page = people.owner.get(f"{URL}?dataset={dataset.pk}&mode=full").text
    assert 'name="data.weight_column" value="trust"' in page


def test_another_recipe_takes_over_what_is_of_no_recipe(people: People, dataset: Dataset) -> None:
    typed = filled(dataset, tags="a, b", do="recipe", other_recipe="text_regression")
    answer = people.owner.post(URL, typed)
    assert answer.status_code == 302 and not Job.objects.exists()
    page = people.owner.get(answer["Location"]).text
    assert 'name="recipe" value="text_regression"' in page
    assert 'name="name" value="my job"' in page and 'name="tags" value="a, b"' in page
    # The dataset would be of another kind.
    assert f'<option value="{dataset.pk}" selected>' not in page
    back = people.owner.post(URL, typed | {"other_recipe": "text_classification"})
    assert f'<option value="{dataset.pk}" selected>' in people.owner.get(back["Location"]).text
    assert people.owner.post(URL, typed | {"other_recipe": "no such"}, follow=True).status_code == 200
