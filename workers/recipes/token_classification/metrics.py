"""Metrics of tagged tokens, from sums that can be added over batches and ranks. An entity is right if its first and last token
and its type are: as in seqeval, and as in the CoNLL script."""

from __future__ import annotations

from typing import Any

import numpy as np

from workers.datasets.tagging import OUTSIDE, Tags
from workers.trainer.task import Floats, Rows

SUMS = 5


def groups(tags: Tags) -> list[str]:
    """What a token is taken for: a type, or O; of tags without a scheme the tag."""
    return tags.names if tags.scheme == "none" else [OUTSIDE, *tags.types]


def nothing(tags: Tags) -> Floats:
    return np.zeros(SUMS + len(groups(tags)) ** 2 + 3 * len(tags.types))


def tally(tags: Tags, actual: list[Rows], said: list[Rows], loss_sum: float, labelled: int) -> Floats:
    """Of rows, each with the tags of all its tokens; `said` has `tags.border` where the model read none, which counts as O.
    [sum of the losses of the `labelled` tokens, their number, rows, tokens, tokens that are right, then the confusion counts
    row by row: actual × said; then per type the entities that are right, that were said, and that are there]."""
    border, size = [tags.border], len(groups(tags))
    a = np.concatenate([part for row in actual for part in (row, border)])
    b = np.concatenate([part for row in said for part in (row, border)])
    tokens = a != tags.border
    taken = np.where(b[tokens] == tags.border, tags.outside, b[tokens])
    right = int((a[tokens] == taken).sum())
    if tags.scheme == "none":
        inside = taken != tags.border
        pairs = a[tokens][inside] * size + taken[inside]
    else:
        pairs = (tags.type_of[a[tokens]] + 1) * size + tags.type_of[taken] + 1
    confusion = np.bincount(pairs, minlength=size * size)
    found = _entities(tags, a, b) if tags.types else np.zeros(0)
    sums = [loss_sum, labelled, len(actual), int(tokens.sum()), right]
    return np.concatenate([np.array(sums, np.float64), confusion.astype(np.float64), found.astype(np.float64)])


def _entities(tags: Tags, actual: Rows, said: Rows) -> Rows:
    kinds = len(tags.types)
    there, found = tags.spans(actual), tags.spans(said)
    a, b = ((spans[:, 0] * (len(actual) + 1) + spans[:, 1]) * kinds + spans[:, 2] for spans in (there, found))
    right = np.intersect1d(a, b, assume_unique=True) % kinds
    return np.concatenate([np.bincount(of, minlength=kinds) for of in (right, found[:, 2], there[:, 2])])


def metrics(tally: Floats, tags: Tags) -> dict[str, Any]:
    """Loss and accuracy per token. With a scheme precision, recall and F1 of all entities together, F1 averaged over types
    that occur or were said, and figures per type; without one F1 averaged over tags, as of labels."""
    names = groups(tags)
    loss_sum, labelled, rows, tokens, right = map(float, tally[:SUMS])
    counts = tally[SUMS : SUMS + len(names) ** 2].reshape(len(names), len(names))
    common = {
        "rows": int(rows),
        "labels": names,
        "confusion": counts.astype(int).tolist(),
    }
    loss, accuracy = loss_sum / max(labelled, 1), right / max(tokens, 1)
    if tags.scheme == "none":
        of_tags = 2 * np.diag(counts) / np.maximum(counts.sum(axis=0) + counts.sum(axis=1), 1)
        return {"loss": loss, "accuracy": accuracy, "macro_f1": float(of_tags.mean()), **common}
    found, said, there = tally[SUMS + len(names) ** 2 :].reshape(3, -1)
    of_types = [float(2 * found[i] / (said[i] + there[i])) for i in range(len(there)) if said[i] + there[i]]
    per_type = {
        kind: {
            "precision": float(found[i] / said[i]) if said[i] else None,
            "recall": float(found[i] / there[i]) if there[i] else None,
            "f1": float(2 * found[i] / (said[i] + there[i])),
            "support": int(there[i]),
        }
        for i, kind in enumerate(tags.types)
        if said[i] + there[i]
    }
    return {
        "loss": loss,
        "f1": float(2 * found.sum() / max(said.sum() + there.sum(), 1)),
        "precision": float(found.sum() / max(said.sum(), 1)),
        "recall": float(found.sum() / max(there.sum(), 1)),
        "macro_f1": float(np.mean(of_types)) if of_types else 0.0,
        "accuracy": accuracy,
        **common,
        "entities": per_type,
    }
