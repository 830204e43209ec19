"""A job as a YAML file: name, recipe, dataset, settings. What is left out has its default."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from django.contrib.auth.models import User
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from jobs import services
from jobs.models import Dataset, Job

KEYS = {
    "name": str,
    "recipe": str,
    "dataset": (str, int),
    "priority": int,
    "tags": list,
    "settings": dict,
    "anyway": bool,
}
MOST_BYTES = 64 * 1024
# YAML can say these by escapes; no page and no database can hold them.
_NEVER = re.compile(r"[\x00\ud800-\udfff]")
DEEPEST = 12


@dataclass
class JobFile:
    name: str
    recipe: str = "text_classification"
    dataset: str | int | None = None
    priority: int = 0
    tags: list[str] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)
    anyway: bool = False  # its warnings are accepted
    # Line of each key, from 1: "name", and dotted names of settings.
    lines: dict[str, int] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> JobFile:
        """Raises services.Refused with what is wrong, by field."""
        try:
            with path.open("rb") as file:
                body = file.read(MOST_BYTES + 1)
        except OSError as error:
            raise services.Refused({"": f"{path} cannot be read: {error.strerror}."}) from None
        return cls.parse(body)

    @classmethod
    def parse(cls, body: bytes) -> JobFile:
        """Of bytes from anybody: no aliases, no objects, no depths. Raises services.Refused; `lines` is in its `lines`."""
        if len(body) > MOST_BYTES:
            raise services.Refused({"": _("A job file has at most %(count)d KiB.") % {"count": MOST_BYTES // 1024}})
        try:
            text = body.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            line = body[: error.start].count(b"\n") + 1
            raise services.Refused({"": _("Line %(line)d is not UTF-8.") % {"line": line}}) from None
        lines: dict[str, int] = {}
        try:
            _look_at(text)
            _find_lines(yaml.compose(text, Loader=yaml.SafeLoader), "", lines)
            content = yaml.safe_load(text)
        except yaml.MarkedYAMLError as error:
            line = error.problem_mark.line + 1 if error.problem_mark else 1
            said = _("Line %(line)d is not YAML: %(problem)s.") % {"line": line, "problem": error.problem}
            raise services.Refused({"": said}) from None
        except (yaml.YAMLError, ValueError) as error:  # such as a date that cannot be
            raise services.Refused({"": _("This is not YAML: %(problem)s.") % {"problem": error}}) from None
        try:
            made = cls.of(content)
        except services.Refused as refused:
            raise services.Refused(with_lines(refused.errors, lines)) from None
        made.lines = lines
        return made

    @classmethod
    def of(cls, content: Any) -> JobFile:
        known = ", ".join(KEYS)
        if not isinstance(content, dict):
            raise services.Refused({"": _("A job has the keys %(known)s.") % {"known": known}})
        errors = {}
        for key, value in content.items():
            kind = KEYS.get(key) if isinstance(key, str) else None
            if kind is None:
                errors[str(key)] = _("There is no such key; known: %(known)s.") % {"known": known}
            elif isinstance(value, bool) != (kind is bool) or not isinstance(value, kind):  # type: ignore[arg-type]
                errors[key] = _("Cannot be “%(value)s”.") % {"value": str(value)[:60]}
        if isinstance(found := content.get("tags"), list) and not all(isinstance(tag, str) for tag in found):
            errors["tags"] = _("Must be a list of words, such as [first try, ernie].")
        if "name" not in content:
            errors["name"] = _("Give the job a name.")
        if errors:
            raise services.Refused(errors)
        return cls(**content)

    def set(self, dotted: str, value: Any) -> None:
        """One setting, such as "optimizer.learning_rate"; whether there is such a one is checked with the rest."""
        *groups, last = dotted.split(".")
        inner = self.settings
        for group in groups:
            inner = inner.setdefault(group, {})
            if not isinstance(inner, dict):
                raise services.Refused({dotted: _("“%(group)s” is no group of settings.") % {"group": group}})
        inner[last] = value

    def submit(self, *, owner: User, anyway: bool = False, dry_run: bool = False) -> Job:
        """Raises services.Refused."""
        return services.submit(
            owner=owner,
            name=self.name,
            recipe=self.recipe,
            dataset=self.dataset_of(owner),
            settings=self.settings,
            actor=owner,
            priority=self.priority,
            accepted_warnings=anyway or self.anyway,
            dry_run=dry_run,
            names=self.tags,
        )

    def dataset_of(self, owner: User) -> Dataset | None:
        """By number, or the newest of the name."""
        if self.dataset is None:
            return None
        visible = Dataset.objects.visible_to(owner)
        if isinstance(self.dataset, int):
            found = visible.filter(pk=self.dataset).first()
        else:
            found = visible.ready().filter(name=self.dataset).order_by("-pk").first()
        if found is None:
            names = sorted(set(visible.ready().values_list("name", flat=True)))
            said = _("There is no dataset “%(name)s” for %(owner)s; known: %(known)s.")
            values = {"name": self.dataset, "owner": owner, "known": ", ".join(names) or _("none")}
            raise services.Refused({"dataset": said % values})
        return found


def dump(
    *,
    name: str,
    recipe: str,
    dataset: Dataset | None,
    settings: dict[str, Any],
    priority: int = 0,
    tags: Sequence[str] = (),
) -> str:
    """What `JobFile.parse` makes the same job of. The dataset by its number: a name may get newer versions."""
    content: dict[str, Any] = {"name": name, "recipe": recipe}
    if dataset is not None:
        content["dataset"] = dataset.pk
    if priority:
        content["priority"] = priority
    if tags:
        content["tags"] = list(tags)
    content["settings"] = settings
    text: str = yaml.safe_dump(content, allow_unicode=True, sort_keys=False, width=110)
    return text


def with_lines(errors: dict[str, str], lines: dict[str, int]) -> dict[str, str]:
    """Each text with the line of its key, or of the group it is in."""
    told = {}
    for name, text in errors.items():
        line, at = None, name
        while at and (line := lines.get(at)) is None:
            at = at.rpartition(".")[0]
        told[name] = _("Line %(line)d: %(text)s") % {"line": line, "text": text} if line else text
    return told


def _look_at(text: str) -> None:
    """Refuses what could grow or sink: aliases and depth. The parser's events come one by one, before anything is built."""
    depth = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        if isinstance(event, yaml.ScalarEvent) and _NEVER.search(event.value):
            values = {"line": _at(event).line + 1, "text": _("Must not contain control characters.")}
            raise services.Refused({"": _("Line %(line)d: %(text)s") % values})
        if isinstance(event, yaml.AliasEvent):
            raise yaml.MarkedYAMLError(problem=_("aliases (*) are not allowed"), problem_mark=_at(event))
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > DEEPEST:
            said = ngettext(
                "more than %(count)d level within one another", "more than %(count)d levels within one another", DEEPEST
            )
            raise yaml.MarkedYAMLError(problem=said % {"count": DEEPEST}, problem_mark=_at(event))


def _find_lines(node: Any, prefix: str, lines: dict[str, int]) -> None:
    if not isinstance(node, yaml.MappingNode):
        return
    seen = set()
    for key, value in node.value:
        name = f"{prefix}{key.value}" if isinstance(key, yaml.ScalarNode) else prefix
        if name in seen:
            raise yaml.MarkedYAMLError(
                problem=_("“%(name)s” stands here twice") % {"name": key.value}, problem_mark=_at(key)
            )
        seen.add(name)
        # Settings are named without the key they stand below, as everywhere else.
        lines[name] = key.start_mark.line + 1
        _find_lines(value, "" if name == "settings" and not prefix else f"{name}.", lines)


def _at(place: Any) -> Any:
    return place.start_mark
