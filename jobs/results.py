"""What the results section of a job page shows: the verdict, evaluations, confusion, the worst dev rows, files to take away."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from django.contrib.auth.models import AbstractBaseUser, AnonymousUser
from django.core.paginator import Paginator
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from jobs import baselines as of_datasets
from jobs import confusion, fit, spans
from jobs.exports import batches, files
from jobs.fit import Point, Verdict, Word
from jobs.models import Attempt, Dataset, Evaluation, Job, WorstRows
from jobs.templatetags.evenkeel import metric_name, number
from workers.contract.records import from_json_number
from workers.contract.states import ENDED, Status
from workers.recipes.registry import RECIPES

ROWS_A_PAGE = 10
# Errors that are shares: they compare in points, as accuracies do.
RATES = ("cer",)
# Attempts that went on from one another, looked at for the curve before this one.
_MOST_BEFORE = 20


def main_metric(attempt: Attempt, rows: list[Evaluation]) -> tuple[str, bool]:
    """The metric by which the best is chosen, and whether less of it is better. Older attempts do not say."""
    plan = attempt.plan or {}
    if plan.get("best_by"):
        return str(plan["best_by"]), bool(plan.get("lower_is_better"))
    there = rows[-1].metrics if rows else {}
    return next((name for name in ("accuracy", "loss") if name in there), "accuracy"), "accuracy" not in there


def _number(metrics: Mapping[str, Any], name: str) -> float | None:
    value = from_json_number(metrics.get(name))
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _point(row: Evaluation, main: str) -> Point:
    of_train = row.metrics.get("train") or {}
    return Point(
        row.step,
        _number(row.metrics, main),
        _number(row.metrics, "loss"),
        _number(of_train, main),
        _number(of_train, "loss"),
    )


def _history(attempt: Attempt) -> list[Evaluation]:
    """Evaluations of the attempts that this one goes on from, up to where it took over."""
    before: list[Evaluation] = []
    seen = {attempt.pk}
    start = attempt.start_from
    while start is not None and start.attempt_id not in seen and len(seen) < _MOST_BEFORE:
        seen.add(start.attempt_id)
        before = [*Evaluation.objects.filter(attempt=start.attempt_id, step__lte=start.step).order_by("step"), *before]
        start = start.attempt.start_from
    return before


def _baselines(job: Job, attempt: Attempt, main: str) -> dict[str, float]:
    """What is known of simple models on the same dev split, in the main metric."""
    said: dict[str, Any] = dict((attempt.plan or {}).get("baselines") or {})
    if job.dataset:
        goal = main if job.dataset.kind == Dataset.Kind.LINES else attempt.settings.get("data", {}).get("goal")
        said |= of_datasets.for_goal(job.dataset, str(goal or ""))
    values = {name: _number(said, name) for name in said}
    return {name: value for name, value in values.items() if value is not None}


def _chance(job: Job, main: str, baselines: Mapping[str, float]) -> float | None:
    if main != "accuracy":
        return None
    labels = job.dataset.labels if job.dataset else []
    return baselines.get("majority", 1 / len(labels) if labels else None)


# --- verdict and evaluations ---------------------------------------------------------------


def evaluations_part(job: Job, attempt: Attempt) -> dict[str, Any]:
    rows = list(Evaluation.objects.filter(attempt=attempt).order_by("step"))
    before = _history(attempt)
    main, lower = main_metric(attempt, rows or before)
    baselines = _baselines(job, attempt, main)
    points = [_point(row, main) for row in (*before, *rows)]
    verdict = fit.judge(
        points,
        lower_is_better=lower,
        rate=main in RATES,
        over=attempt.status in ENDED and attempt.status != Status.PAUSED,
        baselines=baselines,
        chance=_chance(job, main, baselines),
    )
    # The best may be of an attempt before, as its weights may be those that are exported.
    best = max((row for row in (*before, *rows) if row.best), key=lambda row: row.step, default=None)
    shown = rows if best is None or best in rows else [best, *rows]
    names: list[str] = []
    for row in shown:
        names += [
            name for name, value in row.metrics.items() if name not in names and not isinstance(value, dict | list)
        ]
    # Loss and the main metric stand first, each beside what the training rows gave.
    names.sort(key=lambda name: {"loss": 0, main: 1}.get(name, 2))
    columns = [(name, any((row.metrics.get("train") or {}).get(name) is not None for row in shown)) for name in names]
    columns = [(name, of_train and name in ("loss", main)) for name, of_train in columns]
    table = [
        {
            "evaluation": row,
            "values": [
                value
                for name, of_train in columns
                for value in (
                    row.metrics.get(name),
                    *([(row.metrics.get("train") or {}).get(name)] if of_train else []),
                )
            ],
        }
        for row in shown
    ]
    return {
        "evaluations": table,
        "evaluation_columns": columns,
        "main_metric": main,
        "best": best,
        "verdict": verdict,
        "verdict_words": in_words(verdict, main, attempt),
        "gap": _gap_in_words(verdict, main),
        "baseline_unbeaten": baseline_name(verdict.unbeaten[0]) if verdict.unbeaten else "",
        "fit": fit,
        "baselines": [(baseline_name(name), value) for name, value in baselines.items()],
        "best_value": best.metrics.get(main) if best else None,
        "from_scratch": _has_pretrained(attempt) and attempt.settings.get("model", {}).get("source") == "scratch",
        "first_evaluation": _first(attempt),
        "evaluation_chart": {
            "step": [point.step for point in points],
            "dev": [_json(point.dev) for point in points],
            "train": [_json(point.train) for point in points],
            "dev_loss": [_json(point.dev_loss) for point in points],
            "train_loss": [_json(point.train_loss) for point in points],
            "best": verdict.best.step if verdict.best else None,
        },
        "metric_files": metric_files(attempt, bool(rows)),
    }


def _json(value: float | None) -> float | str | None:
    return value if value is None or value - value == 0 else str(value)


def _first(attempt: Attempt) -> int | None:
    """The applied step at which the first evaluation comes, if that can be known."""
    every = attempt.settings.get("checkpoints", {}).get("evaluate_every_steps")
    steps = every or (attempt.plan or {}).get("steps_per_epoch")
    return int(steps) if isinstance(steps, int) and steps > 0 else None


_LEVELS = {
    Word.TOO_EARLY: "",
    Word.TOO_FEW: "",
    Word.NOT_FINITE: "unhealthy",
    Word.OVERFITTING: "unhealthy",
    Word.BY_HEART: "watch",
    Word.OVERCONFIDENT: "watch",
    Word.DEV_FALLS: "watch",
    Word.UNDERFITTING: "unhealthy",
    Word.UNDERFITTING_RISING: "watch",
    Word.IMPROVING: "healthy",
    Word.NOT_BEATEN: "watch",
    Word.FINE: "healthy",
}
_TITLES = {
    Word.TOO_EARLY: gettext_lazy("Too early to say"),
    Word.TOO_FEW: gettext_lazy("Too few evaluations to say"),
    Word.NOT_FINITE: gettext_lazy("NaN in evaluation"),
    Word.OVERFITTING: gettext_lazy("Overfitting"),
    Word.BY_HEART: gettext_lazy("Overfitting: learnt by heart"),
    Word.OVERCONFIDENT: gettext_lazy("Overconfident"),
    Word.DEV_FALLS: gettext_lazy("Dev is getting worse"),
    Word.UNDERFITTING: gettext_lazy("Underfitting"),
    Word.UNDERFITTING_RISING: gettext_lazy("Underfitting, but still learning"),
    Word.IMPROVING: gettext_lazy("Still improving"),
    Word.NOT_BEATEN: gettext_lazy("No better than a simple baseline"),
    Word.FINE: gettext_lazy("Fine"),
}


def in_words(verdict: Verdict, main: str, attempt: Attempt) -> dict[str, Any]:
    """Level, title, what it rests on, and what to do."""
    return {
        "level": _LEVELS[verdict.word],
        "title": _TITLES[verdict.word],
        "why": _why(verdict, metric_name(main)),
        "advice": _advice(verdict.word, attempt),
    }


def _why(verdict: Verdict, metric: str) -> str:
    best = verdict.best.step if verdict.best else None
    values = {"metric": metric, "since": verdict.since, "best": best, "least": fit.LEAST_EVALUATIONS}
    match verdict.word:
        case Word.NOT_FINITE:
            text = _("Since step %(since)d evaluations have given NaN or infinity.") % values
            return text + (" " + _("The best before was at step %(best)d.") % values if best is not None else "")
        case Word.OVERFITTING:
            return (
                _(
                    "Since step %(since)d the training rows have been learnt better and better, while dev has become worse. "
                    "The best weights are those of step %(best)d."
                )
                % values
            )
        case Word.BY_HEART:
            return (
                _(
                    "The training rows are known far better than dev rows, and dev no longer improves: what is still learnt "
                    "does not carry over. The best weights are those of step %(best)d."
                )
                % values
            )
        case Word.OVERCONFIDENT:
            return (
                _(
                    "Since step %(since)d the loss on dev has risen while %(metric)s holds: wrong answers are given with ever "
                    "more certainty. The best weights are those of step %(best)d."
                )
                % values
            )
        case Word.DEV_FALLS:
            return (
                _(
                    "Since step %(since)d dev has become worse. How the training rows did was not measured in this run. "
                    "The best weights are those of step %(best)d."
                )
                % values
            )
        case Word.UNDERFITTING_RISING:
            return _("The training rows themselves are not learnt well yet, but dev still improves.")
        case Word.UNDERFITTING:
            return _("The training rows themselves are not learnt well, and dev no longer improves.")
        case Word.IMPROVING:
            return (
                _("The newest evaluation is the best, and training rows and dev improve together.")
                if (verdict.gap is None or verdict.gap <= verdict.scale.limit(fit.GAP_POINTS, fit.GAP_SHARE))
                else _("The newest evaluation is the best, although the training rows are known far better than dev.")
            )
        case Word.NOT_BEATEN:
            return _("Training went well as such, but a simple model does as well on the same dev rows.")
        case Word.FINE:
            return (
                _(
                    "Training rows and dev are close, and dev has come to rest. The best weights are those of step %(best)d."
                )
                % values
            )
        case Word.TOO_EARLY:
            return (
                ngettext(
                    "It takes %(least)d evaluation to see a trend.",
                    "It takes %(least)d evaluations to see a trend.",
                    fit.LEAST_EVALUATIONS,
                )
                % values
            )
        case _:
            return (
                _("It takes %(least)d evaluations to see a trend. With a smaller “Evaluate every” there are more.")
                % values
            )


def _advice(word: Word, attempt: Attempt) -> list[str]:
    regularisation = attempt.settings.get("regularisation", {})
    dropout, decay = regularisation.get("dropout"), attempt.settings.get("optimizer", {}).get("weight_decay")
    rate = attempt.settings.get("optimizer", {}).get("learning_rate")
    patience = attempt.settings.get("early_stopping", {}).get("patience")
    match word:
        case Word.OVERFITTING | Word.BY_HEART | Word.OVERCONFIDENT | Word.DEV_FALLS:
            found = (
                [_("Raise dropout%(now)s, to 0.3 say.") % {"now": _now(dropout)}]
                if dropout is None or dropout < 0.3
                else []
            )
            found.append(_("Raise weight decay%(now)s.") % {"now": _now(decay)})
            if patience is None:
                found.append(_("Switch early stopping on, with a patience of 2 or 3, or train for fewer epochs."))
            else:
                found.append(
                    _("Train for fewer epochs, or lower the patience of early stopping%(now)s.")
                    % {"now": _now(patience)}
                )
            return [*found, _("Get more training rows, or take a smaller model.")]
        case Word.UNDERFITTING_RISING | Word.IMPROVING:
            found = [_("Train longer: another run can go on from the last checkpoint.")]
            return (
                [*found, _("Or raise the learning rate%(now)s.") % {"now": _now(rate)}]
                if word is Word.UNDERFITTING_RISING
                else found
            )
        case Word.UNDERFITTING:
            found = [_("Raise the learning rate%(now)s.") % {"now": _now(rate)}]
            if dropout:
                found.append(_("Lower dropout%(now)s.") % {"now": _now(dropout)})
            larger = (
                _("Take a larger or a pretrained model.") if _has_pretrained(attempt) else _("Take a larger model.")
            )
            return [*found, larger]
        case Word.NOT_BEATEN:
            if _has_pretrained(attempt):
                return [_("Take a pretrained model, train longer, or get more training rows.")]
            return [_("Train longer, or get more training rows.")]
        case Word.NOT_FINITE:
            return [_("Lower the learning rate, clip at a smaller norm, or look at the rows named in the events.")]
        case _:
            return []


def _has_pretrained(attempt: Attempt) -> bool:
    recipe = RECIPES.get(attempt.job.recipe)
    return recipe is not None and recipe.has_pretrained


def _now(value: Any) -> str:
    return "" if value is None else _(" (now %(value)s)") % {"value": number(value)}


def _gap_in_words(verdict: Verdict, main: str) -> str:
    best = verdict.best
    if best is None or verdict.gap is None:
        return ""
    values = {
        "metric": metric_name(main),
        "train": number(best.train),
        "dev": number(best.dev),
        "step": best.step,
        "gap": f"{100 * abs(verdict.gap):.1f}",
    }
    if verdict.scale.fraction:
        if verdict.gap >= 0:
            return (
                _(
                    "At step %(step)d %(metric)s is %(train)s on training rows and %(dev)s on dev: a gap of %(gap)s points."
                )
                % values
            )
        return (
            _(
                "At step %(step)d %(metric)s is %(train)s on training rows and %(dev)s on dev, which is %(gap)s points better."
            )
            % values
        )
    if verdict.gap >= 0:
        return (
            _(
                "At step %(step)d %(metric)s is %(train)s on training rows and %(dev)s on dev: training rows do %(gap)s %% better."
            )
            % values
        )
    return (
        _("At step %(step)d %(metric)s is %(train)s on training rows and %(dev)s on dev, which does %(gap)s %% better.")
        % values
    )


_BASELINES = {
    "majority": gettext_lazy("Always the commonest label"),
    "bag_of_characters_logistic_regression": gettext_lazy("Logistic regression on single characters"),
    "median": gettext_lazy("Always the median"),
    "mean": gettext_lazy("Always the mean"),
    "last_value": gettext_lazy("Always the last value"),
    "summaries": gettext_lazy("A linear model on a few numbers per sequence"),
    "most_frequent_tag": gettext_lazy("Each token's most frequent tag"),
    "pixels_logistic_regression": gettext_lazy("Logistic regression on 8 × 8 pixels"),
    "commonest_text": gettext_lazy("Always the commonest text"),
    "nearest_line": gettext_lazy("The text of the training line that looks most alike"),
}


def baseline_name(name: str) -> str:
    return str(_BASELINES.get(name, name.replace("_", " ")))


# --- confusion -------------------------------------------------------------------------------


def confusion_part(job: Job, attempt: Attempt, step: int | None = None) -> dict[str, Any]:
    """Of the evaluation at `step`; of the best one, else the newest, without it."""
    rows = [*_history(attempt), *Evaluation.objects.filter(attempt=attempt).order_by("step")]
    rows = [row for row in rows if "confusion" in row.metrics]
    best = max((row for row in rows if row.best), key=lambda row: row.step, default=rows[-1] if rows else None)
    chosen = next((row for row in rows if row.step == step), best)
    names = job.dataset.labels if job.dataset else []
    return {
        "confusion": confusion.of(chosen.metrics, names) if chosen else None,
        "confusion_of": chosen,
        "confusion_step": step,
        "confusion_choices": rows,
        "entities": (chosen.metrics.get("entities") or {}) if chosen else {},
        "confusion_limit": confusion.MOST_IN_TABLE,
    }


# --- the worst dev rows ----------------------------------------------------------------------

# What is no content of the dataset: everybody who sees the job sees these.
_OPEN = ("row", "loss", "probability")
_WIDE = ("text", "read", "values", "tagged", "said")
_COLUMNS = {
    "row": gettext_lazy("Row"),
    "loss": gettext_lazy("Loss"),
    "text": gettext_lazy("Text"),
    "label": gettext_lazy("Label"),
    "predicted": gettext_lazy("Predicted"),
    "probability": gettext_lazy("Probability"),
    "target": gettext_lazy("Target"),
    "error": gettext_lazy("Error"),
    "sequence": gettext_lazy("Sequence"),
    "values": gettext_lazy("Values"),
    "image": gettext_lazy("Picture"),
    "id": gettext_lazy("Name"),
    "read": gettext_lazy("Read as"),
    "edits": gettext_lazy("Wrong characters"),
    "wrong": gettext_lazy("Wrong tokens"),
    "tagged": gettext_lazy("Spans of the dataset"),
    "said": gettext_lazy("Spans of the model"),
}


def worst_part(
    job: Job, attempt: Attempt, user: AbstractBaseUser | AnonymousUser, pair: str = "", page: str | None = None
) -> dict[str, Any]:
    """`pair`: only rows with that label taken for that other one, as “label→predicted”."""
    kept = WorstRows.objects.filter(attempt=attempt).first()
    context: dict[str, Any] = {"worst": kept, "worst_pair": pair, "worst_pending": attempt.status not in ENDED}
    if kept is None:
        return context
    may = job.dataset_id is None or Dataset.objects.visible_to(user).filter(pk=job.dataset_id).exists()
    pairs = Counter(_pair(row) for row in kept.rows if _pair(row))
    rows = [row for row in kept.rows if not pair or _pair(row) == pair]
    columns = list(dict.fromkeys(name for row in kept.rows for name in row))
    if not may:
        # The names of labels stand in the confusion table too; numbers to be predicted are contents.
        named = {name for name in ("label", "predicted") if not _is_numeric(name, kept.rows)}
        columns = [name for name in columns if name in _OPEN or name in named]
    # The text last: it takes the room that is left.
    columns.sort(key=lambda name: name in _WIDE)
    titles = [(name, _title(name), _is_numeric(name, kept.rows)) for name in columns]
    shown = Paginator(rows, ROWS_A_PAGE).get_page(page)
    return context | {
        "worst_texts_hidden": not may,
        "worst_columns": titles,
        "worst_page": shown,
        "worst_rows": [[(*title, _shown(title[0], row.get(title[0]))) for title in titles] for row in shown],
        "worst_pairs": pairs.most_common(),
        "span_kinds": spans.kinds(job.dataset.labels if job.dataset else []),
    }


def _pair(row: Mapping[str, Any]) -> str:
    """Numbers are no pairs: each would be one of its own."""
    label, predicted = row.get("label"), row.get("predicted")
    return f"{label}→{predicted}" if isinstance(label, str) and isinstance(predicted, str) else ""


def _title(name: str) -> str:
    return str(_COLUMNS.get(name, name.replace("_", " ").capitalize()))


def _is_numeric(name: str, rows: list[dict[str, Any]]) -> bool:
    values = [from_json_number(row.get(name)) for row in rows]
    return all(value is None or isinstance(value, int | float) for value in values)


def _shown(name: str, value: Any) -> Any:
    """A list is a text with its spans, or the place of a picture; templates draw it."""
    if isinstance(value, list):
        return value
    return str(value) if name == "row" or isinstance(value, bool) else number(value)


# --- files -----------------------------------------------------------------------------------


def metric_files(attempt: Attempt, evaluated: bool) -> dict[str, Any]:
    ranks = list(batches.ranks_of(attempt))
    return {"ranks": ranks, "steps": files.FORMATS[files.STEPS] if ranks else (), "evaluated": evaluated}
