"""How long an attempt may hold its devices: as its settings say, or as was asked since."""

from __future__ import annotations

import time

from workers.contract.messages import AttemptSpec, Control, Request
from workers.contract.texts import Text

# Ranks are asked to leave so long before the limit, as a part of it, and at most the grace they then have.
MARGIN = 0.1


class TimeLimit:
    """Counts from the claim on this host's monotonic clock."""

    def __init__(self, spec: AttemptSpec) -> None:
        self._began = time.monotonic()
        self._spec = spec

    def of(self, control: Control) -> float | None:
        """Seconds; None is no limit."""
        asked = control.time_limit_s
        return self._spec.time_limit_s if asked is None else asked or None

    def applied_to(self, control: Control) -> Control:
        """`control`, with the request to leave once it is time. What people asked for goes first, but for an early
        finish, which may take as long as it likes."""
        limit = self.of(control)
        if limit is None or control.leave not in (None, Request.FINISH):
            return control
        margin = min(self._spec.grace_s, MARGIN * limit)
        if time.monotonic() - self._began < limit - margin:
            return control
        return control.model_copy(update={"leave": Request.TIME_LIMIT})

    def in_words(self, control: Control) -> Text:
        limit = self.of(control) or 0.0
        if limit < 120:
            return Text("The limit was %(seconds)g s.", seconds=limit)
        if limit < 7200:
            return Text("The limit was %(minutes)g min.", minutes=round(limit / 60, 1))
        return Text("The limit was %(hours)g h.", hours=round(limit / 3600, 2))
