"""The two forms of a dataset: where its rows come from, and how they are read."""

from __future__ import annotations

import json
from typing import Any

from django import forms
from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from workers.contract.datasets import Reading

Choices = list[tuple[str, str | Promise]]

FILE, PATH, PADDLENLP = "file", "path", "paddlenlp"
DELIMITERS = {"comma": ",", "semicolon": ";", "tab": "\t", "bar": "|"}
DELIMITER_CHOICES: Choices = [
    ("comma", gettext_lazy("comma ,")),
    ("semicolon", gettext_lazy("semicolon ;")),
    ("tab", gettext_lazy("tab")),
    ("bar", gettext_lazy("vertical bar |")),
]
FORMAT_CHOICES: Choices = [("table", gettext_lazy("table (CSV, TSV)")), ("jsonl", gettext_lazy("JSON Lines"))]
ENCODING_CHOICES: Choices = [("utf-8", "UTF-8"), ("gb18030", "GB18030 (GBK, GB2312)")]


class SourceForm(forms.Form):
    """`announced` are files that come later, in parts: [(field, name, bytes)]; without JavaScript they come along."""

    source = forms.ChoiceField(choices=[(FILE, FILE), (PATH, PATH), (PADDLENLP, PADDLENLP)], initial=FILE)
    name = forms.CharField(max_length=100)
    description = forms.CharField(required=False, max_length=2000)
    shared = forms.BooleanField(required=False)
    file = forms.FileField(required=False, allow_empty_file=True, max_length=300)
    dev_file = forms.FileField(required=False, allow_empty_file=True, max_length=300)
    path = forms.CharField(required=False, max_length=1000)
    dev_path = forms.CharField(required=False, max_length=1000)
    paddlenlp = forms.RegexField(r"^[A-Za-z0-9_-]{1,100}$", required=False)
    announced = forms.CharField(required=False, max_length=2000)

    def clean_announced(self) -> list[tuple[str, str, int]]:
        given = self.cleaned_data["announced"]
        try:
            files = [(str(f["field"]), str(f["name"]), int(f["bytes"])) for f in json.loads(given)] if given else []
        except (ValueError, TypeError, KeyError):
            raise forms.ValidationError(_("The list of files makes no sense.")) from None
        if any(field not in ("file", "dev_file") for field, _name, _size in files):
            raise forms.ValidationError(_("The list of files makes no sense."))
        return files

    def files_to_come(self) -> list[tuple[str, str, int]]:
        """(field, name, bytes) of what is announced or came along."""
        cleaned = self.cleaned_data
        if cleaned.get("announced"):
            return list(cleaned["announced"])
        return [(f, cleaned[f].name, cleaned[f].size) for f in ("file", "dev_file") if cleaned.get(f)]

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or {}
        source = cleaned.get("source")
        if source == FILE and not any(field == "file" for field, _name, _size in self.files_to_come()):
            self.add_error("file", _("Choose a file."))
        if source == PATH and not cleaned.get("path"):
            self.add_error("path", _("Name a file."))
        if source == PADDLENLP and not cleaned.get("paddlenlp") and "paddlenlp" not in self.errors:
            self.add_error("paddlenlp", _("Name a dataset."))
        return cleaned


class ReadingForm(forms.Form):
    """`columns` are those that were found; without any, names are typed."""

    format = forms.ChoiceField(choices=FORMAT_CHOICES, label=gettext_lazy("Format"))
    encoding = forms.ChoiceField(choices=ENCODING_CHOICES, label=gettext_lazy("Encoding"))
    delimiter = forms.ChoiceField(choices=DELIMITER_CHOICES, label=gettext_lazy("Delimiter"), required=False)
    header = forms.BooleanField(required=False, label=gettext_lazy("The first row has the names of the columns"))
    quotes = forms.BooleanField(required=False, label=gettext_lazy("Quotation marks enclose fields"))
    text_column = forms.CharField(max_length=100, label=gettext_lazy("Text column"))
    label_column = forms.CharField(max_length=100, label=gettext_lazy("Label column"))
    weight_column = forms.CharField(max_length=100, required=False, label=gettext_lazy("Weight column"))
    split_column = forms.CharField(max_length=100, required=False, label=gettext_lazy("Split column"))
    dev_fraction = forms.FloatField(
        min_value=0.0001, max_value=0.9, label=gettext_lazy("Share for evaluation"), localize=False
    )
    seed = forms.IntegerField(min_value=0, max_value=2**53, label=gettext_lazy("Seed of the split"))
    labels = forms.CharField(required=False, max_length=100_000, label=gettext_lazy("Label set"))
    leave_out = forms.BooleanField(required=False, label=gettext_lazy("Leave out rows with errors"))

    HELP = {
        "text_column": gettext_lazy("What the model reads."),
        "label_column": gettext_lazy("What it is to say."),
        "weight_column": gettext_lazy("A number per row that its loss is multiplied with. Usually none."),
        "split_column": gettext_lazy("Has train, dev or test in each row; test rows are not used."),
        "dev_fraction": gettext_lazy("Of each label, chosen by the seed, if neither a file nor a column says it."),
        "labels": gettext_lazy("One per line. Empty: those of the training rows. Rows with other labels are errors."),
        "leave_out": gettext_lazy("Otherwise one row with an error refuses the dataset."),
    }

    def __init__(self, data: Any = None, *, columns: list[str], reading: Reading) -> None:
        initial = reading.model_dump() | {
            "delimiter": next(name for name, sign in DELIMITERS.items() if sign == reading.delimiter),
            "labels": "\n".join(reading.labels),
        }
        super().__init__(data, initial=initial)
        for name, text in self.HELP.items():
            self.fields[name].help_text = text
        if not columns:
            return
        for name in ("text_column", "label_column", "weight_column", "split_column"):
            needed = self.fields[name].required
            choices: Choices = ([] if needed else [("", gettext_lazy("none"))]) + [
                (column, column) for column in columns
            ]
            self.fields[name] = forms.ChoiceField(
                choices=choices, required=needed, label=self.fields[name].label, help_text=self.fields[name].help_text
            )

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or {}
        if cleaned.get("text_column") and cleaned.get("text_column") == cleaned.get("label_column"):
            self.add_error("label_column", _("The label cannot be in the column of the text."))
        return cleaned

    def reading(self) -> Reading:
        values = {name: value for name, value in self.cleaned_data.items() if name in Reading.model_fields}
        values["delimiter"] = DELIMITERS[values.get("delimiter") or "comma"]
        values["labels"] = list(dict.fromkeys(filter(None, map(str.strip, values["labels"].splitlines()))))
        return Reading(**values)


def how_read(data: Any, before: Reading) -> Reading:
    """Of what was typed only what decides how rows and columns come about, for the preview."""
    return before.model_copy(
        update={
            "format": data.get("format") if data.get("format") in ("table", "jsonl") else before.format,
            "encoding": data.get("encoding") if data.get("encoding") in ("utf-8", "gb18030") else before.encoding,
            "delimiter": DELIMITERS.get(data.get("delimiter", ""), before.delimiter),
            "header": bool(data.get("header")),
            "quotes": bool(data.get("quotes")),
        }
    )
