"""Weights of rows, whatever these are: numbers of 0 or more that a row's loss is multiplied with."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from workers.contract.datasets import RowRef
from workers.contract.records import from_json_number
from workers.datasets import splits
from workers.datasets.findings import Findings
from workers.datasets.measures import Numbers
from workers.datasets.parsing import BadRow, problem


def read(given: Any, number: int) -> float | BadRow:
    """The weight of row `number`, from JSON or as it is typed. A NaN or an infinity stays one: training shows what it does."""
    try:
        value = float(from_json_number(given)) if not isinstance(given, bool) else None
    except (TypeError, ValueError, OverflowError):
        value = None
    if value is None or (math.isfinite(value) and value < 0):
        return problem("Rows whose weight is no number of 0 or more: %(count)d.", number, str(given))
    return value


def judge(weights: Numbers, codes: Numbers, refs: Callable[[Numbers], list[RowRef]], findings: Findings) -> None:
    """What is odd about the weights [rows] of rows that are used."""
    used, trained = codes != splits.OUT, weights[codes == splits.TRAIN]
    zero, strange = (weights == 0) & used, ~np.isfinite(weights) & used
    if (trained == 0).all():
        findings.found_error("All training rows have the weight 0: nothing would be learnt from them.")
    elif not (np.isfinite(trained) & (trained > 0)).any():
        findings.found_error("No training row has a finite weight above 0: nothing would be learnt from them.")
    elif zero.any():
        findings.found_warning(
            "Rows with the weight 0, from which nothing is learnt: %(count)d.",
            refs(np.flatnonzero(zero)),
            count=int(zero.sum()),
        )
    if strange.any():
        findings.found_warning(
            "Rows whose weight is not finite: %(count)d.", refs(np.flatnonzero(strange)), count=int(strange.sum())
        )


def statistics(weights: Numbers, of: Mapping[str, Numbers]) -> dict[str, Any]:
    """See CheckResult; `of`: a mask of rows per split."""
    return {"weights": {split: {"zero": int((weights[at] == 0).sum())} for split, at in of.items()}}
