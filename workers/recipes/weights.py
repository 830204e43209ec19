"""What is read of a row by the name of a column: what its loss is multiplied with, above all."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from workers.contract.records import from_json_number
from workers.contract.states import EndReason
from workers.contract.texts import Text
from workers.trainer.task import TrainingFailed


def weight_of(row: Any, name: str | None, where: Mapping[str, Any]) -> float:
    """1 where no column is named. A NaN or an infinity is a number here: a broken row must be seen in training, with its rank
    and step. BAD_DATA, with `where` ("row" and "file"), for what is no number of 0 or more."""
    if not name:
        return 1.0
    value = from_json_number(column_of(row, name, where))
    if isinstance(value, bool) or not isinstance(value, (int, float)) or (math.isfinite(value) and value < 0):
        problem = Text(
            "Row %(row)d of %(file)s: “%(column)s” is not a number of 0 or more: %(value)s.",
            column=name,
            value=repr(value),
            **where,
        )
        raise TrainingFailed(EndReason.BAD_DATA, problem)
    return float(value)


def column_of(row: Any, name: str, where: Mapping[str, Any]) -> Any:
    """BAD_DATA with the columns that there are."""
    if not isinstance(row, dict) or name not in row:
        has = ", ".join(row) if isinstance(row, dict) else "none"
        problem = Text(
            "Row %(row)d of %(file)s has no column “%(column)s”; it has: %(columns)s.",
            column=name,
            columns=has,
            **where,
        )
        raise TrainingFailed(EndReason.BAD_DATA, problem)
    return row[name]
