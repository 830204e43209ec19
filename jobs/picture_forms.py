"""The form that says how pictures and what belongs to them are found in an archive or a folder."""

from __future__ import annotations

from typing import Any

from django import forms
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from jobs.dataset_forms import SplitForm
from workers.contract.datasets import ImageReading, Kind, ListFile, Reading

MOST_LISTS = 20
_NOT_READ = "not"


class PicturesForm(SplitForm):
    """`lists` are the label files that were found, `texts` the other text files."""

    # Another choice is another form.
    kind = forms.ChoiceField(
        choices=[
            ("images", gettext_lazy("a label")),
            ("lines", gettext_lazy("the text it shows")),
        ],
        label=gettext_lazy("What belongs to a picture"),
    )
    layout = forms.ChoiceField(
        choices=[
            ("folders", gettext_lazy("the name of its folder")),
            ("lists", gettext_lazy("what a label file says")),
        ],
        required=False,
        label=gettext_lazy("Its label is"),
        help_text=gettext_lazy(
            "Folders may lie below train, val or dev, and test; test is not used. A line of a label file has the path of a "
            "picture, a tab, a comma or a space, and the label."
        ),
    )
    label_names = forms.ChoiceField(
        required=False,
        label=gettext_lazy("Names of the labels"),
        help_text=gettext_lazy("A file with “0 cat” in a line, or a name in each, if label files have numbers."),
    )
    weights = forms.BooleanField(
        required=False,
        label=gettext_lazy("Label files have weights"),
        help_text=gettext_lazy(
            "A number per line, behind label or text and one more tab or comma. A job multiplies the loss with it if “weight” is its "
            "weight column."
        ),
    )
    leave_out = forms.BooleanField(
        required=False,
        label=gettext_lazy("Leave out pictures and lines with errors"),
        help_text=gettext_lazy("Otherwise one with an error refuses the dataset."),
    )

    def __init__(self, data: Any = None, *, lists: list[str], texts: list[str], reading: Reading) -> None:
        how = reading.images
        initial = reading.model_dump() | {"labels": "\n".join(reading.labels)} | how.model_dump()
        self.lists = lists[:MOST_LISTS]
        chosen = {one.name: one.split for one in how.lists}
        splits = [chosen.get(name, _NOT_READ if chosen else "") for name in self.lists]
        if data is not None:
            # What the form before did not ask for, as another kind or layout was chosen a moment ago.
            data = data.copy()
            if how.weights and "list_0" not in data:
                data["weights"] = "on"
            for name, value in (("layout", how.layout), *((f"list_{i}", split) for i, split in enumerate(splits))):
                data.setdefault(name, value)
        super().__init__(data, initial=initial)
        self.fields["dev_fraction"].help_text = (
            gettext_lazy("Of all lines, chosen by the seed, if nothing says it.")
            if self["kind"].value() == "lines"
            else gettext_lazy("Of each label, chosen by the seed, if nothing says it.")
        )
        self.fields["label_names"].choices = [("", gettext_lazy("none")), *((name, name) for name in texts)]  # type: ignore[attr-defined]
        for i, name in enumerate(self.lists):
            self.fields[f"list_{i}"] = forms.ChoiceField(
                choices=[
                    ("train", gettext_lazy("for training")),
                    ("dev", gettext_lazy("for evaluation")),
                    ("", gettext_lazy("for both: a share is set apart")),
                    ("out", gettext_lazy("a test set, not used")),
                    (_NOT_READ, gettext_lazy("not read")),
                ],
                required=False,
                label=name,
                initial=splits[i],
            )

    @property
    def list_fields(self) -> list[forms.BoundField]:
        return [self[f"list_{i}"] for i in range(len(self.lists))]

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or {}
        if cleaned.get("kind") == "lines":
            cleaned["layout"] = "lists"
        if cleaned.get("layout") == "lists" and self.lists and not self._chosen(cleaned):
            self.add_error("list_0", _("One label file at least must be read."))
        return cleaned

    def _chosen(self, given: dict[str, Any]) -> list[ListFile]:
        splits = {name: given.get(f"list_{i}", "") for i, name in enumerate(self.lists)}
        return [ListFile(name=name, split=split) for name, split in splits.items() if split != _NOT_READ]

    def reading(self) -> Reading:
        given = self.cleaned_data
        lists = given["layout"] == "lists"
        return Reading(
            kind=given["kind"],
            dev_fraction=given["dev_fraction"],
            seed=given["seed"],
            labels=self.label_set() if given["kind"] == "images" else [],
            leave_out=given["leave_out"],
            images=ImageReading(
                layout=given["layout"] or "folders",
                lists=self._chosen(given) if lists else [],
                weights=given["weights"] and lists,
                label_names=given["label_names"] if lists and given["kind"] == "images" else "",
            ),
        )


def kind_of(data: Any, before: Reading) -> Kind:
    """What was chosen a moment ago."""
    chosen: Any = data.get("kind")
    return chosen if chosen in ("images", "lines") else before.kind
