"""What a number of tokens would cost with one model or another, before there is any data."""

from collections.abc import Iterable

import msgspec

from relive.experience import Usage
from relive.llm.pricing import PriceTable


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """What one model would cost.

    Attributes:
        model: Its name.
        input_tokens: Tokens of prompts.
        output_tokens: Tokens of answers.
        cost: In nano-USD; ``None``: the price is not known.
    """

    model: str
    input_tokens: int
    output_tokens: int
    cost: int | None


def compare(
    models: Iterable[str], prices: PriceTable, *, tokens: int, answer_share: float, base_url: str | None = None
) -> list[Estimate]:
    """One estimate for each model, in the order given.

    Args:
        models: Their names.
        prices: What they cost.
        tokens: Of prompts and answers together.
        answer_share: Which part of them answers are, from 0 to 1.
        base_url: The endpoint's address, for prices that are known by it.
    """
    answers = round(tokens * answer_share)
    usage = Usage(input_tokens=tokens - answers, output_tokens=answers)
    return [
        Estimate(
            model=model,
            input_tokens=tokens - answers,
            output_tokens=answers,
            cost=prices.cost(usage, model, base_url=base_url),
        )
        for model in models
    ]
