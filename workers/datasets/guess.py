"""Whether the first rows of a file look like numeric sequences or tagged tokens, and how they would be read."""

from __future__ import annotations

import re
from typing import Any

from workers.contract.datasets import WEIGHT, SequenceReading, TagReading
from workers.datasets import tagging
from workers.datasets.parsing import TEXT_NAMES, Look, from_json

ID_NAMES = (
    "sequence_id",
    "sequence",
    "seq_id",
    "seq",
    "series_id",
    "series",
    "id",
    "uid",
    "user_id",
    "账户",
    "序列",
    "编号",
)
ORDER_NAMES = ("step", "time", "timestamp", "datetime", "date", "t", "order", "index", "时间", "日期", "序号")
TARGET_NAMES = ("target", "y", "label", "class", "category", "目标", "标签", "类别")
TOKEN_NAMES = ("tokens", "words", "chars", "characters", "词", "字")
TAG_NAMES = ("tags", "ner_tags", "bio_tags", "labels", "ner", "pos_tags", "pos", "标签", "标注")
ENTITY_NAMES = ("entities", "spans", "label", "实体")
_SPLIT_NAMES = ("split", "set", "partition", "数据集", "划分")
# Of a single long sequence, for a start.
WINDOW = 40
# So many columns of numbers in a row are the time steps of one feature.
FEWEST_STEPS = 8


def sequences(look: Look, *, asked: bool = False) -> SequenceReading | None:
    """None if there is a column of texts, or nothing that could be a sequence. `asked`: it is said that they are sequences,
    so that a name that is not known keeps nobody from guessing."""
    names = {column.lower(): column for column in look.columns}
    if not look.rows or (not asked and any(name in names for name in TEXT_NAMES)):
        return None
    values = {column: [row.values.get(column) for row in look.rows] for column in look.columns}
    target_column = _first(TARGET_NAMES, names)
    id_column, order_column = _first(ID_NAMES, names), _first(ORDER_NAMES, names)
    if asked and not id_column:
        # Names are most often no numbers.
        others = [column for column in look.columns if column != order_column]
        id_column = next((column for column in others if not all(map(_is_number, values[column]))), "")
    if asked and id_column and not target_column:
        target_column = _constant_within(id_column, order_column, values)
    known = {id_column, order_column, target_column, _first(_SPLIT_NAMES, names)}
    common: dict[str, Any] = {"id_column": id_column, "target_column": target_column, "target": "none"}
    if target_column:
        numbers = all(_is_number(value) or value in ("", None) for value in values[target_column])
        common["target"] = (
            "number" if numbers and target_column.lower() not in ("label", "class", "标签", "类别") else "label"
        )
    lists = [column for column in look.columns if all(_is_list(value) for value in values[column])]
    if lists:
        return SequenceReading(layout="lists", features=lists, **common)
    numeric = [
        column for column in look.columns
        if column not in known and any(values[column]) and all(_is_number(v) or v in ("", None) for v in values[column])
    ]  # fmt: skip
    numbered = [column for column in numeric if re.fullmatch(r".*\d", column)]
    if len(numbered) >= FEWEST_STEPS and len({re.sub(r"\d+$", "", column) for column in numbered}) == 1:
        return SequenceReading(layout="columns", features=numbered, **common)
    if numeric and asked and not id_column and not target_column:
        return SequenceReading(layout="steps", order_column=order_column, features=numeric, window=WINDOW, **common)
    if numeric and (id_column or asked):
        return SequenceReading(layout="steps", order_column=order_column, features=numeric, **common)
    return None


def tags(look: Look) -> TagReading | None:
    """None if the rows have no tokens and no entities."""
    names = {column.lower(): column for column in look.columns}
    if not look.rows:
        return None
    values = {column: [row.values.get(column) for row in look.rows] for column in look.columns}
    if look.reading.format == "conll":
        # CoNLL-U has numbers first, then words, lemmas, parts of speech.
        columns = [column for column in look.columns if column != WEIGHT]
        conllu = len(columns) == 10 and all(one[0] == "1" for one in values["1"] if one)
        column = "4" if conllu else columns[-1]
        return TagReading(tokens_column="2" if conllu else "1", tags_column=column, scheme=_scheme(values[column]))
    text, entities = _first(TEXT_NAMES, names), _first(ENTITY_NAMES, names)
    if text and entities and _are_entities(values[entities]):
        return TagReading(layout="spans", tokens_column=text, tags_column=entities)
    lists = [column for column in look.columns if all(_is_list_of(value, (str,)) for value in values[column])]
    token_column = next((names[name] for name in TOKEN_NAMES if names.get(name) in lists), lists[0] if lists else "")
    if not token_column:
        return None
    tag_column = _first(TAG_NAMES, names) or next((column for column in lists if column != token_column), "")
    if not tag_column or tag_column == token_column:
        return None
    both = zip(values[token_column], values[tag_column], strict=True)
    if sum(isinstance(b, list) and len(a or []) == len(b) for a, b in both) < 0.8 * len(look.rows):
        return None  # other lists
    return TagReading(tokens_column=token_column, tags_column=tag_column, scheme=_scheme(values[tag_column]))


def _scheme(rows: list[Any]) -> tagging.Scheme:
    found = {tag for row in rows if isinstance(row, list) for tag in row if isinstance(tag, str)}
    if found <= {tagging.OUTSIDE}:
        return "bio"
    # One tag that does not fit is an error of the file rather than another scheme.
    tagged = [tag for tag in found if tag != tagging.OUTSIDE]
    if sum(tagging.fits(tag, "bioes") for tag in tagged) < 0.8 * len(tagged):
        return "none"
    return "bioes" if any(tag[0] in "ESLU" and tagging.fits(tag, "bioes") for tag in tagged) else "bio"


def _are_entities(rows: list[Any]) -> bool:
    """Objects with a place, or [start, end, label], in some rows; nothing else in any."""
    found = [one for row in rows if isinstance(row, list) for one in row]
    if not found or not all(isinstance(row, list) for row in rows):
        return False
    return all({"start", "end"} <= one.keys() if isinstance(one, dict) else _is_triple(one) for one in found)


def _is_triple(one: Any) -> bool:
    return isinstance(one, list) and len(one) == 3 and isinstance(one[0], int) and isinstance(one[2], str)


def _is_list_of(value: Any, kinds: tuple[type, ...]) -> bool:
    return isinstance(value, list) and all(isinstance(item, kinds) for item in value)


def _constant_within(id_column: str, order_column: str, values: dict[str, list[Any]]) -> str:
    """The one column that only changes with the sequence, if several rows of one are seen."""
    by_sequence: dict[str, list[int]] = {}
    for i, value in enumerate(values[id_column]):
        by_sequence.setdefault(str(value), []).append(i)
    if max(map(len, by_sequence.values())) < 3:
        return ""
    constant = [
        column for column, items in values.items()
        if column not in (id_column, order_column)
        and all(len({str(items[i]) for i in rows}) == 1 for rows in by_sequence.values())
    ]  # fmt: skip
    return constant[0] if len(constant) == 1 else ""


def _first(known: tuple[str, ...], names: dict[str, str]) -> str:
    return next((names[name] for name in known if name in names), "")


def _is_number(value: Any) -> bool:
    if isinstance(value, bool):
        return False
    try:
        float(value)
    except (TypeError, ValueError, OverflowError):
        return False
    return True


def _is_list(value: Any) -> bool:
    if isinstance(value, str) and value.lstrip().startswith("["):
        try:
            value = from_json(value)
        except ValueError:
            return False
    return isinstance(value, list) and all(_is_number(item) or item is None for item in value)
