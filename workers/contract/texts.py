"""What hosts say to people: English everywhere, and enough beside it that the web side can say it in another language.

A `Text` is a plain string with its English; logs, terminals and old readers need nothing else. `said` is how it came
about: a list of parts, each a word that is nobody's language (a name, an exception) or {"template", "values"}, of which
the template is looked up in the catalogue. A value may be such a list itself.
"""

from __future__ import annotations

from typing import Any

Said = list[Any]


class Text(str):
    """`Text("At step %(step)d …", step=3)`. The template comes first, so that the extraction of texts finds it."""

    said: Said

    def __new__(cls, template: str, /, **values: Any) -> Text:
        kept = {name: value.said if isinstance(value, Text) else value for name, value in values.items()}
        return cls.of(template % values, [{"template": template, "values": kept}])

    @classmethod
    def of(cls, english: str, said: Said) -> Text:
        text = super().__new__(cls, english)
        text.said = said
        return text

    @classmethod
    def joined(cls, *texts: str) -> Text:
        """One after the other, as sentences; empty ones are left out."""
        texts = tuple(text for text in texts if text)
        return cls.of(" ".join(texts), [part for text in texts for part in said_of(text)])


def clause(words: str) -> str:
    """Words of an error, to end a sentence of ours with: without a full stop of their own."""
    cut = words.strip().rstrip(".")
    return words if cut == words else cut


def said_of(text: str) -> Said:
    """The parts of a text; a plain string is one that is shown as it is."""
    if isinstance(text, Text):
        return text.said
    return [str(text)] if text else []


def spoken(fields: dict[str, Any]) -> dict[str, Any]:
    """A line that is sent: beside a Text there are its parts, as “said”. A line has one Text at most."""
    said = next((value.said for value in fields.values() if isinstance(value, Text)), None)
    return fields if said is None else {**fields, "said": said}
