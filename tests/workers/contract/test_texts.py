from __future__ import annotations

import ast
import json
from pathlib import Path

import workers
from workers.contract import records
from workers.contract.texts import Text, clause, said_of, spoken

ROOT = Path(workers.__file__).parent


def test_a_text_is_its_english() -> None:
    text = Text("At step %(step)d the loss of %(ranks)s was %(loss).4g.", step=8, ranks="rank 0", loss=float("nan"))
    assert text == "At step 8 the loss of rank 0 was nan." == str(text) == f"{text}"
    assert type(str(text)) is str


def test_texts_keep_their_parts_when_they_are_joined_or_filled_in() -> None:
    inner = Text("rank %(rank)d", rank=0)
    text = Text.joined(Text("The loss of %(ranks)s was bad.", ranks=inner), "", "OSError: 5", Text("It ends."))
    assert text == "The loss of rank 0 was bad. OSError: 5 It ends."
    assert said_of(text) == [
        {"template": "The loss of %(ranks)s was bad.", "values": {"ranks": inner.said}},
        "OSError: 5",
        {"template": "It ends.", "values": {}},
    ]


def test_a_line_has_the_parts_beside_the_english_and_nan_stays_what_it_is() -> None:
    line = json.loads(records.dumps(spoken({"kind": "note", "text": Text("It was %(x)g.", x=float("nan"))})))
    assert line["text"] == "It was nan."
    assert line["said"] == [{"template": "It was %(x)g.", "values": {"x": "nan"}}]
    assert spoken({"detail": "plain"}) == {"detail": "plain"}


def test_no_sentence_leaves_a_host_without_its_template() -> None:
    """A formatted string could be shown in English only."""
    found, texts = [], 0
    for path in sorted(ROOT.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            # (EndReason.…, why)
            if (
                isinstance(node, ast.Tuple)
                and len(node.elts) == 2
                and ast.unparse(node.elts[0]).startswith("EndReason.")
            ):
                found += [f"{path.relative_to(ROOT)}:{node.lineno}"] if _is_a_sentence(node.elts[1]) else []
            if not isinstance(node, ast.Call):
                continue
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            texts += name == "Text"
            said = [*node.args, *(item.value for item in node.keywords if item.arg in ("detail", "text", "problem"))]
            if name in ("TrainingFailed", "Verdict", "refuse", "say") and any(map(_is_a_sentence, said)):
                found.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert found == [] and texts > 40


# Sentences that end in another's sentence, and names of things, which begin one.
WITHIN = {
    "%(host)s refused: %(why)s",
    "Node %(node)d on %(host)s refused: %(why)s",
    "The exported model of job %(job)d",
    "The model folder “%(folder)s”",
}
NAMES = ("fp16 ", "paddle.vision ")


def test_a_sentence_begins_with_a_capital_and_ends_with_a_full_stop_and_a_part_of_one_does_neither() -> None:
    found, seen = [], 0
    for path in [*sorted(ROOT.rglob("*.py")), *sorted((ROOT.parent / "jobs").rglob("*.py"))]:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("Text", "Unreadable", "Finding"):
                templates = [one.value for one in node.args if isinstance(one, ast.Constant)]
                for text in (text for text in templates if isinstance(text, str) and " " in text):
                    begins = text[0].isupper() or text[0] in "%“" or text.startswith(NAMES)
                    found += [text] if begins != text.endswith((".", "?")) and text not in WITHIN else []
                    seen += 1
    assert found == [] and seen > 200


def test_words_of_an_error_end_a_sentence_without_a_second_full_stop() -> None:
    assert [clause(words) for words in ("no room", "No such file. ", "and so on...")] == [
        "no room",
        "No such file",
        "and so on",
    ]
    text = Text("rank %(rank)d", rank=1)
    assert clause(text) is text, "with its parts"


def _is_a_sentence(value: ast.expr) -> bool:
    constant = isinstance(value, ast.Constant) and isinstance(value.value, str) and " " in value.value
    return isinstance(value, ast.JoinedStr) or constant
