"""A dataset that PaddleNLP knows by name, as JSON Lines.

    python -m workers.datasets.from_paddlenlp NAME FOLDER

PaddleNLP downloads what it does not have. Only names of its own collection are taken: no path, and no script.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

SPLITS = {"train": "train", "dev": "dev"}


def rows(examples: Any) -> Any:
    """As dictionaries of texts and numbers; labels by their names where the dataset has names."""
    names = getattr(examples, "label_list", None)
    for example in examples:
        row = {key: value for key, value in dict(example).items() if isinstance(value, str | int | float)}
        if (tagged := _tagged(dict(example), names)) is not None:
            yield row | tagged
            continue
        label = row.get("label", row.pop("labels", None))
        if label is not None:
            row["label"] = str(names[label]) if names and isinstance(label, int) and 0 <= label < len(names) else label
        yield row


def _tagged(example: dict[str, Any], names: list[str] | None) -> dict[str, list[str]] | None:
    """Of tokens with a tag each: the tags by their names."""
    tokens, tags = example.get("tokens"), example.get("labels", example.get("tags"))
    if not isinstance(tokens, list) or not isinstance(tags, list):
        return None
    known = names or []
    by_name = [known[tag] if isinstance(tag, int) and 0 <= tag < len(known) else tag for tag in tags]
    return {"tokens": list(map(str, tokens)), "tags": list(map(str, by_name))}


def main() -> None:
    name, folder = sys.argv[1], Path(sys.argv[2])
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,100}", name):
        sys.exit(f"“{name}” is not a name of PaddleNLP's collection")
    from paddlenlp.datasets import load_dataset

    try:
        loaded = load_dataset(name, splits=list(SPLITS), lazy=False)
    except Exception as error:  # noqa: BLE001 - whatever it is, its last line is what people are told
        said = str(error).strip().splitlines()
        sys.exit(f"{type(error).__name__}: {said[0] if said else 'no connection'}")
    for split, examples in zip(SPLITS.values(), loaded, strict=True):
        with (folder / f"{split}.jsonl").open("w", encoding="utf-8") as file:
            for row in rows(examples):
                file.write(json.dumps(row, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
