"""How a dataset is checked: what the web side asks of a host, and what the host answers.

Nothing of it depends on Redis: the request is sent until it is answered, and the answer is a file below STORAGE_ROOT.
"""

from __future__ import annotations

from bisect import bisect_right
from pathlib import PurePosixPath
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

CHECK_TASK = "workers.check_dataset"
SPLITS = ("train", "dev")

# Below STORAGE_ROOT. A check has a folder with progress.json and result.json; both are replaced, never rewritten.
PROGRESS, RESULT = "progress.json", "result.json"
LARGEST_RESULT_BYTES = 8 * 2**20


def upload_key(uid: str) -> str:
    return f"uploads/{uid}"


def check_key(uid: str) -> str:
    return f"checks/{uid}"


def dataset_key(uid: str) -> str:
    return f"datasets/{uid}"


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


# What a dataset is made of; a recipe names the one that it trains on (`Recipe.dataset_kind`), and workers/datasets/ has a
# module for each that checks its rows.
Kind = Literal["texts", "numbers", "sequences", "tokens", "images", "lines"]
# What the weights of pictures and of sequences are written as.
WEIGHT = "weight"
# Made of pictures: their rows have `"image": [offset, bytes]`, a place in the file IMAGES beside train.jsonl and dev.jsonl.
PICTURE_KINDS: tuple[Kind, ...] = ("images", "lines")
IMAGES = "images.bin"
MOST_PIXELS = 64_000_000


class SequenceReading(_Frozen):
    """How numeric sequences are read. What is written has one line per sequence:

    {"id": "17", "features": {"amount": [3.5, …], …}, "target": 1.25 or "label": "fraud"}

    and "weight", where a column has weights.
    """

    layout: Literal["steps", "columns", "lists"] = Field(
        "steps",
        description="a row is a time step, and a column says of which sequence; or a row is a sequence, of which either "
        "columns are the time steps, or a column has all values as a JSON list",
    )
    id_column: str = Field(
        "",
        max_length=100,
        description="of the sequence; needed where a row is a time step, unless all are of one that is cut",
    )
    window: int = Field(
        0,
        ge=0,
        le=10_000,
        description="where a row is a time step: sequences are cut into so many time steps each; 0: not",
    )
    stride: int = Field(
        0, ge=0, le=10_000, description="from the beginning of a window to that of the next; 0: its length"
    )
    order_column: str = Field(
        "", max_length=100, description="time steps by this number or time; empty: as in the file"
    )
    features: list[str] = Field([], max_length=1000, description="columns; of layout “columns” the time steps in order")
    target: Literal["number", "label", "none"] = "none"
    target_column: str = Field("", max_length=100)


class TagReading(_Frozen):
    """How tokens with a tag each are read. What is written has one line per row:

    {"tokens": ["在", "北", "京"], "tags": ["O", "B-LOC", "I-LOC"]}
    """

    layout: Literal["lists", "spans"] = Field(
        "lists",
        description="a column has the tokens and another their tags; or a column has the text and another its entities, each "
        "with “start”, “end” (one after the last character) and “label”",
    )
    scheme: Literal["bio", "bioes", "none"] = Field(
        "bio", description="B- and I-; with E- and S- (or L- and U-, BILOU) too; or tags that stand for themselves"
    )
    tokens_column: str = Field("tokens", min_length=1, max_length=100, description="of CoNLL files its number, from 1")
    tags_column: str = Field("tags", min_length=1, max_length=100)


class ListFile(_Frozen):
    """A label file: a line has the path of a picture, a tab (or a space, of labels), and its label or text."""

    name: str = Field(min_length=1, max_length=1000, description="within the archive or folder, or of a file beside it")
    split: Literal["", "train", "dev", "out"] = Field("", description="empty: set apart; out: not used")


class ImageReading(_Frozen):
    """How pictures are found in an archive or a folder, and what belongs to them. What is written has one line per picture:

    {"id": "cats/001.png", "image": [offset, bytes], "size": [width, height], "label": "cat"} or with "text" instead

    and "weight", where label files have weights.
    """

    layout: Literal["folders", "lists"] = Field(
        "folders",
        description="the folder of a picture is its label, perhaps below train, dev or test; or label files name them",
    )
    lists: list[ListFile] = Field([], max_length=20, description="of layout “lists”")
    label_names: str = Field(
        "", max_length=1000, description="a file with the names of labels: “0 cat” in a line, or a name in each"
    )
    weights: bool = Field(
        False,
        description="behind label or text stands a weight, after one more tab, or one more comma; written as “weight”",
    )


class Reading(_Frozen):
    """How the files are read: form, columns, labels, split. What is written of texts has the columns “text” and “label”, and
    “text_b” where they are pairs."""

    kind: Kind = "texts"
    format: Literal["table", "jsonl", "conll"] = "jsonl"
    delimiter: Literal[",", ";", "\t", "|", " "] = Field(",", description="of CoNLL a tab, or else whatever is blank")
    quotes: bool = Field(True, description="quotation marks enclose fields; off for most TSV files")
    header: bool = Field(True, description="the first row has the names of the columns; without, they are 1, 2 …")
    encoding: Literal["utf-8", "gb18030"] = "utf-8"
    text_column: str = Field("text", min_length=1, max_length=100)
    text_b_column: str = Field(
        "", max_length=100, description="the second text of pairs, written as “text_b”; empty: none"
    )
    label_column: str = Field("label", min_length=1, max_length=100)
    weight_column: str = Field("", max_length=100)
    split_column: str = Field("", max_length=100)
    labels: list[str] = Field([], max_length=10_000, description="the label set; empty: those of the training rows")
    dev_fraction: float = Field(0.1, gt=0, lt=1, description="of each label, when the split is not given")
    seed: int = Field(2026, ge=0, lt=2**63)
    leave_out: bool = Field(False, description="rows with errors are left out instead of refusing the dataset")
    sequences: SequenceReading = SequenceReading()
    tagging: TagReading = TagReading()
    images: ImageReading = ImageReading()


class SourceFile(_Frozen):
    """A file below STORAGE_ROOT (`key`) or one of the host's DATASET_ROOTS (`path`)."""

    name: str
    split: Literal["", "train", "dev"] = ""
    key: str = ""
    path: str = ""


class CheckSpec(_Frozen):
    uid: str = Field(pattern="^[0-9a-f]{32}$", description="of the check; another one has another folder")
    number: int = Field(ge=1, description="of the try: a host acts once on each")
    files: list[SourceFile] = []
    paddlenlp: str = Field("", description="name for paddlenlp.datasets.load_dataset, instead of files")
    reading: Reading


class RowRef(_Frozen):
    """A row by its line in the file, from 1, and what stands there."""

    file: str
    row: int
    shown: str = ""


class Finding(_Frozen):
    """One thing that a check found. `template` is an English sentence with %-places for `values`; web translates it."""

    level: Literal["error", "warning", "note"]
    template: str
    values: dict[str, str | int | float] = {}
    rows: list[RowRef] = []

    @property
    def text(self) -> str:
        return self.template % self.values

    @property
    def count(self) -> int:
        count = self.values.get("count", 0)
        return count if isinstance(count, int) else 0


class Progress(_Frozen):
    """`seq` counts up while the check lives. `left_s` is for this stage, at its pace so far."""

    number: int
    seq: int
    host: str
    stage: str
    done: int = 0
    total: int = 0
    left_s: float | None = None


class CheckResult(_Frozen):
    """Fit if no finding is an error; then the files are below `dataset_key(uid)`.

    `statistics` of texts, with “…” for {"train": …, "dev": …}:

        rows, label_counts      …: how many; … {label: how many}
        text_length             … {"min", "p50", "p90", "p99", "max"}, in characters
        length_histogram        {"edges": [of bins], "counts": … [rows per bin]}; the last bin has the longest hundredth
        token_lengths           {"percentiles": … [101 numbers: the shortest, p1 … p99, the longest], "mean": …,
                                 "histogram": as above}
                                in tokens of the character vocabulary that training from scratch builds, both marks
                                included, before anything is cut: one per character that is no space. Counted of every row.
                                A word with a character outside of the vocabulary is one token, so it is a few too many.
                                For other tokenizers it is an upper bound that is close for Chinese and far off for English.
                                Missing in datasets that were checked before this was counted: use text_length + 2.
                                `share_of_longer_texts` reads it.
        weights                 … {"zero"}: rows with the weight 0; where there is a weight column
        duplicates              {"train", "dev", "dev_in_train", "contradicting"}: rows
        baselines               {name: accuracy on dev}
        samples, first_batch    what pages show

    Of pictures (`images` and `lines`) instead of text_length, length_histogram and token_lengths:

        formats                 … {"PNG": pictures}
        colours                 …: pictures that have some
        width, height           … {"min", "p50", "p90", "p99", "max"}, in pixels
        duplicates              as above; equal bytes
        samples                 … [{"image": [offset, bytes], "of": the same of the whole picture, "size", "id", "label" or
                                "text"}]; the image is a thumbnail, which stands behind the pictures in images.bin

    and of `lines`, where a text of n characters with r of them equal to the one before needs n + r steps of CTC:

        characters              … {character: how often}
        unseen_characters       {character: rows of dev}: those that no training row has
        text_length             …, as above
        width_per_step          … {"percentiles": [101 numbers, the narrowest first],
                                   "narrowest": [{"id", "text", "size", "image", "value"}: ten rows],
                                   "tightest": [[n + r, width, height]: some hundred rows, the narrowest and those with the
                                   longest texts, so that it can be counted how many do not fit a model]},
                                (width × 32 / height) / (n + r): how many pixels a step has at a height of 32
        line_widths             … [101 percentiles of the width at a height of 32]
    """

    number: int
    host: str
    seconds: float
    findings: list[Finding]
    columns: list[str] = []
    labels: list[str] = []
    splits: dict[str, int] = {}
    bytes: int = 0
    content_hash: str = ""
    statistics: dict[str, Any] = {}

    @property
    def fit(self) -> bool:
        return all(finding.level != "error" for finding in self.findings)


def share_of_longer_texts(statistics: dict[str, Any], tokens: int, split: str = "train") -> float | None:
    """Share (to a hundredth) of a split's texts that have more than `tokens` tokens of a character vocabulary, so that they are
    cut. None if no check has counted them."""
    percentiles: list[int] | None = ((statistics.get("token_lengths") or {}).get("percentiles") or {}).get(split)
    if not percentiles or percentiles[-1] <= tokens:
        return 0.0 if percentiles else None
    # The last percentile that still fits; the text of a percentile p is longer than p % of the others.
    fitting = bisect_right(percentiles, tokens) - 1
    return 1 - max(fitting, 0) / 100


def is_plain_key(key: str) -> bool:
    """Whether `key` stays below the root it is joined to."""
    path = PurePosixPath(key)
    return bool(key) and not path.is_absolute() and ".." not in path.parts
