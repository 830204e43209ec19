"""Brings the message catalogues in locale/ up to date with every text of the web side.

Done with Babel instead of makemessages for two reasons: gettext's own tools need not be installed, and texts that
no extractor of source code can see come along: titles and help of settings, sentences of end reasons, stages.
"""

from __future__ import annotations

import ast
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from babel.messages.catalog import Catalog, Message
from babel.messages.extract import extract_python
from babel.messages.pofile import read_po, write_po
from django.conf import settings
from django.contrib import admin
from django.core.management.base import BaseCommand
from django.utils import translation
from django.utils.translation.template import templatize

from jobs.forms import SettingsForm
from workers.contract.states import EndReason
from workers.recipes.registry import RECIPES

ROOT = settings.BASE_DIR
LOCALES = ("zh_Hans",)
# Without dates and names, so that nothing changes when no text changed.
HEADER = """msgid ""
msgstr ""
"Project-Id-Version: Evenkeel\\n"
"Language: {locale}\\n"
"Plural-Forms: nplurals=1; plural=0;\\n"
"MIME-Version: 1.0\\n"
"Content-Type: text/plain; charset=utf-8\\n"
"Content-Transfer-Encoding: 8bit\\n"

"""
# Where it stands, what it says, and in which sense if the same word has several. A pair has a plural.
Text = tuple[str, str | tuple[str, str]] | tuple[str, str, str]

_ONE = {"_", "gettext", "gettext_lazy", "gettext_noop", "Misfit", "Text", "Unreadable"}
_PLURAL = {"ngettext", "ngettext_lazy"}
# What hosts say in English and the web side looks up: the first argument of these in workers/.
_SAID_BY_HOSTS = {
    "stage", "write_progress", "problem", "_problem", "refusal", "Unreadable", "found_error", "found_warning", "found_note", "Failed",
}  # fmt: skip


class Command(BaseCommand):
    help = "Extracts all texts into locale/; what is new is left empty, what is gone is removed."

    def handle(self, *args: Any, **options: Any) -> None:
        found = extracted()
        for locale in LOCALES:
            path = catalogue_path(locale)
            catalogue = read(locale)
            catalogue.update(found, no_fuzzy_matching=True)
            path.parent.mkdir(parents=True, exist_ok=True)
            written = io.BytesIO()
            write_po(
                written,
                catalogue,
                width=110,
                omit_header=True,
                ignore_obsolete=True,
                sort_by_file=True,
                include_lineno=False,
            )
            path.write_bytes(HEADER.format(locale=locale).encode() + written.getvalue())
            missing = [message.id for message in catalogue if message.id and not translated(message)]
            self.stdout.write(f"{path.relative_to(ROOT)}: {len(catalogue)} texts, {len(missing)} without translation")
            for text in missing:
                self.stdout.write(f"  {text!r}")


def catalogue_path(locale: str) -> Path:
    path: Path = ROOT / "locale" / locale / "LC_MESSAGES" / "django.po"
    return path


def read(locale: str) -> Catalog:
    path = catalogue_path(locale)
    if not path.exists():
        return Catalog(locale=locale, project="Evenkeel", fuzzy=False)
    return read_po(io.BytesIO(path.read_bytes()), locale=locale)


def translated(message: Message) -> bool:
    strings = [message.string] if isinstance(message.string, str) else message.string or []
    return bool(strings) and all(strings) and not message.fuzzy


def extracted() -> Catalog:
    catalogue = Catalog(project="Evenkeel")
    for where, text, *sense in texts():
        catalogue.add(text, locations=[(where, 0)], context=sense[0] if sense else None)
    return catalogue


def texts() -> Iterator[Text]:
    """Every text, in a stable order, so that the files in locale/ change only with the texts."""
    for folder in ("webapp", "jobs"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield from _of_python(path, _ONE)
    for path in sorted((ROOT / "templates").rglob("*.html")):
        yield from _of_template(path)
    for path in sorted((ROOT / "workers").rglob("*.py")):
        yield from _of_python(path, {"Misfit", "Finding", "Text"} | _SAID_BY_HOSTS)
    yield from _declared()


def _of_python(path: Path, names: set[str]) -> Iterator[Text]:
    where = str(path.relative_to(ROOT))
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        match [arg.value if isinstance(arg, ast.Constant) else None for arg in node.args]:
            case [str(text), *_] if text and name in names:
                yield where, text
            case [str(one), str(many), *_] if name in _PLURAL:
                yield where, (one, many)


def _of_template(path: Path) -> Iterator[Text]:
    where = str(path.relative_to(ROOT))
    # The rest of the template is blanked out by Django; without its indentation what is left reads as Python.
    source = "\n".join(line.strip() for line in templatize(path.read_text("utf-8")).splitlines())
    keywords: dict[str, Any] = {"_": None, "gettext": None, "ngettext": (1, 2), "pgettext": (1, 2)}
    for _line, function, found, _comments in extract_python(io.BytesIO(source.encode()), keywords, [], {}):
        if function == "ngettext" and not isinstance(found, str):
            yield where, (str(found[0]), str(found[1]))
        elif function == "pgettext" and not isinstance(found, str):
            yield where, str(found[1]), str(found[0])
        elif text := found if isinstance(found, str) else found[0]:
            yield where, text


def _declared() -> Iterator[Text]:
    """Texts that are declared as data, where nothing of Django is known."""
    for reason in EndReason:
        yield "workers/contract/states.py", reason.sentence
    # In English the admin and the form say what they look up.
    with translation.override("en"):
        for options in sorted((m._meta for m in admin.site._registry), key=str):
            if options.app_label == "jobs":
                names = [options.verbose_name, options.verbose_name_plural, *(f.verbose_name for f in options.fields)]
                yield from (("jobs/models.py", str(name)) for name in names)
        for recipe in RECIPES.values():
            if not recipe.settings.__module__.startswith("workers."):
                continue  # of a recipe that was added from elsewhere
            where = recipe.settings.__module__.replace(".", "/") + ".py"
            yield where, recipe.title
            yield from ((where, field.title) for field in (recipe.trial.fields if recipe.trial else ()))
            for preset in recipe.presets:
                yield from ((where, preset.title), (where, preset.help))
            for group in SettingsForm(recipe).groups:
                yield from ((where, text) for text in (group.title, group.help) if text)
                for field in group.fields:
                    yield from ((where, text) for text in (field.title, field.help, field.unit) if text)
