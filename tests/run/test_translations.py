"""Every text of the web side has its Chinese, and no page falls back to English."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from babel.messages.mofile import write_mo
from django.conf import settings
from django.template.base import Lexer, TokenType
from django.test import Client
from django.utils import timezone, translation
from django.utils.translation import trans_real

from jobs import limits, people, services, throttle
from jobs.forms import SettingsForm
from jobs.management.commands.translations import LOCALES, catalogue_path, extracted, read, translated
from jobs.models import Attempt, JobEvent
from tests.browser import seed
from workers.contract.states import Status
from workers.contract.texts import Text
from workers.recipes.registry import RECIPES

TEMPLATES = sorted((settings.BASE_DIR / "templates").rglob("*.html"))
_PLACEHOLDER = re.compile(r"%(?:\(\w+\))?[-+ 0#]*(?:\d+)?(?:\.\d+)?[a-zA-Z%]")
_HASH = re.compile(r"\b[0-9a-f]{12,}\b")
_WORD = re.compile(r"[A-Za-z](?:[A-Za-z’']*[A-Za-z])")
_TEXT_ATTRIBUTES = {"title", "placeholder", "aria-label", "alt", "data-confirm", "data-label", "data-on", "data-off"}


# --- the catalogue -------------------------------------------------------------------------


@pytest.mark.parametrize("locale", LOCALES)
def test_every_text_is_in_the_catalogue_and_nothing_else(locale: str) -> None:
    there, needed = (
        {(message.context, message.id) for message in catalogue if message.id}
        for catalogue in (read(locale), extracted())
    )
    # `make translations` adds the first, to be translated, and removes the second.
    new, gone = needed - there, there - needed
    assert (new, gone) == (set(), set())


@pytest.mark.parametrize("locale", LOCALES)
def test_every_text_is_translated(locale: str) -> None:
    assert [message.id for message in read(locale) if message.id and not translated(message)] == []


@pytest.mark.parametrize("locale", LOCALES)
def test_translations_fill_in_the_same_values(locale: str) -> None:
    for message in read(locale):
        if not message.id:
            continue
        # Chinese has one form for both: it has to do with what the plural has.
        said = message.id if isinstance(message.id, str) else message.id[-1]
        for text in [message.string] if isinstance(message.string, str) else message.string:
            assert sorted(_PLACEHOLDER.findall(said)) == sorted(_PLACEHOLDER.findall(text)), said


def test_chinese_sentences_end_as_chinese_sentences_do() -> None:
    for message in read("zh_Hans"):
        said = message.id if isinstance(message.id, str) else message.id[-1]
        text = message.string if isinstance(message.string, str) else message.string[0]
        if said.endswith((".", "?")) and said != ".":
            assert text.endswith(("。", "？")), text
        assert not re.search(r"[\u4e00-\u9fff][,;:?!]|[,;:?!][\u4e00-\u9fff]", text), text


# --- templates -----------------------------------------------------------------------------


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: str(path.relative_to(settings.BASE_DIR)))
def test_templates_have_no_text_outside_of_translate(path: Path) -> None:
    plain, wrapped = [], False
    for token in Lexer(path.read_text("utf-8")).tokenize():
        if token.token_type is TokenType.BLOCK:
            tag = token.split_contents()[0]
            wrapped = tag in ("blocktranslate", "blocktrans", "comment") or (
                wrapped and not tag.startswith(("endblocktrans", "endcomment"))
            )
        elif token.token_type is TokenType.TEXT and not wrapped:
            plain.append(token.contents)
    names = {"Evenkeel", "UTC", "SHA", "sha", "ms", "CSV", "JSON", "Lines", "jsonl", "zip", "Parquet", "VisualDL"}
    assert sorted(set(_words("".join(plain))) - names) == []


def test_the_scan_of_templates_sees_text_and_attributes() -> None:
    assert list(_words('<p title="one">two <a href="/x" class="y">three</a></p><script>no</script>')) == [
        "one",
        "two",
        "three",
    ]


# --- pages ---------------------------------------------------------------------------------

# What stays as it is in Chinese: names of products, formats, units, and values that are typed as they are.
NAMES = {
    "Evenkeel", "English", "PaddlePaddle", "PaddleNLP", "Paddle", "Inference", "ERNIE", "AdamW", "LSTNet", "Lai", "LayerNorm", "AMP",
    "Dropout", "Transformer", "Redis", "Hub", "Rank", "rank", "token", "CPU", "GPU", "MB", "GiB", "MiB", "KiB",
    "JSON", "SHA", "UTC", "UID", "ID", "JavaScript", "Cookie", "worker", "float", "fp", "YAML", "bf", "NaN", "scratch",
    "job", "folder", "hub", "ernie", "base", "zh", "nano", "train", "dev", "python", "paddlepaddle", "paddlenlp",
    "evenkeel", "device", "cpu", "sha", "text", "label", "none", "ms",
    "BERT", "RoBERTa", "ELECTRA", "Adam", "SGD", "LSTM", "GRU", "DropPath", "Jozefowicz", "softmax", "matmul", "layer", "bias", "chnsenticorp",
    "ImageNet", "ResNet", "ViT", "Vision", "Mixup", "mixup", "Zhang", "Zhong", "CRNN", "Shi", "CTC", "BatchNorm", "GroupNorm", "PaddleOCR", "paddle", "vision",
    "zip", "tar", "gz",
    "CSV", "TSV", "CoNLL", "Lines", "Parquet", "VisualDL", "jsonl", "manage", "py", "export", "format", "parquet",
    # What hosts and their Python say of themselves, and the labels of the seeded rows.
    "Example", "Debian", "GNU", "Linux", "bookworm", "amd", "Python", "NumPy", "OMP", "NUM", "THREADS",
    "negative", "positive",
}  # fmt: skip
# What can be chosen as the value of a setting is typed in files and on command lines as well.
NAMES |= {
    word
    for recipe in RECIPES.values()
    for group in SettingsForm(recipe).groups
    for field in group.fields
    for choice in field.choices
    for word in _WORD.findall(choice)
}


@pytest.fixture(scope="module", autouse=True)
def compiled() -> Iterator[None]:
    """What `make messages` does, for who runs pytest by itself."""
    path = catalogue_path("zh_Hans")
    if not path.with_suffix(".mo").exists() or path.stat().st_mtime > path.with_suffix(".mo").stat().st_mtime:
        with path.with_suffix(".mo").open("wb") as file:
            write_mo(file, read("zh_Hans"))
        trans_real._translations.clear()
    yield
    translation.activate(settings.LANGUAGE_CODE)


@pytest.fixture
def rows(db: None, settings: Any, tmp_path: Path) -> dict[str, Any]:
    """Jobs in several states; what people and hosts named themselves is in Chinese, so that English is ours."""
    settings.STORAGE_ROOT = tmp_path
    admin, owner = seed.user("管理员", staff=True), seed.user("用户")
    data = seed.dataset(name="评论")
    data.labels, data.description = ["负面", "正面"], ""
    data.save()
    devices = [{"index": index, "kind": "cpu", "name": "处理器", "memory_bytes": 2**33} for index in range(2)]
    here = seed.host("主机一", devices=devices)
    seed.host("主机二", devices=devices, online=False, last_seen_at=timezone.now() - timedelta(hours=3))
    seed.host("主机三", draining=True, devices=[])
    done = seed.submit(owner, data, "成功", precision__mode="fp16")
    attempt = seed.succeed(done, here)
    attempt.artifacts.update(sha256="1" * 64)
    for kind, more in EVENTS:
        JobEvent.objects.create(job=done, attempt=attempt, kind=kind, **more)
    failed = seed.submit(owner, data, "失败", precision__mode="fp16", optimizer__learning_rate=0.5)
    seed.fail_with_nan(failed, here)
    detail = Text("Rank %(rank)d was killed by %(signal)s.", rank=0, signal="信号")
    Attempt.objects.filter(job=failed).update(end_detail=str(detail), end_said=detail.said)
    JobEvent.objects.filter(job=failed, kind="status").update(message="")
    settings_now = failed.newest.settings | {"clipping": {"max_norm": 2.0}}
    services.retry(failed, actor=owner, settings=settings_now, from_checkpoint=True)
    again = seed.start(failed, here)
    seed.add_steps(again, seed.records(201, 640))
    services.ask_to_leave(failed, services.Request.PAUSE, actor=owner)
    lost = seed.start(seed.submit(owner, data, "失联"))
    services.transition(lost, Status.UNRESPONSIVE, actor_name="controller")
    starting = seed.submit(owner, data, "启动").newest
    services.transition(starting, Status.STARTING, actor_name="controller")
    Attempt.objects.filter(pk=starting.pk).update(stage="turning texts into tokens 500 of 1000")
    ended = seed.submit(owner, data, "已停")
    services.ask_to_leave(ended, services.Request.CANCEL, actor=owner)
    nothing = dict.fromkeys(limits.NAMES)
    people.set_limits(owner, nothing | {"devices": 2, "storage_bytes": 2**30, "time_limit_hours": 8.0}, actor=admin)
    people.edit(owner, email="", staff=True, superuser=False, actor=admin)
    people.edit(owner, email="", staff=False, superuser=False, actor=admin)
    for _try in range(settings.LOGIN_FAILURES):
        throttle.begin("用户", "127.0.0.1")
    return {"admin": admin, "owner": owner, "jobs": [done, failed, lost.job, starting.job, ended], "ended": ended}


EVENTS: list[tuple[str, dict[str, Any]]] = [
    ("claimed", {"actor_name": "supervisor", "data": {"host": "主机一"}}),
    ("started", {"actor_name": "supervisor"}),
    ("stage", {"message": "loading the checkpoint step 200", "actor_name": "rank 0", "rank": 0}),
    ("skipped", {"step": 5, "data": {"first": 5, "last": 5, "count": 1, "what": "found_inf"}}),
    (
        "non_finite",
        {"step": 7, "data": {"first": 7, "last": 9, "count": 3, "what": "loss nan, loss_all nan, grad_norm inf"}},
    ),
    ("scale", {"step": 5, "data": {"old": 65536.0, "new": 32768.0}}),
    ("evaluation", {"step": 9, "data": {"metrics": {"loss": 0.5, "accuracy": 0.7, "macro_f1": 0.6}}}),
    ("checkpoint", {"step": 9, "data": {"good": False}}),
    ("checkpoint_published", {"step": 9}),
    ("artifact", {"data": {"name": "模型"}}),
    ("artifact_published", {"data": {"name": "模型"}}),
    ("rank_exit", {"rank": 1, "data": {"signal": 9, "first": True}}),
    ("request", {"reason": "checkpoint"}),
]


def test_pages_are_chinese_from_top_to_bottom(rows: dict[str, Any], client: Client) -> None:
    client.force_login(rows["admin"])
    urls = [
        "/",
        "/?q=没有",
        "/?status=failed",
        "/jobs/new/",
        "/jobs/new/?mode=full&preset=small",
        "/jobs/new/?mode=full&recipe=sequences",
        "/jobs/new/?mode=full&recipe=text_regression",
        "/jobs/new/?mode=full&recipe=token_classification",
        "/jobs/new/?mode=full&recipe=image_classification",
        "/jobs/new/?mode=full&recipe=text_lines",
        "/jobs/new/import/",
        "/hosts/",
        "/not-there/",
        "/account/",
        "/account/password/",
        "/people/",
        "/people/new/",
        "/people/limits/",
        "/people/events/",
        f"/people/{rows['owner'].pk}/",
        "/storage/",
        "/storage/?user=用户",
        "/retention/",
        "/datasets/",
        "/datasets/new/",
        f"/datasets/{rows['jobs'][0].dataset_id}/",
        f"/jobs/{rows['jobs'][0].pk}/confusion/",
        f"/jobs/{rows['jobs'][0].pk}/worst/",
        f"/jobs/{rows['ended'].pk}/retry/",
        f"/jobs/{rows['ended'].pk}/delete/",
    ]
    for job in rows["jobs"]:
        urls += [f"/jobs/{job.pk}/", f"/jobs/{job.pk}/?rank=1", f"/jobs/{job.pk}/log/?q=没有"]
    urls += [f"/jobs/{rows['jobs'][1].pk}/?attempt=1"]
    for url in urls:
        assert _english(client.get(url, headers={"accept-language": "zh-CN"}).content.decode()) == [], url
    client.logout()
    assert _english(client.get("/login/", headers={"accept-language": "zh-CN"}).content.decode()) == []


def test_complaints_about_settings_are_chinese(rows: dict[str, Any], client: Client) -> None:
    client.force_login(rows["owner"])
    wrong = {
        "name": "",
        "training.epochs": "0",
        "training.batch_size": "很多",
        "optimizer.learning_rate": "0",
        "optimizer.weight_decay": "2",
        "optimizer.beta1": "1",
        "optimizer.beta2": "nan",
        "clipping.max_norm": "很大",
        "precision.mode": "错",
        "data.text_column": "",
        "loss_scaling.floor": "99999999",
        "model.source": "hub",
    }
    response = client.post("/jobs/new/", wrong, headers={"accept-language": "zh-CN"})
    assert response.status_code == 422
    assert _english(response.content.decode(), NAMES | {"name", "nan"}) == []


def test_the_admin_is_chinese(rows: dict[str, Any], client: Client) -> None:
    client.force_login(rows["admin"])
    headers = {"accept-language": "zh-CN"}
    # Rows of the machinery hold its own words; what is around them is for people.
    around = re.compile(r"<(tbody|nav|option|dialog)\b.*?</\1>|<thead class=.visually-hidden.*?</thead>", re.S)
    names = ("job", "attempt", "host", "dataset", "jobevent", "checkpoint", "evaluation", "artifact", "placement")
    for url in ("/admin/", *(f"/admin/jobs/{name}/" for name in names)):
        page = around.sub("", client.get(url, headers=headers).content.decode())
        assert _english(page, NAMES | {"Search"}) == [], url
    data = {"action": "retry_selected", "_selected_action": [str(rows["ended"].pk)]}
    page = client.post("/admin/jobs/job/", data, headers=headers).content.decode()
    assert "对所有任务的更改" in page
    assert _english(around.sub("", page)) == []


def _english(page: str, names: set[str] = NAMES) -> list[str]:
    return sorted({word for word in _words(page) if word not in names})


def _words(page: str) -> Iterator[str]:
    """Words of what is to be read: text and the attributes that are shown or spoken; no scripts, no logs."""
    reader = _Reader()
    reader.feed(page)
    reader.close()
    for text in reader.texts:
        yield from _WORD.findall(_HASH.sub("", text))


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.hidden = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.hidden += tag in ("script", "style", "pre")
        self.texts += [value for name, value in attrs if name in _TEXT_ATTRIBUTES and value]

    def handle_endtag(self, tag: str) -> None:
        self.hidden -= tag in ("script", "style", "pre")

    def handle_data(self, data: str) -> None:
        if not self.hidden:
            self.texts.append(data)
