"""What providers say a call used, in their own words, and what it costs to the exact nano-USD.

The expected costs are worked out by hand: tokens times the price for a million, in nano-USD; 1 USD a million is 1,000
nano-USD a token.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest

from relive.experience import Usage
from relive.llm.pricing import Price, PriceTable
from relive.llm.usage import priced_apart, read_usage

PRICE = Price.of(2, 8, cached="0.5", cache_write="2.5")  # 2,000, 8,000, 500 and 2,500 nano-USD a token


class Fixture(NamedTuple):
    """A provider's report: input, cached, cache-write, output and reasoning tokens, and the cost in nano-USD."""

    usage: dict[str, Any]
    counts: tuple[int | None, int | None, int | None, int | None, int | None]
    cost: int | None
    answer: Mapping[str, Any] = MappingProxyType({})


def chat(prompt: Any, completion: Any, total: Any = None, **more: Any) -> dict[str, Any]:
    total = {} if total is None else {"total_tokens": total}
    return {"prompt_tokens": prompt, "completion_tokens": completion, **total, **more}


EMBEDDING = {"object": "list", "data": []}
FIXTURES = {
    # OpenAI
    "openai chat": Fixture(chat(19, 10, 29), (19, None, None, 10, None), 19 * 2_000 + 10 * 8_000),
    "openai details of zeros": Fixture(
        chat(19, 10, 29, prompt_tokens_details={"cached_tokens": 0, "audio_tokens": 0},
             completion_tokens_details={"reasoning_tokens": 0, "audio_tokens": 0, "accepted_prediction_tokens": 0}),
        (19, 0, None, 10, 0), 118_000),
    "openai sound asked": Fixture(chat(19, 10, 29, prompt_tokens_details={"audio_tokens": 12}),
                                  (19, None, None, 10, None), None),
    "openai sound answered": Fixture(chat(19, 10, 29, completion_tokens_details={"audio_tokens": 7}),
                                     (19, None, None, 10, None), None),
    "openai responses image": Fixture(
        {"input_tokens": 9, "output_tokens": 87, "output_tokens_details": {"image_tokens": 80}},
        (9, None, None, 87, None), None),
    "openai cached": Fixture(chat(2006, 300, 2306, prompt_tokens_details={"cached_tokens": 1920}),
                             (2006, 1920, None, 300, None), 86 * 2_000 + 1920 * 500 + 300 * 8_000),
    "openai reasoning inside": Fixture(chat(30, 500, 530, completion_tokens_details={"reasoning_tokens": 448}),
                                       (30, None, None, 500, 448), 60_000 + 4_000_000),
    "openai details null": Fixture(chat(5, 6, 11, prompt_tokens_details=None, completion_tokens_details=None),
                                   (5, None, None, 6, None), 10_000 + 48_000),
    "openai completions": Fixture(chat(5, 7, 12), (5, None, None, 7, None), 66_000, {"object": "text_completion"}),
    "openai without output": Fixture({"prompt_tokens": 5, "total_tokens": 5}, (5, None, None, None, None), None),
    "openai embeddings": Fixture({"prompt_tokens": 8, "total_tokens": 8}, (8, None, None, 0, None), 16_000, EMBEDDING),
    "openai responses": Fixture(
        {"input_tokens": 36, "input_tokens_details": {"cached_tokens": 0}, "output_tokens": 87,
         "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": 123},
        (36, 0, None, 87, 0), 72_000 + 696_000),
    "openai responses cached, reasoning": Fixture(
        {"input_tokens": 1000, "input_tokens_details": {"cached_tokens": 900}, "output_tokens": 50,
         "output_tokens_details": {"reasoning_tokens": 40}},
        (1000, 900, None, 50, 40), 200_000 + 450_000 + 400_000),
    # Azure, OpenRouter, and others in OpenAI's form
    "azure with filter results": Fixture(chat(100, 1, 101), (100, None, None, 1, None), 208_000,
                                         {"prompt_filter_results": []}),
    "openrouter with its own cost": Fixture(
        chat(10, 2, 12, cost=0.5, prompt_tokens_details={"cached_tokens": 4}, cost_details={"upstream": None}),
        (10, 4, None, 2, None), 12_000 + 2_000 + 16_000),
    "openrouter cache write": Fixture(
        chat(1000, 2, 1002, prompt_tokens_details={"cached_tokens": 0, "cache_write_tokens": 600}),
        (1000, 0, 600, 2, None), 800_000 + 1_500_000 + 16_000),
    "deepseek cache hit": Fixture(
        chat(1024, 10, 1034, prompt_cache_hit_tokens=960, prompt_cache_miss_tokens=64),
        (1024, 960, None, 10, None), 128_000 + 480_000 + 80_000),
    "deepseek both ways": Fixture(
        chat(1024, 10, 1034, prompt_cache_hit_tokens=960, prompt_tokens_details={"cached_tokens": 960}),
        (1024, 960, None, 10, None), 688_000),
    "deepseek reasoner": Fixture(chat(12, 900, 912, completion_tokens_details={"reasoning_tokens": 850}),
                                 (12, None, None, 900, 850), 24_000 + 7_200_000),
    "xai reasoning beside the answer": Fixture(
        chat(32, 9, 135, completion_tokens_details={"reasoning_tokens": 94}),
        (32, None, None, 103, 94), 64_000 + 824_000),
    "gemini compatible, thoughts beside": Fixture(
        chat(7, 20, 127, completion_tokens_details={"reasoning_tokens": 100}),
        (7, None, None, 120, 100), 14_000 + 960_000),
    "gemini compatible, plain": Fixture(chat(7, 20, 27), (7, None, None, 20, None), 174_000),
    "groq with times": Fixture(
        chat(18, 3, 21, queue_time=0.03, prompt_time=0.001, completion_time=0.02, total_time=0.021),
        (18, None, None, 3, None), 60_000),
    "mistral": Fixture(chat(16, 34, 50), (16, None, None, 34, None), 304_000),
    "moonshot cached at the top": Fixture(chat(300, 5, 305, cached_tokens=256), (300, 256, None, 5, None),
                                          88_000 + 128_000 + 40_000),
    "qwen cached": Fixture(chat(300, 5, 305, prompt_tokens_details={"cached_tokens": 256, "text_tokens": 300}),
                           (300, 256, None, 5, None), 256_000),
    "together": Fixture(chat(25, 25, 50, cached_tokens=0), (25, 0, None, 25, None), 250_000),
    # Servers of one's own
    "vllm": Fixture(chat(9, 16, 25, prompt_tokens_details=None), (9, None, None, 16, None), 146_000),
    "vllm cached": Fixture(chat(64, 1, 65, prompt_tokens_details={"cached_tokens": 48}), (64, 48, None, 1, None),
                           32_000 + 24_000 + 8_000),
    "llama.cpp": Fixture(chat(32, 3, 35, prompt_tokens_details={"cached_tokens": 31}), (32, 31, None, 3, None),
                         2_000 + 15_500 + 24_000),
    "llama.cpp responses": Fixture(
        {"input_tokens": 32, "output_tokens": 3, "total_tokens": 35, "input_tokens_details": {"cached_tokens": 31}},
        (32, 31, None, 3, None), 41_500),
    "llama.cpp messages": Fixture({"cache_read_input_tokens": 31, "input_tokens": 1, "output_tokens": 3},
                                  (32, 31, None, 3, None), 41_500),
    "ollama": Fixture(chat(26, 298, 324), (26, None, None, 298, None), 52_000 + 2_384_000),
    "sglang": Fixture(chat(11, 4, 15, prompt_tokens_details={"cached_tokens": 8}, reasoning_tokens=0),
                      (11, 8, None, 4, None), 6_000 + 4_000 + 32_000),
    # Anthropic: cached tokens stand beside the input
    "anthropic": Fixture({"input_tokens": 2095, "output_tokens": 503}, (2095, None, None, 503, None),
                         4_190_000 + 4_024_000),
    "anthropic cache of zeros": Fixture(
        {"input_tokens": 10, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0, "output_tokens": 1,
         "service_tier": "standard"},
        (10, 0, 0, 1, None), 28_000),
    "anthropic cache read": Fixture(
        {"input_tokens": 50, "cache_read_input_tokens": 10_000, "cache_creation_input_tokens": 0, "output_tokens": 20},
        (10_050, 10_000, 0, 20, None), 100_000 + 5_000_000 + 160_000),
    "anthropic cache write": Fixture(
        {"input_tokens": 50, "cache_read_input_tokens": 0, "cache_creation_input_tokens": 248,
         "cache_creation": {"ephemeral_5m_input_tokens": 248, "ephemeral_1h_input_tokens": 0}, "output_tokens": 4},
        (298, 0, 248, 4, None), 100_000 + 620_000 + 32_000),
    "anthropic cache write for an hour": Fixture(
        {"input_tokens": 50, "cache_read_input_tokens": 0, "cache_creation_input_tokens": 248,
         "cache_creation": {"ephemeral_5m_input_tokens": 148, "ephemeral_1h_input_tokens": 100}, "output_tokens": 4},
        (298, 0, 248, 4, None), None),
    "anthropic read and write": Fixture(
        {"input_tokens": 4, "cache_read_input_tokens": 1000, "cache_creation_input_tokens": 200, "output_tokens": 7},
        (1204, 1000, 200, 7, None), 8_000 + 500_000 + 500_000 + 56_000),
    "anthropic null cache": Fixture(
        {"input_tokens": 10, "cache_read_input_tokens": None, "cache_creation_input_tokens": None, "output_tokens": 1},
        (10, None, None, 1, None), 28_000),
    "anthropic with a server tool": Fixture(
        {"input_tokens": 10, "output_tokens": 1, "server_tool_use": {"web_search_requests": 0}},
        (10, None, None, 1, None), 28_000),
    "anthropic with a search": Fixture(
        {"input_tokens": 10, "output_tokens": 1, "server_tool_use": {"web_search_requests": 1}},
        (10, None, None, 1, None), None),
    # Embeddings
    "voyage embeddings, the whole alone": Fixture({"total_tokens": 10}, (10, None, None, 0, None), 20_000, EMBEDDING),
    "embeddings with zero": Fixture({"prompt_tokens": 0, "total_tokens": 0}, (0, None, None, 0, None), 0, EMBEDDING),
    # What is no count is left out, and then nothing is priced
    "numbers as text": Fixture(chat("19", 10), (None, None, None, 10, None), None),
    "negative": Fixture(chat(-1, 10), (None, None, None, 10, None), None),
    "fractions": Fixture(chat(1.5, 10), (None, None, None, 10, None), None),
    "truth values": Fixture(chat(True, 10), (None, None, None, 10, None), None),
    "more cached than there is": Fixture(chat(5, 1, prompt_tokens_details={"cached_tokens": 9}),
                                         (5, 9, None, 1, None), None),
    "nothing sent, nothing said": Fixture(chat(0, 0, 0), (0, None, None, 0, None), 0),
}  # fmt: skip


@pytest.mark.parametrize("name", FIXTURES)
def test_a_providers_usage_is_read_and_priced_exactly(name: str) -> None:
    fixture = FIXTURES[name]
    answer = {**fixture.answer, "usage": fixture.usage}
    usage = read_usage(answer)
    names = ("input_tokens", "cached_tokens", "cache_write_tokens", "output_tokens", "reasoning_tokens")
    assert usage == Usage(**dict(zip(names, fixture.counts, strict=True)))
    assert PriceTable({"m": PRICE}, known=False).cost(usage, "m", priced_apart=priced_apart(answer)) == fixture.cost


def test_there_are_at_least_forty_of_them() -> None:
    assert len(FIXTURES) >= 40


@pytest.mark.parametrize("answer", [{}, {"usage": None}, {"usage": {}}, {"usage": []}, {"usage": {"cost": 1}}])
def test_an_answer_that_reports_nothing_has_no_usage(answer: dict[str, Any]) -> None:
    assert read_usage(answer) is None
