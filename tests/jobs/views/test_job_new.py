from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from jobs.forms import SettingsForm, shown
from jobs.models import Dataset, Job
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


def test_an_unticked_box_is_off(people: People, dataset: Dataset) -> None:
    data = filled(dataset)
    del data["schedule.linear_decay"]
    people.owner.post(URL, data)
    attempt = Job.objects.get().newest
    assert attempt is not None and attempt.settings["schedule"]["linear_decay"] is False


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
