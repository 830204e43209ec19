"""How numbers, times and states are written on pages."""

from __future__ import annotations

import math
import re
from datetime import datetime
from functools import cache
from typing import Any

from django import template
from django.http import QueryDict
from django.utils import timezone
from django.utils.html import escape, format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.text import capfirst
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, gettext_noop

from jobs import texts
from jobs.forms import shown
from jobs.models import END_REASON_LABELS, STATUS_LABELS, Attempt, JobEvent, RetentionRule
from workers.contract.records import SKIP_FOUND_INF, SKIP_GRAD, SKIP_INPUT, SKIP_LOSS, SKIP_SPIKE, from_json_number
from workers.contract.states import EndReason, Status
from workers.recipes.registry import RECIPES

register = template.Library()
_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


@register.filter
def number(value: Any, digits: int = 4) -> str:
    """`digits` significant digits; NaN and infinities by name; a dash for nothing."""
    value = from_json_number(value)
    if value is None or value == "":
        return "—"
    if not isinstance(value, (int, float)):
        return str(value)
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if value != value else ("∞" if value > 0 else "−∞")
    if isinstance(value, int) or (value == int(value) and abs(value) < 1e7):
        return f"{int(value):,}".replace(",", "\N{NARROW NO-BREAK SPACE}")
    if 1e-3 <= abs(value) < 1e7:
        return f"{value:.{digits}g}" if abs(value) < 10**digits else f"{value:.0f}"
    mantissa, exponent = f"{value:.{max(digits - 2, 1)}e}".split("e")
    mantissa = mantissa.rstrip("0").rstrip(".") if "." in mantissa else mantissa
    return f"{mantissa}·10{str(int(exponent)).translate(_SUPERSCRIPT)}"


@register.filter
def percent(value: Any, digits: int = 1) -> str:
    return "—" if value is None else f"{100 * float(value):.{digits}f} %"


@register.simple_tag
def share(part: int, whole: int, digits: int = 1) -> str:
    return percent(part / whole if whole else None, digits)


@register.filter
def log2(value: Any) -> str:
    """A loss scale as a power of two."""
    value = from_json_number(value)
    if value is None:
        return _("not used")
    power = math.log2(value) if value > 0 else math.nan
    return f"2{str(int(power)).translate(_SUPERSCRIPT)}" if power == power and power == int(power) else number(value)


@register.filter
def duration(seconds: Any) -> str:
    if seconds is None:
        return "—"
    seconds = float(seconds)
    if not math.isfinite(seconds):
        return number(seconds)
    if seconds < 1:
        return _("%(count)d ms") % {"count": round(seconds * 1000)}
    if seconds < 90:
        return _("%(count)d s") % {"count": round(seconds)}
    minutes = round(seconds / 60)
    if minutes < 90:
        return _("%(count)d min") % {"count": minutes}
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return _("%(hours)d h %(minutes)d min") % {"hours": hours, "minutes": minutes}
    return _("%(days)d d %(hours)d h") % {"days": hours // 24, "hours": hours % 24}


@register.filter
def seconds_since(moment: datetime) -> float:
    return max((timezone.now() - moment).total_seconds(), 0)


@register.filter
def marked(line: str, text: str) -> SafeString:
    """`line` with every occurrence of `text` marked, whatever its case."""
    if not text:
        return escape(line)
    # Every second part is what was looked for.
    parts = enumerate(re.split(f"({re.escape(text)})", line, flags=re.IGNORECASE))
    return format_html_join(
        "", "{}", ((format_html("<mark>{}</mark>", part) if at % 2 else part,) for at, part in parts)
    )


@register.filter
def byte_size(value: Any) -> str:
    size = float(value or 0)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" or size >= 100 else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


@register.filter
def status_label(status: str) -> str:
    return str(STATUS_LABELS[Status(status)]) if status in {s.value for s in Status} else str(status)


@register.filter
def reason_label(reason: str) -> str:
    return str(END_REASON_LABELS[EndReason(reason)]) if reason else ""


@register.filter
def reason_sentence(reason: str) -> str:
    return _(EndReason(reason).sentence) if reason else ""


@register.filter
def end_in_words(attempt: Attempt) -> str:
    """The particulars of an end, in the reader's language where the host sent what it takes."""
    return texts.in_words(attempt.end_detail, attempt.end_said)


@register.filter
def setting_value(value: Any) -> str:
    if value is None:
        return "—"
    if isinstance(value, bool):
        return _("on") if value else _("off")
    return shown(value)


@register.filter
def setting_title(name: str) -> str:
    """optimizer.learning_rate → Learning rate."""
    title = _titles().get(name)
    return _(title) if title else name.rsplit(".", 1)[-1].replace("_", " ").capitalize()


@cache
def _titles() -> dict[str, str]:
    """English title of every setting, by dotted name."""
    titles: dict[str, str] = {}
    for recipe in RECIPES.values():
        for group, info in recipe.settings.model_fields.items():
            for key, field in getattr(info.annotation, "model_fields", {}).items():
                titles.setdefault(f"{group}.{key}", field.title or "")
    return titles


_METRICS = {
    "loss": gettext_lazy("loss"),
    "accuracy": gettext_lazy("accuracy"),
    "f1": "F1",
    "macro_f1": gettext_lazy("macro F1"),
    "top5_accuracy": gettext_lazy("among the five likeliest"),
    "precision": gettext_lazy("precision"),
    "recall": gettext_lazy("recall"),
    "rows": gettext_lazy("rows"),
    "cer": gettext_lazy("character error rate"),
    "mae": "MAE",
    "rmse": "RMSE",
    "r2": "R²",
    "pearson": gettext_lazy("Pearson's r"),
    "spearman": gettext_lazy("Spearman's ρ"),
}


@register.filter
def metric_name(name: str) -> str:
    return str(_METRICS.get(name, name.replace("_", " ")))


@register.filter
def stage_in_words(stage: str) -> str:
    """A stage is an English name, then particulars. The longest beginning that has a translation is the name."""
    words = stage.split(" ")
    for end in range(len(words), 0, -1):
        name = " ".join(words[:end])
        if name and (known := _(name)) != name:
            return f"{known} {_particulars(' '.join(words[end:]))}".rstrip()
    return stage


def _particulars(text: str) -> str:
    if match := re.fullmatch(r"(\d+) of (\d+)", text):
        return _("%(done)s of %(total)s") % {"done": match[1], "total": match[2]}
    if match := re.fullmatch(r"step (\d+)", text):
        return _("step %(step)s") % {"step": match[1]}
    return text


_PARTS = {"controller": gettext_lazy("controller"), "supervisor": gettext_lazy("supervisor")}


@register.filter
def part_name(name: str) -> str:
    """Who did it, if it was no person: "controller", "rank 0" …"""
    if match := re.fullmatch(r"rank (\d+)", name):
        return rank_name(int(match[1]))
    return str(_PARTS.get(name, name))


@register.filter
def rank_name(rank: int) -> str:
    return _("rank %(rank)d") % {"rank": rank} if rank >= 0 else _("launcher of node %(node)d") % {"node": -1 - rank}


@register.simple_tag
def sort_link(query: QueryDict, key: str) -> str:
    """The query string that sorts by `key`, or the other way round if it already does."""
    query = query.copy()
    query["sort"] = f"-{key}" if query.get("sort") == key else key
    query.pop("page", None)
    return "?" + query.urlencode()


@register.simple_tag
def with_query(query: QueryDict, **changes: Any) -> str:
    query = query.copy()
    for key, value in changes.items():
        query[key] = str(value)
    return "?" + query.urlencode()


@register.filter
def changes_in_words(attempt: Attempt) -> str:
    """What an attempt changed against the one before, in one line."""
    return ", ".join(
        f"{setting_title(change['name'])} {setting_value(change['old'])} → {setting_value(change['new'])}"
        for change in attempt.settings_changed
    )


_REQUESTS = {
    "cancel": gettext_noop("Cancellation was asked for"),
    "pause": gettext_noop("A pause was asked for"),
    "finish": gettext_noop("An early finish was asked for"),
    "drain": gettext_noop("Asked to leave, because the host is being shut down"),
    "supersede": gettext_noop("Asked to leave, because a newer attempt took its place"),
    "checkpoint": gettext_noop("A checkpoint was asked for"),
}


# Ends the last event of a kind that comes too often to have one each time (jobs/controller/steps.py).
_ONLY_ON_CHART = gettext_noop("Further ones are only on the chart.")
_SKIPS = {
    SKIP_FOUND_INF: gettext_lazy("gradient overflow"),
    SKIP_LOSS: gettext_lazy("loss not finite"),
    SKIP_GRAD: gettext_lazy("gradient not finite"),
    SKIP_INPUT: gettext_lazy("input not finite"),
    SKIP_SPIKE: gettext_lazy("spike"),
}


@register.filter
def skip_in_words(reason: str) -> str:
    return str(_SKIPS.get(reason, reason.replace("_", " ")))


_FIELDS = {
    "loss": gettext_lazy("loss"),
    "loss_all": gettext_lazy("loss of all ranks"),
    "grad_norm": gettext_lazy("gradient norm"),
}


@register.filter
def in_words(event: JobEvent) -> str:
    """One line for an event. What a host wrote is not always what it should be: then its kind, and its English, must do."""
    try:
        return _in_words(event)
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError, RecursionError):
        return capfirst(event.message or event.kind.replace("_", " "))


def _in_words(event: JobEvent) -> str:
    """Words of a host's own, such as an exception, are shown as they are."""
    data = event.data or {}
    said = texts.in_words(event.message, data.get("said"))
    match event.kind:
        case "status" if event.reason:
            text = _with(status_label(event.new), reason_sentence(event.reason))
            return f"{text} {said}" if said else text
        case "status":
            text = f"{status_label(event.old)} → {status_label(event.new)}"
            return _with(text, said) if said else text
        case "attempt":
            causes = dict(Attempt.Cause.choices)
            text = _("Attempt %(number)s queued (%(cause)s)") % {
                "number": data.get("number", ""),
                "cause": causes.get(event.reason, event.reason),
            }
            if event.step:
                text += _(", from the checkpoint at step %(step)d") % {"step": event.step}
            return text
        case "warning_accepted" if data.get("template"):
            return _("Submitted in spite of a warning: %(text)s") % {"text": _(data["template"]) % data["values"]}
        case "request":
            return _(_REQUESTS.get(event.reason, event.reason))
        case "time_limit":
            old, new = (_limit(data.get(name)) for name in ("old_s", "new_s"))
            return _("Time limit %(old)s → %(new)s") % {"old": old, "new": new}
        case "annotated":
            return _annotated(data)
        case "archived":
            if data.get("checkpoints"):
                values = {"count": data["checkpoints"], "size": byte_size(data.get("bytes"))}
                return _("Archived; %(count)d checkpoints (%(size)s) were removed") % values
            return _("Archived")
        case "unarchived":
            return _("Back from the archive")
        case "pinned":
            return _("Marked to be kept")
        case "unpinned":
            return _("No longer marked to be kept")
        case "checkpoints_removed":
            values = {"count": data.get("checkpoints", 0), "size": byte_size(data.get("bytes"))}
            text = _("%(count)d checkpoints (%(size)s) were removed") % values
            return _with(text, retention_rule(event.reason))
        case "logs_removed":
            return _with(_("The logs were removed"), retention_rule(event.reason))
        case "scale":
            text = _("Loss scale %(old)s → %(new)s") % {"old": log2(data.get("old")), "new": log2(data.get("new"))}
            if data.get("ranks"):
                text += _("; overflowed on rank %(ranks)s") % {"ranks": ", ".join(map(str, data["ranks"]))}
            return text
        case "spike":
            what = _("gradient norm") if data.get("what") == "grad_norm" else _("loss")
            text = _("Spike: %(what)s %(value)s, %(sigmas)s deviations above the mean of %(mean)s") % {
                "what": what,
                "value": number(data.get("value")),
                "sigmas": number(data.get("sigmas")),
                "mean": number(data.get("mean")),
            }
            return text + _("; the step was skipped") if data.get("skipped") else text
        case "rewind":
            why = skip_in_words(data.get("why") or "")
            return _("Went back to the checkpoint of step %(step)s and on with the next batch (%(why)s).") % {
                "step": data.get("to_step"),
                "why": why,
            }
        case "claimed" if data.get("host"):
            return _("%(host)s has taken the attempt.") % {"host": data["host"]}
        case "started":
            return _("The launcher of the ranks was started.")
        case "skipped" | "non_finite" if data.get("what"):
            return _steps_in_words(event.kind, data, event.message)
        case "checkpoint":
            text = _("Checkpoint saved on the host.")
            if not data.get("good", True):
                text += _(" It is not good to start from: something in it is not finite.")
            return text
        case "checkpoint_published":
            return _("Checkpoint copied to the shared storage.")
        case "artifact" if data.get("name"):
            return _("“%(name)s” was saved on the host.") % {"name": data["name"]}
        case "artifact_published" if data.get("name"):
            return _("“%(name)s” is ready for download.") % {"name": data["name"]}
        case "evaluation":
            metrics = ", ".join(
                f"{metric_name(name)} {number(value)}"
                for name, value in (data.get("metrics") or {}).items()
                if not _is_table(value)
            )
            return _("Evaluation: %(metrics)s") % {"metrics": metrics} if metrics else _("Evaluation")
        case "rank_exit":
            how = (
                _("signal %(signal)s") % {"signal": data["signal"]}
                if data.get("signal")
                else _("code %(code)s") % {"code": data.get("exit_code")}
            )
            text = _("Rank ended with %(how)s") % {"how": how}
            return text + _(", the first to fail") if data.get("first") else text
        case "measured":
            return _("Measured: memory, and the time of an evaluation and a checkpoint.")
        case "stage":
            return capfirst(stage_in_words(event.message))
        case "outcome" if event.reason:
            return capfirst(said or reason_sentence(event.reason))
        case _:
            return capfirst(said or event.kind.replace("_", " "))


def _limit(seconds: float | None) -> str:
    return duration(seconds) if seconds else _("none")


def _annotated(data: dict[str, Any]) -> str:
    parts = [_("notes changed")] if data.get("notes") else []
    if data.get("added"):
        parts.append(_("tagged %(tags)s") % {"tags": ", ".join(data["added"])})
    if data.get("removed"):
        parts.append(_("no longer tagged %(tags)s") % {"tags": ", ".join(data["removed"])})
    return capfirst("; ".join(parts))


@register.filter
def retention_rule(what: str) -> str:
    return str(dict(RetentionRule.What.choices).get(what, what))


def _steps_in_words(kind: str, data: dict[str, Any], message: str) -> str:
    first, last, count = data["first"], data["last"], data["count"]
    where = (
        _("Step %(step)d") % {"step": first}
        if count == 1
        else _("%(count)d steps from %(first)d to %(last)d") % {"count": count, "first": first, "last": last}
    )
    if kind == "skipped":
        text = _("%(steps)s skipped: %(why)s.") % {"steps": where, "why": _SKIPS.get(data["what"], data["what"])}
    else:
        # "loss nan, grad_norm inf"
        pairs = (item.rpartition(" ") for item in data["what"].split(", "))
        what = ", ".join(f"{_FIELDS.get(name, name)} {number(value)}".lstrip() for name, _space, value in pairs)
        text = _("%(steps)s not finite: %(what)s.") % {"steps": where, "what": what}
    return f"{text} {_(_ONLY_ON_CHART)}" if message.endswith(_ONLY_ON_CHART) else text


def _with(what: str, detail: str) -> str:
    return _("%(what)s: %(detail)s") % {"what": what, "detail": detail}


def _is_table(value: Any) -> bool:
    return isinstance(value, (dict, list))
