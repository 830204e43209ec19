from __future__ import annotations

import math
import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs.steps import block, columns, packed
from jobs.steps.columns import Column
from tests.jobs.records import line, lines
from workers.contract import records

floats = st.one_of(
    st.floats(),
    st.floats(width=32),
    st.sampled_from([0.0, -0.0, 1.0, 65536.0, 1e300, 5e-324, math.nan, math.inf, -math.inf]),
    st.decimals(-1000, 1000, places=3).map(float),
)


def _sealed(stored: list[bytes]) -> bytes:
    return block.seal(packed.parse(b"".join(stored)))


def _back(stored: list[bytes]) -> list[bytes]:
    return [text + b"\n" for text in block.unseal(_sealed(stored))[:-1].split(b"\n")]


@settings(deadline=None, max_examples=50)
@given(st.lists(floats, min_size=1, max_size=40), st.data())
def test_a_float_column_gives_the_same_bits_back(values: list[float], data: st.DataObject) -> None:
    null = data.draw(st.one_of(st.none(), st.lists(st.booleans(), min_size=len(values), max_size=len(values))))
    column = Column(np.array(values), None if null is None else np.array(null))
    back = columns.decode(columns.encode({"x": column}))["x"]
    assert back.to_list() == column.to_list()
    assert [math.copysign(1, v) for v in back.to_list() if v == 0] == [
        math.copysign(1, v) for v in column.to_list() if v == 0
    ]


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=40))
def test_a_whole_number_column_gives_the_same_numbers_back(values: list[int]) -> None:
    back = columns.decode(columns.encode({"x": Column(np.array(values, dtype=np.int64))}))["x"]
    assert back.to_list() == values


def test_a_linear_schedule_and_a_counter_cost_next_to_nothing() -> None:
    steps = np.arange(1, 4097)
    rate = np.array([5e-5 * (1 - step / 1_000_000) for step in steps])
    assert len(columns.encode({"step": Column(steps)})) < 600
    assert len(columns.encode({"lr": Column(rate)})) < 3 * 4096


@settings(deadline=None, max_examples=30)
@given(st.data())
def test_sealed_lines_come_back_byte_for_byte(data: st.DataObject) -> None:
    nullable = st.one_of(st.none(), floats)
    extras = st.one_of(
        st.none(),
        st.just({}),
        st.fixed_dictionaries({"a": floats, "b": st.one_of(st.none(), st.integers(-9, 9))}),
        st.dictionaries(st.text(max_size=3), st.one_of(floats, st.booleans(), st.text(max_size=4), st.none())),
    )
    stored = [
        line(
            step,
            loss=data.draw(floats),
            loss_all=data.draw(nullable),
            lr=data.draw(floats),
            t=data.draw(floats),
            loss_scale=data.draw(nullable),
            tokens=data.draw(st.one_of(st.none(), st.integers(0, 2**40))),
            skipped=data.draw(st.sampled_from([None, "found_inf", "non_finite_loss"])),
            batch_id=data.draw(st.sampled_from(["0:7", "0:07", "x", "0:-1"])),
            extras=data.draw(extras),
        )
        for step in range(1, data.draw(st.integers(2, 12)))
    ]
    assert _back(stored) == stored


@pytest.mark.parametrize(
    "odd",
    [
        b"not json\n",
        b"\n",
        b"{}\n",
        b"[1,2]\n",
        b"null\n",
        b'{"step":3}\n',
        b'{"v": 1, "step": 3}\n',
        b"\xff\xfe broken \x00\n",
        line(3).replace(b'"samples":32', b'"samples": 32'),
        line(3).replace(b'"samples":32', b'"samples":true'),
        line(3).replace(b'"samples":32', b'"samples":18446744073709551616'),
        line(3).replace(b'"clip_norm":1.0', b'"clip_norm":1'),
        line(3).replace(b'"clip_norm":1.0', b'"clip_norm":"NaN"'),
        line(3).replace(b'"extras":null', b'"extras":null,"new":1'),
        line(3).replace(b'"extras":null', b'"extras":{"a":[1]}'),
        line(3).replace(b'"v":1,', b""),
    ],
)
@pytest.mark.parametrize("place", [0, 1, 3])
def test_an_unusual_line_is_kept_as_it_is(odd: bytes, place: int) -> None:
    stored = list(lines(3))
    stored.insert(place, odd)
    assert _back(stored) == stored
    assert _back([odd]) == [odd]
    before = packed.parse(b"".join(stored)).matrix
    assert np.array_equal(block.matrix(_sealed(stored)), before, equal_nan=True)
    assert np.array_equal(block.matrix(_sealed([odd])), packed.parse(odd).matrix, equal_nan=True)


def test_an_extra_that_is_a_whole_number_once_and_a_float_or_a_truth_later_comes_back_as_it_was() -> None:
    stored = [
        line(step, extras={"norm:x": value})
        for step, value in enumerate([1, 1.5, True, None, "nan", 2**63, -(2**63)], start=1)
    ]
    assert _back(stored) == stored
    assert [value["norm:x"] for _, value in block.with_extras(_sealed(stored), "norm:")][:4] == [1, 1.5, True, None]


@pytest.mark.parametrize("name", ["plain", "odd"])
def test_what_the_first_version_sealed_is_still_read(name: str) -> None:
    """With NaN, infinities, -0.0, nulls, names with %, texts in Chinese; `odd` has lines that are no records, too."""
    sealed = Path(__file__).parent / "sealed"
    assert block.unseal((sealed / f"{name}.block").read_bytes()) == (sealed / f"{name}.lines").read_bytes()


def _changed(text: bytes, rng: random.Random) -> bytes:
    """A line as another trainer, or a fault, might write it."""
    old, new = rng.choice(
        [
            (b'"v":1', b'"v": 1'),
            (b'"v":1,', b""),
            (b'"samples":32', b'"samples":true'),
            (b'"samples":32', b'"samples":32.0'),
            (b'"clip_norm":1.0', b'"clip_norm":1'),
            (b'"found_inf":false', b'"found_inf":0'),
            (b'"seg":0', b'"seg":0.5'),
            (b'"epoch":0', b'"epoch":"0"'),
            (b'"extras":', b'"new":7,"extras":'),
            (b'"extras":', b'"v":1,"extras":'),
            (b'"batch_id":"0:', b'"batch_id":"0: '),
            (b'"batch_id":"0:', b'"batch_id":"0:0'),
            (b'"batch_id":"0:', b'"batch_id":"%s,'),
            (b"}\n", b"}," + text),
            (b"}\n", b"}\r\n"),
            (text[40:], b"\n"),
            (text, b"\xff\n"),
        ]
    )
    return text.replace(old, new)


@pytest.mark.parametrize("seed", range(8))
def test_blocks_of_everything_come_back_byte_for_byte_as_a_whole_and_in_parts(seed: int) -> None:
    rng = random.Random(seed)
    values = [0.0, -0.0, math.nan, math.inf, -math.inf, 5e-324, 1e16, 1e22, 0.1 + 0.2]
    words = ["", "%s", "100 %", 'a,"b"\n', "训练", "\\", "\x00"]
    one_type = rng.random() < 0.5

    def extras() -> dict[str, object] | None:
        loose = {} if one_type else {rng.choice(words): rng.choice([1, 1.5, True, None, "x", 2**63, [1]])}
        return rng.choice([None, {"%": rng.choice(values), "训练": rng.choice(words), **loose}])

    stored = [
        line(
            step,
            loss=rng.choice([rng.gauss(0, 1), *values]),
            lr=rng.random() * 10 ** rng.randint(-20, 20),
            loss_all=rng.choice([None, rng.random(), *values]),
            tokens=rng.choice([None, rng.randint(-(2**63), 2**63 - 1)]),
            skipped=rng.choice([None, *words]),
            extras=extras(),
        )
        for step in range(1, 81)
    ]
    if seed % 2:
        stored = [_changed(text, rng) if rng.random() < 0.1 else text for text in stored]
    batch = packed.parse(b"".join(stored))
    assert block.unseal(block.seal(batch)) == batch.body
    low, high = sorted(rng.sample(range(81), 2))
    part = batch.part(low, high)
    assert part.body == b"".join(stored[low:high]) and len(part) == high - low
    whole = packed.joined([packed.stored(part.body, part.matrix), batch])
    assert block.unseal(block.seal(whole)) == part.body + batch.body
    if not seed % 2:
        assert np.array_equal(block.matrix(block.seal(part)), part.matrix, equal_nan=True)


def test_nan_and_infinities_are_numbers_in_the_matrix_and_null_is_told_from_nan() -> None:
    stored = [
        line(1, loss=math.nan, loss_all=None),
        line(2, loss=math.inf, loss_all=math.nan),
        line(3, loss=-math.inf, skipped="found_inf", found_inf=True, clipped=False),
    ]
    matrix = packed.parse(b"".join(stored)).matrix
    loss = matrix[:, packed.FIRST_FIELD + packed.CHARTED.index("loss")]
    assert math.isnan(loss[0]) and loss[1] == math.inf and loss[2] == -math.inf
    null = packed.NULL[packed.CHARTED.index("loss_all")]
    assert [bool(bits & null) for bits in packed.bits(matrix)] == [True, False, False]
    assert packed.bits(matrix)[2] & (packed.SKIPPED | packed.FOUND_INF) == packed.SKIPPED | packed.FOUND_INF
    assert np.array_equal(block.matrix(_sealed(stored)), matrix, equal_nan=True)


def test_a_sealed_record_takes_fewer_than_100_bytes() -> None:
    stored = list(lines(block.BLOCK))
    assert len(_sealed(stored)) / block.BLOCK < 60


def test_the_contract_decodes_what_the_block_gives_back() -> None:
    stored = [line(1, loss=math.nan), line(2, grad_norm=math.inf)]
    first, second = (records.decode(text) for text in _back(stored))
    assert math.isnan(first["loss"]) and second["grad_norm"] == math.inf
