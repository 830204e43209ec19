from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

from django.contrib.auth.models import User
from django.core.management.base import BaseCommand, CommandError, CommandParser

from jobs import baselines, datasets
from jobs.models import Dataset
from workers.contract.datasets import Kind, SequenceReading, TagReading


class Command(BaseCommand):
    help = (
        "Register a dataset: JSON Lines, CSV or TSV with a text and a label in each row, with a number instead (--kind numbers), numeric sequences "
        "(--kind sequences), or tokens with tags, CoNLL too (--kind tokens); how the last two are read is guessed, and can be said. "
        "Or pictures in a zip, tar, tar.gz or folder, with labels (--kind images) or lines of text (--kind lines)."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "source",
            type=Path,
            help="folder with train.jsonl and dev.jsonl, or one file; of pictures an archive or a folder",
        )
        parser.add_argument("--name", required=True)
        parser.add_argument("--owner", help="user who may train on it")
        parser.add_argument("--shared", action="store_true", help="every user may train on it")
        parser.add_argument("--description", default="")
        parser.add_argument("--text-column", default="text")
        parser.add_argument("--text-b-column", default="", help="the second text, of pairs")
        parser.add_argument("--label-column", default="label")
        parser.add_argument(
            "--weight-column", default="", help="what a row's, or a sequence's, loss is multiplied with"
        )
        parser.add_argument("--kind", choices=get_args(Kind), default="texts")
        of_sequences = parser.add_argument_group("of sequences")
        parser.add_argument(
            "--layout",
            choices=["steps", "columns", "lists", "spans"],
            help="what a row is, of sequences; or lists, spans (a text and its entities) of tokens",
        )
        of_sequences.add_argument("--id-column")
        of_sequences.add_argument("--order-column")
        of_sequences.add_argument("--features", help="columns, with commas between")
        of_sequences.add_argument("--target", choices=["number", "label", "none"])
        of_sequences.add_argument("--target-column")
        of_sequences.add_argument(
            "--window", type=int, help="time steps; cuts long sequences, or all rows without --id-column"
        )
        of_sequences.add_argument("--stride", type=int, help="from one window to the next")
        of_tokens = parser.add_argument_group("of tokens with tags")
        of_tokens.add_argument("--tokens-column", help="of CoNLL its number")
        of_tokens.add_argument("--tags-column")
        of_tokens.add_argument("--scheme", choices=["bio", "bioes", "none"])
        parser.add_argument(
            "--label-file",
            type=Path,
            action="append",
            dest="label_files",
            help="of pictures, a line each with path, tab, label or text; may be given twice",
        )
        parser.add_argument(
            "--leave-out", action="store_true", help="leave out rows with errors instead of refusing the dataset"
        )
        parser.add_argument("--dev-fraction", type=float, default=0.1, help="of one file, set apart for evaluation")
        parser.add_argument("--seed", type=int, default=2026, help="of that split")
        parser.add_argument("--no-baseline", action="store_true", help="do not fit the bag-of-characters baseline")

    def handle(self, *args: Any, **options: Any) -> None:
        if not options["owner"] and not options["shared"]:
            raise CommandError("Say who may use it: --owner NAME or --shared.")
        if not 0 < options["dev_fraction"] < 1:
            raise CommandError(f"--dev-fraction must be between 0 and 1, not {options['dev_fraction']:g}.")
        owner = None
        if options["owner"]:
            owner = User.objects.filter(username=options["owner"]).first()
            if owner is None:
                raise CommandError(f"There is no user “{options['owner']}”.")
        names = (
            "name", "shared", "description", "text_column", "text_b_column", "label_column", "weight_column", "kind",
            "label_files", "leave_out", "dev_fraction", "seed",
        )  # fmt: skip
        how = {name: options[name] for name in SequenceReading.model_fields if options.get(name) is not None}
        tagging = {name: options[name] for name in TagReading.model_fields if options.get(name) is not None}
        if "features" in how:
            how["features"] = [name.strip() for name in how["features"].split(",") if name.strip()]
        try:
            dataset, new = datasets.register(
                options["source"],
                owner=owner,
                baseline=not options["no_baseline"],
                sequences=how,
                tagging=tagging,
                **{name: options[name] for name in names},
            )
        except datasets.Unfit as error:
            raise CommandError(str(error)) from None
        said = "registered" if new else "was registered already"
        rows = ", ".join(f"{count} {split}" for split, count in dataset.splits.items())
        self.stdout.write(f"Dataset {dataset.pk} “{dataset.name}” {said}: {rows} rows{_labels(dataset)}.")
        for baseline in baselines.of_dataset(dataset):
            self.stdout.write(f"  {baseline.title}: {baseline.unit} {baseline.value:.4g}")


def _labels(dataset: Dataset) -> str:
    if not dataset.labels:
        return ""
    return f", {len(dataset.labels)} {'tags' if dataset.kind == Dataset.Kind.TOKENS else 'labels'}"
