"""What a check finds and makes, whatever a dataset is made of."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Literal

from workers.contract.datasets import Finding, Reading, RowRef
from workers.datasets.parsing import BadRow

# Name of the stage, how much of it is done, of how much.
Stage = Callable[[str, int, int], None]
Level = Literal["error", "warning", "note"]

# Row numbers that a finding names; how many there are it says in any case.
MOST_ROWS = 20
MOST_FINDINGS = 200


@dataclass(frozen=True)
class Source:
    path: Path
    name: str
    split: str = ""  # "": to be decided
    # An open file instead of the path, where who opened it has checked what it is.
    file: BinaryIO | None = None


@dataclass
class Outcome:
    findings: list[Finding] = field(default_factory=list)
    columns: list[str] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)
    splits: dict[str, int] = field(default_factory=dict)
    bytes: int = 0
    content_hash: str = ""
    statistics: dict[str, Any] = field(default_factory=dict)

    @property
    def fit(self) -> bool:
        return all(finding.level != "error" for finding in self.findings)


# --- findings --------------------------------------------------------------------------------


class Findings:
    """Counted by kind; of each, the first rows."""

    def __init__(self) -> None:
        self._found: dict[tuple[Level, str, str], tuple[dict[str, Any], list[RowRef]]] = {}
        self.fit = True

    def row(self, level: Level, bad: BadRow, file: str) -> None:
        key = (level, bad.template, json.dumps(bad.values, sort_keys=True))
        self.fit = self.fit and level != "error"
        if key not in self._found:
            if len(self._found) >= MOST_FINDINGS:
                return
            self._found[key] = ({**bad.values, "count": 0}, [])
        values, rows = self._found[key]
        values["count"] += 1
        if len(rows) < MOST_ROWS:
            rows.append(RowRef(file=file, row=bad.number, shown=bad.shown))

    def add(self, level: Level, template: str, at: list[RowRef] | None = None, **values: Any) -> None:
        self._found[level, template, json.dumps(values, sort_keys=True)] = (values, at or [])
        self.fit = self.fit and level != "error"

    # The texts of these are found by name, for translation.
    def found_error(self, template: str, at: list[RowRef] | None = None, **values: Any) -> None:
        self.add("error", template, at, **values)

    def found_warning(self, template: str, at: list[RowRef] | None = None, **values: Any) -> None:
        self.add("warning", template, at, **values)

    def found_note(self, template: str, at: list[RowRef] | None = None, **values: Any) -> None:
        self.add("note", template, at, **values)

    def all(self) -> list[Finding]:
        order = {"error": 0, "warning": 1, "note": 2}
        made = [
            Finding(level=level, template=template, values=values, rows=rows)
            for (level, template, _), (values, rows) in self._found.items()
        ]
        return sorted(made, key=lambda finding: order[finding.level])


# --- a check ---------------------------------------------------------------------------------


@dataclass
class Work:
    """What a check reads, where it may write, and what it has found so far. `scratch` and `target` are folders that exist."""

    sources: list[Source]
    reading: Reading
    scratch: Path
    target: Path  # gets the splits if all is fit
    stage: Stage
    findings: Findings = field(default_factory=Findings)
    outcome: Outcome = field(default_factory=Outcome)
