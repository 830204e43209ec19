"""The two forms of a dataset: where its rows come from, and how they are read."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, ClassVar

from django import forms
from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from jobs.models import Dataset
from workers.contract.datasets import PICTURE_KINDS, WEIGHT, Kind, Reading, SequenceReading, TagReading
from workers.contract.fields import CONTROL
from workers.datasets import places

if TYPE_CHECKING:
    from django.utils.functional import _StrPromise

Choices = list[tuple[str, str | Promise]]

FILE, PATH, PADDLENLP = "file", "path", "paddlenlp"
# Of pictures also a label file beside the archive.
FILE_FIELDS = ("file", "dev_file", "label_file")
DELIMITERS = {"comma": ",", "semicolon": ";", "tab": "\t", "bar": "|", "space": " "}
DELIMITER_CHOICES: Choices = [
    ("comma", gettext_lazy("comma ,")),
    ("semicolon", gettext_lazy("semicolon ;")),
    ("tab", gettext_lazy("tab")),
    ("bar", gettext_lazy("vertical bar |")),
    ("space", gettext_lazy("blank")),
]
# Between the columns of CoNLL.
SEPARATOR_CHOICES: Choices = [("space", gettext_lazy("blanks")), ("tab", gettext_lazy("tab"))]
FORMAT_CHOICES: Choices = [("table", gettext_lazy("table (CSV, TSV)")), ("jsonl", gettext_lazy("JSON Lines"))]
CONLL_CHOICE: Choices = [("conll", gettext_lazy("CoNLL (a token in a line)"))]
ENCODING_CHOICES: Choices = [("utf-8", "UTF-8"), ("gb18030", "GB18030 (GBK, GB2312)")]


class SourceForm(forms.Form):
    """`announced` are files that come later, in parts: [(field, name, bytes)]; without JavaScript they come along."""

    source = forms.ChoiceField(choices=[(FILE, FILE), (PATH, PATH), (PADDLENLP, PADDLENLP)], initial=FILE)
    name = forms.CharField(max_length=100)
    description = forms.CharField(required=False, max_length=2000)
    shared = forms.BooleanField(required=False)
    file = forms.FileField(required=False, allow_empty_file=True, max_length=300)
    dev_file = forms.FileField(required=False, allow_empty_file=True, max_length=300)
    label_file = forms.FileField(required=False, allow_empty_file=True, max_length=300)
    path = forms.CharField(required=False, max_length=1000)
    dev_path = forms.CharField(required=False, max_length=1000)
    label_path = forms.CharField(required=False, max_length=1000)
    paddlenlp = forms.RegexField(r"^[A-Za-z0-9_-]{1,100}$", required=False)
    announced = forms.CharField(required=False, max_length=2000)

    def clean_name(self) -> str:
        name: str = self.cleaned_data["name"]
        if CONTROL.search(name):
            raise forms.ValidationError(_("Must not contain control characters."))
        return name

    def clean_announced(self) -> list[tuple[str, str, int]]:
        given = self.cleaned_data["announced"]
        try:
            files = [(str(f["field"]), str(f["name"]), int(f["bytes"])) for f in json.loads(given)] if given else []
        except (ValueError, TypeError, KeyError):
            raise forms.ValidationError(_("The list of files makes no sense.")) from None
        if any(field not in FILE_FIELDS for field, _name, _size in files):
            raise forms.ValidationError(_("The list of files makes no sense."))
        return files

    def files_to_come(self) -> list[tuple[str, str, int]]:
        """(field, name, bytes) of what is announced or came along."""
        cleaned = self.cleaned_data
        if cleaned.get("announced"):
            return list(cleaned["announced"])
        return [(f, cleaned[f].name, cleaned[f].size) for f in FILE_FIELDS if cleaned.get(f)]

    def split_of_label_file(self) -> str:
        """Beside another label file, of evaluation, it is the one of training."""
        given = self.cleaned_data
        dev = given.get("dev_path") or ""
        if given.get("source") == FILE:
            dev = next((name for field, name, _size in self.files_to_come() if field == "dev_file"), "")
        return "train" if dev.lower().endswith((".txt", ".tsv", ".csv")) else ""

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or {}
        source = cleaned.get("source")
        if source == FILE and not any(field == "file" for field, _name, _size in self.files_to_come()):
            self.add_error("file", _("Choose a file."))
        if source == FILE:
            names = {field: name for field, name, _size in self.files_to_come()}
            if "label_file" in names and not places.is_archive(names.get("file", "")):
                self.add_error("label_file", _("A label file needs an archive of pictures."))
        if source == PATH and cleaned.get("label_path") and places.is_rows(cleaned.get("path") or ""):
            self.add_error("label_path", _("A label file needs an archive of pictures."))
        if source == PATH and not cleaned.get("path"):
            self.add_error("path", _("Name a file."))
        if source == PADDLENLP and not cleaned.get("paddlenlp") and "paddlenlp" not in self.errors:
            self.add_error("paddlenlp", _("Name a dataset."))
        return cleaned


class SplitForm(forms.Form):
    """What is asked of every dataset, whatever it is made of: the split, the labels, and what becomes of rows with errors."""

    dev_fraction = forms.FloatField(
        min_value=0.0001,
        max_value=0.9,
        label=gettext_lazy("Share for evaluation"),
        localize=False,
    )
    seed = forms.IntegerField(min_value=0, max_value=2**53, label=gettext_lazy("Seed of the split"))
    labels = forms.CharField(
        required=False,
        max_length=100_000,
        label=gettext_lazy("Label set"),
        help_text=gettext_lazy("One per line. Empty: those of the training rows. Rows with other labels are errors."),
    )
    leave_out = forms.BooleanField(
        required=False,
        label=gettext_lazy("Leave out rows with errors"),
        help_text=gettext_lazy("Otherwise one row with an error refuses the dataset."),
    )

    def label_set(self) -> list[str]:
        """As typed, each once."""
        return list(dict.fromkeys(filter(None, map(str.strip, self.cleaned_data["labels"].splitlines()))))


class _DescriptionForm(SplitForm):
    """How files are read, whatever they are made of. `columns` are those that were found; without any, names are typed."""

    # Another choice is another form. Pictures come in archives, and have forms of their own.
    kind = forms.ChoiceField(
        choices=[(kind, title) for kind, title in Dataset.Kind.choices if kind not in PICTURE_KINDS],
        required=False,
        label=gettext_lazy("What the rows are"),
    )
    format = forms.ChoiceField(choices=FORMAT_CHOICES, label=gettext_lazy("Format"))
    encoding = forms.ChoiceField(choices=ENCODING_CHOICES, label=gettext_lazy("Encoding"))
    delimiter = forms.ChoiceField(choices=DELIMITER_CHOICES, label=gettext_lazy("Delimiter"), required=False)
    header = forms.BooleanField(required=False, label=gettext_lazy("The first row has the names of the columns"))
    quotes = forms.BooleanField(required=False, label=gettext_lazy("Quotation marks enclose fields"))
    split_column = forms.CharField(
        max_length=100,
        required=False,
        label=gettext_lazy("Split column"),
        help_text=gettext_lazy("Has train, dev or test in each row; test rows are not used."),
    )

    KIND: ClassVar[Kind]
    # Fields that name one column, and what the table of the first rows calls it.
    COLUMNS: ClassVar[dict[str, str | Promise]]
    # What the share for evaluation is of.
    SHARE_OF: ClassVar[_StrPromise]

    def __init__(self, data: Any = None, *, columns: list[str], reading: Reading) -> None:
        if data is not None:
            data = data.copy()
            if data.get("format") == "conll" and self.KIND != "tokens":
                data["format"] = "table"  # another kind was chosen a moment ago
            if columns:
                self.choose_columns(data, columns)
        super().__init__(data, initial=self.initial_of(reading))
        self.fields["dev_fraction"].help_text = self.SHARE_OF
        for name in self.COLUMNS if columns else ():
            field = self.fields[name]
            choices: Choices = [] if field.required else [("", gettext_lazy("none"))]
            choices += [(column, column) for column in self.offered(name, columns)]
            self.fields[name] = forms.ChoiceField(
                choices=choices, required=field.required, label=field.label, help_text=field.help_text
            )

    def initial_of(self, reading: Reading) -> dict[str, Any]:
        return reading.model_dump() | {
            "kind": self.KIND,
            "delimiter": next(name for name, sign in DELIMITERS.items() if sign == reading.delimiter),
            "labels": "\n".join(reading.labels),
        }

    def offered(self, name: str, columns: list[str]) -> list[str]:
        """Columns that the field of this name can be."""
        return columns

    def choose_columns(self, data: Any, columns: list[str]) -> None:
        """Another delimiter or heading gives other columns: those that are gone are no longer chosen."""
        for name in self.COLUMNS:
            if data.get(name) not in columns:
                data[name] = ""

    def chosen(self) -> dict[str, str | Promise]:
        """Column -> what it is."""
        return {self[name].value(): title for name, title in self.COLUMNS.items() if self[name].value()}

    def reading(self) -> Reading:
        values = {name: value for name, value in self.cleaned_data.items() if name in Reading.model_fields}
        values["delimiter"] = DELIMITERS[values.get("delimiter") or "comma"]
        values["labels"] = self.label_set()
        return Reading(**values | {"kind": self.KIND})


def _weight_column() -> forms.CharField:
    return forms.CharField(
        max_length=100,
        required=False,
        label=gettext_lazy("Weight column"),
        help_text=gettext_lazy("A number per row that its loss is multiplied with. Usually none."),
    )


class TextsForm(_DescriptionForm):
    text_column = forms.CharField(
        max_length=100, label=gettext_lazy("Text column"), help_text=gettext_lazy("What the model reads.")
    )
    label_column = forms.CharField(
        max_length=100, label=gettext_lazy("Label column"), help_text=gettext_lazy("What it is to say.")
    )
    text_b_column = forms.CharField(
        max_length=100,
        required=False,
        label=gettext_lazy("Second text column"),
        help_text=gettext_lazy("Of pairs of texts, such as two questions. Usually none."),
    )
    weight_column = _weight_column()
    template = "datasets/describe_texts.html"
    KIND: ClassVar[Kind] = "texts"
    SHARE_OF = gettext_lazy("Of each label, chosen by the seed, if neither a file nor a column says it.")
    COLUMNS = {
        "text_column": gettext_lazy("text"),
        "text_b_column": gettext_lazy("second text"),
        "label_column": gettext_lazy("label"),
        "split_column": gettext_lazy("split"),
        "weight_column": gettext_lazy("weight"),
    }

    def choose_columns(self, data: Any, columns: list[str]) -> None:
        """Text and label are needed: if they are gone they are chosen anew, in order."""
        left = [column for column in columns if column not in (data.get("text_column"), data.get("label_column"))]
        for name in ("text_column", "label_column"):
            if data.get(name) not in columns:
                data[name] = left.pop(0) if left else columns[0]
        super().choose_columns(data, columns)

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or {}
        if cleaned.get("text_column") and cleaned.get("text_column") == cleaned.get("label_column"):
            self.add_error("label_column", _("The label cannot be in the column of the text."))
        second = cleaned.get("text_b_column")
        if second and second in (cleaned.get("text_column"), cleaned.get("label_column")):
            self.add_error("text_b_column", _("The second text needs a column of its own."))
        return cleaned


class NumbersForm(TextsForm):
    label_column = forms.CharField(
        max_length=100,
        label=gettext_lazy("Number column"),
        help_text=gettext_lazy("What the model is to say of a text."),
    )
    template = "datasets/describe_numbers.html"
    KIND: ClassVar[Kind] = "numbers"
    SHARE_OF = gettext_lazy("Of all rows, chosen by the seed, if neither a file nor a column says it.")
    COLUMNS = {
        "text_column": gettext_lazy("text"),
        "text_b_column": gettext_lazy("second text"),
        "label_column": gettext_lazy("number"),
        "split_column": gettext_lazy("split"),
        "weight_column": gettext_lazy("weight"),
    }


class SequencesForm(_DescriptionForm):
    layout = forms.ChoiceField(
        label=gettext_lazy("A row is"),
        choices=[
            ("steps", gettext_lazy("a time step")),
            ("columns", gettext_lazy("a sequence, in columns")),
            ("lists", gettext_lazy("a sequence, in lists")),
        ],
        help_text=gettext_lazy(
            "A time step, and a column says of which sequence; or a whole sequence, whose time steps are columns, or stand "
            "as a JSON list in a column per feature."
        ),
    )
    id_column = forms.CharField(
        max_length=100,
        required=False,
        label=gettext_lazy("Sequence column"),
        help_text=gettext_lazy(
            "Names the sequence that a row belongs to. A sequence is never divided between the splits."
        ),
    )
    window = forms.IntegerField(
        min_value=0,
        max_value=10_000,
        required=False,
        label=gettext_lazy("Window"),
        help_text=gettext_lazy(
            "Time steps. Cuts long sequences into windows, or all rows if no column says of which sequence they are; empty or 0: not."
        ),
    )
    stride = forms.IntegerField(
        min_value=0,
        max_value=10_000,
        required=False,
        label=gettext_lazy("Stride"),
        help_text=gettext_lazy(
            "Time steps from one window to the next; empty or 0: its length. The end of the time is for evaluation."
        ),
    )
    order_column = forms.CharField(
        max_length=100,
        required=False,
        label=gettext_lazy("Order column"),
        help_text=gettext_lazy("A number or a time. None: time steps are in the order of the rows."),
    )
    features = forms.CharField(
        max_length=20_000,
        label=gettext_lazy("Features"),
        help_text=gettext_lazy("Columns of numbers, with commas between; x1..x40 means all columns from x1 to x40."),
    )
    target = forms.ChoiceField(
        label=gettext_lazy("What belongs to a sequence"),
        choices=[
            ("number", gettext_lazy("a number")),
            ("label", gettext_lazy("a label")),
            ("none", gettext_lazy("nothing")),
        ],
        help_text=gettext_lazy("What a model is to say. With nothing it can still predict next values."),
    )
    target_column = forms.CharField(
        max_length=100,
        required=False,
        label=gettext_lazy("Target column"),
        help_text=gettext_lazy("Has that number or label, the same in all rows of a sequence, or blank in some."),
    )
    weight_column = forms.CharField(
        max_length=100,
        required=False,
        label=gettext_lazy("Weight column"),
        help_text=gettext_lazy(
            "A number per sequence that its loss is multiplied with, the same in all its rows, or blank in some. Usually none."
        ),
    )
    template = "datasets/describe_sequences.html"
    KIND = "sequences"
    SHARE_OF = gettext_lazy(
        "Of the sequences, or of those of each label, chosen by the seed, if neither a file nor a column says it; of windows "
        "the last in time."
    )
    COLUMNS = {
        "id_column": gettext_lazy("sequence"),
        "order_column": gettext_lazy("order"),
        "target_column": gettext_lazy("target"),
        "split_column": gettext_lazy("split"),
        "weight_column": gettext_lazy("weight"),
    }

    def __init__(self, data: Any = None, *, columns: list[str], reading: Reading) -> None:
        self.columns = columns
        super().__init__(data, columns=columns, reading=reading)

    def initial_of(self, reading: Reading) -> dict[str, Any]:
        how = reading.sequences
        return super().initial_of(reading) | how.model_dump() | {"features": _in_short(how.features, self.columns)}

    def chosen(self) -> dict[str, str | Promise]:
        features = _in_full(self["features"].value() or "", self.columns)
        return {name: gettext_lazy("feature") for name in features} | super().chosen()

    def clean_features(self) -> list[str]:
        features = _in_full(self.cleaned_data["features"], self.columns)
        missing = [name for name in features if self.columns and name not in self.columns]
        if missing:
            raise forms.ValidationError(
                _("There is no column “%(name)s”; there are: %(known)s.")
                % {"name": missing[0][:100], "known": ", ".join(self.columns[:50])}
            )
        if any(len(name) > 100 for name in features) or len(features) > 1000:
            raise forms.ValidationError(_("At most 1000 columns, with names of at most 100 characters."))
        return features

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or {}
        window = cleaned["window"] = cleaned.get("window") or 0
        cleaned["stride"] = cleaned.get("stride") or 0
        if cleaned.get("layout") == "steps" and window == 1:
            self.add_error("window", _("A window needs two time steps at least."))
        if cleaned.get("layout") == "steps" and window and cleaned.get("target") != "none":
            self.add_error("target", _("Windows have no target of their own: a model can predict their next values."))
        if cleaned.get("layout") == "steps" and not cleaned.get("id_column") and not window:
            self.add_error("id_column", _("Where a row is a time step, a column must say of which sequence it is."))
        if cleaned.get("target") in ("number", "label") and not cleaned.get("target_column"):
            self.add_error("target_column", _("Choose the column that has it."))
        for name in ("id_column", "target_column", "split_column", "weight_column"):
            used = name != "target_column" or cleaned.get("target") != "none"
            if used and cleaned.get(name) and cleaned[name] in (cleaned.get("features") or []):
                self.add_error(
                    "features", _("“%(name)s” cannot be a feature: it is chosen otherwise.") % {"name": cleaned[name]}
                )
        return cleaned

    def reading(self) -> Reading:
        given = {name: value for name, value in self.cleaned_data.items() if name in SequenceReading.model_fields}
        if given["layout"] != "steps":
            given |= {"order_column": "", "window": 0, "stride": 0}
        if given["target"] == "none":
            given["target_column"] = ""
        return super().reading().model_copy(update={"sequences": SequenceReading(**given)})


class TokensForm(_DescriptionForm):
    format = forms.ChoiceField(choices=[*FORMAT_CHOICES, *CONLL_CHOICE], label=gettext_lazy("Format"))
    rows_have = forms.ChoiceField(
        label=gettext_lazy("A row has"),
        choices=[
            ("lists", gettext_lazy("a list of tokens and a list of tags")),
            ("spans", gettext_lazy("a text and a list of entities")),
        ],
        help_text=gettext_lazy("An entity has “start”, “end” (one after its last character) and “label”."),
    )
    scheme = forms.ChoiceField(
        label=gettext_lazy("Scheme of the tags"),
        choices=[
            ("bio", "BIO: B-PER I-PER O"),
            ("bioes", "BIOES, BILOU: B-PER I-PER E-PER S-PER O"),
            ("none", gettext_lazy("none: tags as they are, such as parts of speech")),
        ],
        help_text=gettext_lazy("With a scheme entities are measured, without one single tokens."),
    )
    tokens_column = forms.CharField(
        max_length=100,
        label=gettext_lazy("Column of the tokens"),
        help_text=gettext_lazy("Or of the text, where entities are given by their places."),
    )
    tags_column = forms.CharField(
        max_length=100,
        label=gettext_lazy("Column of the tags"),
        help_text=gettext_lazy("Or of the entities. Numbers are those of the label set."),
    )
    weight_column = _weight_column()
    has_weights = True  # or not even a place for them
    template = "datasets/describe_tokens.html"
    KIND = "tokens"
    SHARE_OF = gettext_lazy(
        "Of the rows with entities and of those without, chosen by the seed, if neither a file nor a column says it."
    )
    COLUMNS = {
        "tokens_column": gettext_lazy("tokens"),
        "tags_column": gettext_lazy("tags"),
        "split_column": gettext_lazy("split"),
        "weight_column": gettext_lazy("weight"),
    }

    def __init__(self, data: Any = None, *, columns: list[str], reading: Reading) -> None:
        if data is not None and data.get("format") == "conll" and data.get("delimiter") not in dict(SEPARATOR_CHOICES):
            data = data.copy()
            data["delimiter"] = "space"
        super().__init__(data, columns=columns, reading=reading)
        self.fields["labels"].label = gettext_lazy("Set of tags")
        self.fields["labels"].help_text = gettext_lazy(
            "One per line; where tags are given as numbers, in their order. Empty: those of the training rows. Rows with other tags are errors."
        )
        if self["format"].value() == "conll":
            self.fields["delimiter"] = forms.ChoiceField(
                choices=SEPARATOR_CHOICES, label=gettext_lazy("Between columns"), required=False
            )
            self.has_weights = WEIGHT in columns

    def initial_of(self, reading: Reading) -> dict[str, Any]:
        how = reading.tagging
        return super().initial_of(reading) | how.model_dump() | {"rows_have": how.layout}

    def offered(self, name: str, columns: list[str]) -> list[str]:
        """Of CoNLL a column has something for each token, and the weight of a sentence stands in a comment before it."""
        if self["format"].value() != "conll":
            return columns
        return [column for column in columns if (column == WEIGHT) == (name == "weight_column")]

    def choose_columns(self, data: Any, columns: list[str]) -> None:
        """Both are needed: if they are gone, the first has the tokens and the last the tags."""
        named = [column for column in columns if column != WEIGHT or data.get("format") != "conll"]
        for name, other in (("tokens_column", named[0]), ("tags_column", named[-1])):
            if data.get(name) not in named:
                data[name] = other
        if data.get("format") == "conll" and data.get("weight_column") != WEIGHT:
            data["weight_column"] = ""
        super().choose_columns(data, columns)

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or {}
        if cleaned.get("tokens_column") and cleaned.get("tokens_column") == cleaned.get("tags_column"):
            self.add_error("tags_column", _("The tags cannot be in the column of the tokens."))
        if cleaned.get("format") == "conll":
            cleaned["rows_have"] = "lists"
        return cleaned

    def reading(self) -> Reading:
        given = self.cleaned_data
        how = TagReading(
            layout=given["rows_have"],
            scheme=given["scheme"],
            tokens_column=given["tokens_column"],
            tags_column=given["tags_column"],
        )
        return super().reading().model_copy(update={"tagging": how})


FORMS: dict[str, type[TextsForm] | type[SequencesForm] | type[TokensForm]] = {
    form.KIND: form for form in (TextsForm, NumbersForm, SequencesForm, TokensForm)
}


def _in_full(typed: str, columns: list[str]) -> list[str]:
    """“a, x1..x3” as a, x1, x2, x3: by the order of the columns."""
    names: list[str] = []
    for part in filter(None, map(str.strip, typed.split(","))):
        first, dots, last = (piece.strip() for piece in part.partition(".."))
        if dots and part not in columns and first in columns and last in columns:
            names += columns[columns.index(first) : columns.index(last) + 1]
        else:
            names.append(part)
    return list(dict.fromkeys(names))


def _in_short(names: list[str], columns: list[str]) -> str:
    if len(names) > 3 and names[0] in columns:
        at = columns.index(names[0])
        if columns[at : at + len(names)] == names:
            return f"{names[0]}..{names[-1]}"
    return ", ".join(names)


def how_read(data: Any, before: Reading) -> Reading:
    """Of what was typed only what decides how rows and columns come about, for the preview."""
    kind = data.get("kind") if data.get("kind") in FORMS else before.kind
    formats = ("table", "jsonl", "conll") if kind == "tokens" else ("table", "jsonl")
    known = before.format if before.format in formats else formats[0]
    return before.model_copy(
        update={
            "format": data.get("format") if data.get("format") in formats else known,
            "encoding": data.get("encoding") if data.get("encoding") in ("utf-8", "gb18030") else before.encoding,
            "delimiter": DELIMITERS.get(data.get("delimiter", ""), before.delimiter),
            "header": bool(data.get("header")),
            "quotes": bool(data.get("quotes")),
            "kind": kind,
        }
    )
