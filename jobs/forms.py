"""A form made from a recipe's settings model. Pydantic stays the only judge of what is valid; this shows
the fields, keeps what was typed, and hangs each complaint on its field."""

from __future__ import annotations

import json
import re
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from django.utils.translation import gettext as _
from pydantic.fields import FieldInfo

from jobs.services import Refused, validated
from workers.contract.fields import SettingsGroup
from workers.contract.presets import Preset
from workers.recipes.registry import Recipe


def shown(value: Any) -> str:
    """A setting's value as one would type it: 5e-5 and 65536, not 5e-05 and 65536.0; nothing for None."""
    if value is None:
        return ""
    if isinstance(value, float):
        text = repr(value)
        text = text.removesuffix(".0")
        return re.sub(r"e([+-]?)0*(\d)", lambda match: f"e{match[1].replace('+', '')}{match[2]}", text)
    if isinstance(value, (list, dict)):
        return json.dumps(value, ensure_ascii=False)
    return str(value.value if isinstance(value, Enum) else value)


@dataclass
class SettingField:
    name: str  # dotted
    title: str
    help: str
    unit: str
    basic: bool
    kind: str  # number, integer, text, checkbox, select, json
    limits: str
    optional: bool
    choices: list[str]
    default: Any
    value: str = ""  # as typed
    checked: bool = False
    error: str = ""
    old: Any = None
    compared: bool = False  # with `old`
    changed: bool = False  # from `old`
    # It counts only if another field (dotted name) has one of these values: "clipping.mode=zclip,autoclip".
    only: str = ""
    # What can be chosen where the declaration cannot know it: (value, label), such as jobs with a model.
    offers: list[tuple[str, str]] | None = None

    @property
    def id(self) -> str:
        return "id_" + self.name.replace(".", "_")

    @property
    def default_shown(self) -> str:
        return _("empty") if self.default is None else shown(self.default)

    @property
    def old_shown(self) -> str:
        if self.kind == "checkbox":
            return _("on") if self.old else _("off")
        return _("empty") if self.old is None else shown(self.old)

    @property
    def old_typed(self) -> str:
        return ("on" if self.old else "") if self.kind == "checkbox" else shown(self.old)


@dataclass
class SettingGroup:
    name: str
    title: str
    help: str
    fields: list[SettingField] = field(default_factory=list)
    error: str = ""

    @property
    def basic(self) -> list[SettingField]:
        return [item for item in self.fields if item.basic]

    @property
    def further(self) -> list[SettingField]:
        return [item for item in self.fields if not item.basic]

    @property
    def has_changes(self) -> bool:
        return any(item.changed for item in self.fields)

    @property
    def must_be_seen(self) -> bool:
        """An error or a change must not hide in a closed group."""
        return any(item.error or item.changed for item in self.further)


class SettingsForm:
    """`initial` fills the fields (defaults if None), `data` is what was sent; `old` is what changes are marked against,
    or the values of `preset`, which with `fill` go over what was there. `offers`: field -> what can be chosen."""

    def __init__(
        self,
        recipe: Recipe,
        *,
        data: Mapping[str, str] | None = None,
        initial: dict[str, Any] | None = None,
        old: dict[str, Any] | None = None,
        preset: Preset | None = None,
        fill: bool = False,
        offers: Mapping[str, list[tuple[str, str]]] | None = None,
    ) -> None:
        self.recipe = recipe
        self.data = data
        initial = None if initial is None else recipe.in_todays_names(initial)
        old = None if old is None else recipe.in_todays_names(old)
        self.preset = preset
        self.groups: list[SettingGroup] = []
        self.error = ""  # about the whole
        self.settings: dict[str, Any] = {}
        for name, info in recipe.settings.model_fields.items():
            model = info.annotation
            if isinstance(model, type) and issubclass(model, SettingsGroup):
                group = SettingGroup(name, _title(name, info), _(_first_paragraph(model.__doc__)))
                group.fields = [_field(f"{name}.{key}", key, inner) for key, inner in model.model_fields.items()]
                self.groups.append(group)
            else:
                if not self.groups or self.groups[0].name:
                    self.groups.insert(0, SettingGroup("", _(recipe.title), ""))
                self.groups[0].fields.append(_field(name, name, info))
        for item in self.fields():
            self._fill(item, initial, fill)
            if offers and item.name in offers:
                item.offers, item.limits = _with_given(offers[item.name], item.value), ""
            if old is not None:
                self._compare(item, _dig(old, item.name, item.default))
            elif preset is not None and item.name in preset.values:
                self._compare(item, preset.values[item.name])

    def fields(self) -> Iterator[SettingField]:
        for group in self.groups:
            yield from group.fields

    def field(self, name: str) -> SettingField | None:
        return next((item for item in self.fields() if item.name == name), None)

    def is_valid(self) -> bool:
        """Sets `settings` to the checked settings; on failure every field has its complaint."""
        try:
            self.settings = validated(self.recipe.name, self.raw()).model_dump(mode="json")
        except Refused as refused:
            self.add_errors(refused.errors)
            return False
        return not any(item.error for item in self.fields())

    def raw(self) -> dict[str, Any]:
        """What was typed, nested as the model is."""
        nested: dict[str, Any] = {}
        for item in self.fields():
            place = nested
            *groups, key = item.name.split(".")
            for group in groups:
                place = place.setdefault(group, {})
            if item.kind == "checkbox":
                place[key] = item.checked
            elif not item.value.strip() and item.optional:
                place[key] = None
            elif item.kind == "json":
                try:
                    place[key] = json.loads(item.value)
                except ValueError:
                    item.error = _("Must be JSON, and is not: “%(value)s”.") % {"value": item.value[:60]}
            elif item.kind == "text":
                place[key] = item.value.strip()
            else:
                # A comma as the decimal sign is a slip that would otherwise cost a round trip.
                place[key] = item.value.strip().replace(",", ".") if item.kind == "number" else item.value.strip()
        return nested

    def add_errors(self, errors: Mapping[str, str]) -> dict[str, str]:
        """Hangs each on its field or group; returns those that belong to neither."""
        rest: dict[str, str] = {}
        for name, text in errors.items():
            target: SettingField | SettingGroup | None = self.field(name) or next(
                (group for group in self.groups if group.name and group.name == name), None
            )
            if target is None:
                # Below a field, such as one element of a list.
                target = next((item for item in self.fields() if name.startswith(item.name + ".")), None)
            if target is not None:
                target.error = target.error or text
            elif name in ("", "__root__"):
                self.error = text
            else:
                rest[name] = text
        return rest

    @property
    def has_errors(self) -> bool:
        return bool(self.error or any(g.error for g in self.groups) or any(f.error for f in self.fields()))

    @property
    def wrong(self) -> list[SettingField]:
        return [item for item in self.fields() if item.error]

    def title_of(self, name: str) -> str:
        """Of a field or a group; the name itself if it is neither."""
        target = self.field(name) or next((group for group in self.groups if group.name == name), None)
        return target.title if target else name

    @property
    def preset_title(self) -> str:
        return _(self.preset.title) if self.preset else ""

    @property
    def changes(self) -> list[SettingField]:
        return [item for item in self.fields() if item.changed]

    def _fill(self, item: SettingField, initial: dict[str, Any] | None, fill: bool) -> None:
        value = item.default if initial is None else _dig(initial, item.name, item.default)
        if fill and self.preset is not None and item.name in self.preset.values:
            value = self.preset.values[item.name]
            item.value, item.checked = shown(value), bool(value) and item.kind == "checkbox"
        elif self.data is None:
            item.value, item.checked = shown(value), bool(value) and item.kind == "checkbox"
        elif item.kind == "checkbox":
            item.checked = bool(self.data.get(item.name))
        else:
            item.value = self.data.get(item.name, shown(value))

    def _compare(self, item: SettingField, old: Any) -> None:
        item.old, item.compared = old, True
        item.changed = _differs(item)


def _with_given(offers: list[tuple[str, str]], given: str) -> list[tuple[str, str]]:
    """A value that is not on offer stays to be seen, with the complaint about it."""
    return offers if not given or given in dict(offers) else [(given, given), *offers]


def _differs(item: SettingField) -> bool:
    if item.kind == "checkbox":
        return item.checked != bool(item.old)
    typed = item.value.strip()
    if typed == shown(item.old):
        return False
    if item.kind in ("number", "integer"):
        try:
            return item.old is None or float(typed.replace(",", ".")) != float(item.old)
        except ValueError:
            return True
    return True


def _dig(settings: Mapping[str, Any], name: str, default: Any) -> Any:
    value: Any = settings
    for part in name.split("."):
        if not isinstance(value, Mapping) or part not in value:
            return default
        value = value[part]
    return value


def _first_paragraph(text: str | None) -> str:
    return " ".join((text or "").strip().split("\n\n")[0].split())


def _title(name: str, info: FieldInfo) -> str:
    return _(info.title) if info.title else _(name.replace("_", " ").capitalize())


def _field(name: str, key: str, info: FieldInfo) -> SettingField:
    extra = info.json_schema_extra if isinstance(info.json_schema_extra, dict) else {}
    kinds = [info.annotation]
    optional = False
    if get_origin(info.annotation) in (Union, types.UnionType):
        kinds = [kind for kind in get_args(info.annotation) if kind is not type(None)]
        optional = len(kinds) < len(get_args(info.annotation))
    kind, choices = _widget(kinds[0])
    unit = str(extra.get("unit") or "")
    only = str(extra.get("only") or "")
    return SettingField(
        name=name,
        title=_title(key, info),
        help=_(info.description) if info.description else "",
        unit=_(unit) if unit else "",
        basic=bool(extra.get("basic")),
        kind=kind,
        limits=_limits(info),
        optional=optional,
        choices=choices,
        default=info.get_default(call_default_factory=True) if not info.is_required() else None,
        only=f"{name.removesuffix(key)}{only}" if only else "",
    )


def _widget(kind: Any) -> tuple[str, list[str]]:
    if kind is bool:
        return "checkbox", []
    if kind is int:
        return "integer", []
    if kind is float:
        return "number", []
    if kind is str:
        return "text", []
    if isinstance(kind, type) and issubclass(kind, Enum):
        return "select", [str(member.value) for member in kind]
    return "json", []


def _limits(info: FieldInfo) -> str:
    low = high = ""
    for limit in info.metadata:
        if isinstance(limit, Ge):
            low = _("at least %(limit)s") % {"limit": shown(limit.ge)}
        elif isinstance(limit, Gt):
            low = _("more than %(limit)s") % {"limit": shown(limit.gt)}
        elif isinstance(limit, Le):
            high = _("at most %(limit)s") % {"limit": shown(limit.le)}
        elif isinstance(limit, Lt):
            high = _("less than %(limit)s") % {"limit": shown(limit.lt)}
    return _("%(low)s, %(high)s") % {"low": low, "high": high} if low and high else low or high
