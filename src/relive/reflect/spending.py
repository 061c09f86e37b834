"""What a run may spend at most, in tokens and in money: each call's most is reserved before it is made.

A tokenizer makes no more tokens of a text than it has bytes, and a server writes no more than it was told to; so a
request's bytes and its limit on the answer bound what it can use. Only what fits under the caps together with what was
spent is sent. What a call really used is known afterwards; where a server does not say, all that was reserved counts.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from relive.errors import ReliveError
from relive.experience import Usage
from relive.llm import Upstream

_TEMPLATE = 64  # tokens that a chat template adds for each message, at most


class UnknownPriceError(ReliveError):
    """The money cap cannot be kept, since a model's price is not known."""


class Reserved(msgspec.Struct, frozen=True):
    """The most that a call can use: tokens, and nano-USD (``None``: its price is not known)."""

    tokens: int
    cost: int | None


class Spending:
    """What was spent, and may be.

    Args:
        max_tokens: Most tokens of prompts and answers together; ``None``: no limit.
        max_cost: Most nano-USD; ``None``: no limit.

    Attributes:
        tokens: Spent so far.
        assumed: Those of them that no server counted: a try without an answer, or an answer without its usage.
        cost: Nano-USD spent so far, as far as prices are known.
        unknown: Calls whose price is not known.

    Raises:
        ValueError: a cap is negative.
    """

    def __init__(self, max_tokens: int | None = None, max_cost: int | None = None) -> None:
        if (max_tokens or 0) < 0 or (max_cost or 0) < 0:
            raise ValueError("max_tokens and max_cost must be at least 0.")
        self.max_tokens, self.max_cost = max_tokens, max_cost
        self.tokens = self.assumed = self.cost = self.unknown = 0

    def check(self, *models: Upstream | None) -> None:
        """Makes sure that the money cap can be kept with these models.

        Raises:
            UnknownPriceError: it cannot; the message names the fix.
        """
        for model in models:
            if self.max_cost is not None and model is not None and _most(model, 1_000, 1_000) is None:
                raise UnknownPriceError(
                    f"The price of {model.model} at {model.base_url} is not known, so a cap in money cannot be kept. "
                    f"Give it (--price {model.model}=INPUT,OUTPUT, in USD for a million tokens), or cap tokens only."
                )

    def reserve(self, model: Upstream, messages: Sequence[Mapping[str, Any]], params: Mapping[str, Any]) -> Reserved:
        """The most that one try of a call can use.

        Args:
            model: Who is asked.
            messages: The conversation.
            params: The other fields of the request, the limit on the answer among them.
        """
        answer = int(params.get("max_tokens") or params.get("max_completion_tokens") or 0)
        text = json.dumps([messages, params], ensure_ascii=False)
        prompt = len(text.encode("utf-8", "replace")) + _TEMPLATE * len(messages)
        return Reserved(prompt + answer, _most(model, prompt, answer))

    def admits(self, reserved: Reserved, tries: int = 1) -> bool:
        """Whether so many tries can be paid for."""
        tokens = self.max_tokens is None or self.tokens + tries * reserved.tokens <= self.max_tokens
        cost = self.max_cost is None or (
            reserved.cost is not None and self.cost + tries * reserved.cost <= self.max_cost
        )
        return tokens and cost

    def settle(self, reserved: Reserved, usage: Usage | None, cost: int | None) -> None:
        """Counts what a try used; what is not known counts as reserved."""
        if usage is None or usage.input_tokens is None or usage.output_tokens is None:
            self.tokens += reserved.tokens
            self.assumed += reserved.tokens
        else:
            self.tokens += usage.input_tokens + usage.output_tokens
        spent = reserved.cost if cost is None else cost
        self.cost += spent or 0
        self.unknown += spent is None


def _most(model: Upstream, prompt: int, answer: int) -> int | None:
    """The price of so many tokens, however many of the prompt's go through a cache; ``None``: not known."""
    prices = [
        model.price(Usage(input_tokens=prompt, cached_tokens=cached, cache_write_tokens=written, output_tokens=answer))
        for cached, written in ((None, None), (None, prompt), (prompt, None))
    ]
    known = [price for price in prices if price is not None]
    return max(known) if prices[0] is not None else None
