"""What a call costs: hand calculations in nano-USD (price per million tokens x tokens x 1000)."""

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relive import ReliveError, Usage
from relive.llm import Price, PriceTable
from relive.llm.usage import read_usage

OPENAI = "https://api.openai.com/v1"
IN_2025 = datetime(2025, 6, 1, tzinfo=UTC)


def test_cached_tokens_are_priced_apart() -> None:
    table = PriceTable({"m": {"input": "1.00", "cached": "0.10", "output": "2.00"}})
    usage = Usage(input_tokens=16111, cached_tokens=15872, output_tokens=2)
    # 239 x 1.00 + 15872 x 0.10 + 2 x 2.00 = 1830.2 USD for a million of each: 0.0018302 USD
    assert table.cost(usage, "m") == 1_830_200


def test_the_articles_months_cost_what_they_say() -> None:
    ten_million = Usage(input_tokens=10_000_000, output_tokens=0)
    for price, usd in ((8.00, 80), (15.00, 150), (2.50, 25), (0.42, Decimal("4.20"))):
        assert PriceTable({"m": {"input": price, "output": 0}}).cost(ten_million, "m") == usd * 10**9


def test_cache_writes_have_a_price_of_their_own_or_the_inputs() -> None:
    usage = Usage(input_tokens=100, cached_tokens=20, cache_write_tokens=30, output_tokens=1)
    own = {"input": 3, "output": 15, "cached": "0.3", "cache_write": "3.75"}
    # 50 x 3000 + 20 x 300 + 30 x 3750 + 1 x 15000
    assert PriceTable({"m": own}).cost(usage, "m") == 150_000 + 6_000 + 112_500 + 15_000
    assert PriceTable({"m": {"input": 3, "output": 15}}).cost(usage, "m") == 100 * 3000 + 15_000


def test_rounding_happens_once_and_to_even() -> None:
    table = PriceTable({"m": {"input": "0.0005", "output": "0.0005"}})  # 0.5 nano-USD a token
    costs = [table.cost(Usage(input_tokens=n, output_tokens=0), "m") for n in (1, 2, 3, 5)]
    assert costs == [0, 1, 2, 2]  # 0.5, 1, 1.5, 2.5


def test_a_known_model_at_its_providers_address_has_the_list_price() -> None:
    # gpt-4o in mid-2025: 2.50 input, 1.25 cached, 10.00 output USD for a million tokens
    usage = Usage(input_tokens=100, cached_tokens=40, output_tokens=7)
    expected = 60 * 2500 + 40 * 1250 + 7 * 10_000
    assert PriceTable().cost(usage, "gpt-4o-2024-08-06", "gpt-4o", base_url=OPENAI, at=IN_2025) == expected


def test_own_prices_come_before_the_known_ones_and_the_longest_name_first() -> None:
    table = PriceTable(
        {
            "gpt-*": {"input": 1, "output": 1},
            "gpt-4o*": {"input": 2, "output": 2},
            "gpt-4o": Price.of(3, 3),
        }
    )
    one = Usage(input_tokens=1, output_tokens=0)
    assert table.cost(one, "gpt-4o", base_url=OPENAI) == 3000
    assert table.cost(one, "gpt-4o-mini", base_url=OPENAI) == 2000
    assert table.cost(one, "gpt-3", base_url=OPENAI) == 1000


def test_a_free_model_costs_zero_and_an_unknown_one_nothing_known() -> None:
    usage = Usage(input_tokens=10, output_tokens=10)
    table = PriceTable({"mine": {"input": 0, "output": 0}})
    assert table.cost(usage, "mine") == 0
    assert table.cost(usage, "other") is None
    assert table.cost(usage, "other", base_url=OPENAI) is None
    assert table.cost(usage, "gpt-4o") is None  # an unknown address
    assert table.cost(usage, "gpt-4o", base_url="http://127.0.0.1:4000/v1") is None
    assert table.cost(usage, "gpt-4o", base_url="https://proxy.example/v1") is None
    assert PriceTable(known=False).cost(usage, "gpt-4o", base_url=OPENAI) is None


@pytest.mark.parametrize(
    "usage",
    [
        None,
        Usage(),
        Usage(input_tokens=5),
        Usage(output_tokens=5),
        Usage(input_tokens=5, cached_tokens=6, output_tokens=1),
    ],
)
def test_absent_or_contradicting_counts_have_no_cost(usage: Usage | None) -> None:
    assert PriceTable({"m": {"input": 1, "output": 1}}).cost(usage, "m") is None
    assert PriceTable().cost(usage, "gpt-4o", base_url=OPENAI) is None


def test_a_listed_model_without_prices_costs_nothing_known() -> None:
    # an embedding model has no price for an answer's tokens
    usage = Usage(input_tokens=5, output_tokens=5)
    assert PriceTable().cost(usage, "text-embedding-3-small", base_url=OPENAI) is None


@given(tokens=st.integers(0, 10**12), cents=st.integers(0, 10**6))
def test_money_is_exact(tokens: int, cents: int) -> None:
    table = PriceTable({"m": {"input": Decimal(cents) / 100, "output": 0}})
    assert table.cost(Usage(input_tokens=tokens, output_tokens=0), "m") == tokens * cents * 10


@pytest.mark.parametrize(
    "price",
    [
        {"input": -1, "output": 1},
        {"input": "x", "output": 1},
        {"input": float("nan"), "output": 1},
        {"input": 1},
        {"in": 1},
    ],
)
def test_a_price_that_is_none_is_refused_and_the_model_named(price: dict[str, Any]) -> None:
    with pytest.raises(ReliveError, match="'my-model'"):
        PriceTable({"my-model": price})


@pytest.mark.parametrize(
    ("reported", "usage"),
    [
        ({"prompt_tokens": 3, "completion_tokens": 4}, Usage(input_tokens=3, output_tokens=4)),
        (
            {
                "prompt_tokens": 30,
                "completion_tokens": 40,
                "total_tokens": 70,
                "prompt_tokens_details": {"cached_tokens": 10},
                "completion_tokens_details": {"reasoning_tokens": 25},
            },
            Usage(input_tokens=30, cached_tokens=10, output_tokens=40, reasoning_tokens=25),
        ),
        (  # reasoning counted beside the answer's tokens
            {
                "prompt_tokens": 30,
                "completion_tokens": 40,
                "total_tokens": 95,
                "completion_tokens_details": {"reasoning_tokens": 25},
            },
            Usage(input_tokens=30, output_tokens=65, reasoning_tokens=25),
        ),
        (
            {"prompt_tokens": 3, "completion_tokens": 4, "prompt_cache_hit_tokens": 2},
            Usage(input_tokens=3, cached_tokens=2, output_tokens=4),
        ),
        ({"prompt_tokens": "3", "completion_tokens": -1, "prompt_tokens_details": None}, None),
        ({"prompt_tokens": True, "completion_tokens": 4.0}, None),
        ({}, None),
        (None, None),
        ([], None),
    ],
)
def test_usage_of_a_chat_completion_is_read_and_what_is_no_count_left_out(reported: Any, usage: Usage | None) -> None:
    assert read_usage({"usage": reported}) == usage
    assert read_usage({}) is None
