"""What decides whether a dataset may be trained on: rows → findings, statistics, and train.jsonl and dev.jsonl.

Two passes. The first reads the sources into one file of JSON Lines and a few numbers per row; then the split is decided;
the second pass writes the splits. So memory grows with the number of rows, not with the size of the files.
"""

from __future__ import annotations

from pathlib import Path

from workers.contract.datasets import IMAGES, SPLITS, Reading
from workers.datasets import numbered, sequences, tagged, texts
from workers.datasets.findings import Outcome, Source, Stage, Work
from workers.datasets.parsing import Unreadable


def _pictures(work: Work) -> None:
    """Where Pillow is: on hosts. The web side imports this module, too."""
    try:
        from workers.datasets import pictures
    except ImportError as error:
        raise Unreadable("Pictures can be checked on a host only: %(said)s.", said=str(error)) from None
    pictures.check(work)


# Of each kind of dataset the function that reads, judges, measures and writes it. It may raise Unreadable.
KINDS = {
    "texts": texts.check,
    "numbers": numbered.check,
    "sequences": sequences.check,
    "tokens": tagged.check,
    "images": _pictures,
    "lines": _pictures,
}

__all__ = ["Outcome", "Source", "check"]


def check(sources: list[Source], reading: Reading, scratch: Path, target: Path, stage: Stage) -> Outcome:
    """Everything. `scratch` and `target` are folders that exist; `target` gets the splits if the outcome is fit."""
    work = Work(sources, reading, scratch, target, stage)
    try:
        KINDS[reading.kind](work)
    except Unreadable as error:
        work.findings.add("error", error.template, None, **error.values)
    outcome = work.outcome
    if outcome.content_hash:
        written = (target / name for name in (*(f"{split}.jsonl" for split in SPLITS), IMAGES))
        outcome.bytes = sum(path.stat().st_size for path in written if path.exists())
    outcome.findings = work.findings.all()
    return outcome
