"""What a call cost, in whole nano-USD (10^-9 USD).

Prices come from the package `genai-prices`, under the user's own table. An absent count stays ``None`` and so does an
unknown price: neither is ever taken for zero.
"""

from collections.abc import Mapping
from datetime import datetime
from decimal import ROUND_HALF_EVEN, Context, Decimal, InvalidOperation
from fractions import Fraction
from functools import lru_cache
from math import lcm
from typing import Any

import msgspec

from relive.errors import ReliveError
from relive.experience import Usage
from relive.llm.endpoint import is_this_machine

NANO_PER_USD = 10**9
_TOKENS_PER_PRICE = 10**6
_EXACT = Context(prec=60, rounding=ROUND_HALF_EVEN)


class Price(msgspec.Struct, frozen=True, kw_only=True):
    """What a model costs, in USD for a million tokens.

    Attributes:
        input: For tokens of the prompt.
        output: For tokens of the answer, reasoning included.
        cached: For prompt tokens read from the cache; ``None``: as `input`.
        cache_write: For prompt tokens written into the cache; ``None``: as `input`.
    """

    input: Decimal
    output: Decimal
    cached: Decimal | None = None
    cache_write: Decimal | None = None

    @classmethod
    def of(cls, input: object, output: object, cached: object = None, cache_write: object = None) -> "Price":  # noqa: A002 - as providers call it
        """A price from numbers or their text; a float counts as the decimal number that it is printed as.

        Raises:
            ReliveError: an amount is not a number of at least 0.
        """
        return cls(
            input=_amount("input", input),
            output=_amount("output", output),
            cached=None if cached is None else _amount("cached", cached),
            cache_write=None if cache_write is None else _amount("cache_write", cache_write),
        )

    def nano(self, usage: Usage) -> int | None:
        """The price of a call in nano-USD, rounded half to even; ``None``: counts are absent or contradict each other.

        Whole numbers all the way: each price is so many units of which a nano-USD for a million tokens has `scale`.
        """
        if usage.input_tokens is None or usage.output_tokens is None:
            return None
        cached, written = usage.cached_tokens or 0, usage.cache_write_tokens or 0
        plain = usage.input_tokens - cached - written
        if plain < 0:
            return None
        scale, for_plain, for_cached, for_written, for_output = _units(self)
        total = plain * for_plain + cached * for_cached + written * for_written + usage.output_tokens * for_output
        whole, rest = divmod(total, scale)
        return whole + (2 * rest > scale or (2 * rest == scale and whole % 2 == 1))


@lru_cache(1024)
def _units(price: Price) -> tuple[int, int, int, int, int]:
    """Units of a nano-USD, then the prices of a plain, cached, written and answered token in these units."""
    cached = price.input if price.cached is None else price.cached
    written = price.input if price.cache_write is None else price.cache_write
    given = (price.input, cached, written, price.output)
    prices = [Fraction(each) * NANO_PER_USD / _TOKENS_PER_PRICE for each in given]
    scale = lcm(*(each.denominator for each in prices))
    units = [int(each * scale) for each in prices]
    return scale, units[0], units[1], units[2], units[3]


class PriceTable:
    """Prices by model: the user's own ones first, then those that `genai-prices` knows for the endpoint.

    The same model costs differently at different endpoints, so known prices are looked up by the endpoint's address; an
    address that is not in the list (a server of one's own, a company's proxy) has no known price.

    Args:
        own: Prices by model name. A name that ends in ``*`` holds for all models that begin so; an exact name comes
            first, then the longest beginning. A price is a `Price` or a mapping of its fields.
        known: Whether to look into `genai-prices` for models not in `own`.

    Raises:
        ReliveError: a price is not valid; the message names the model.
    """

    def __init__(self, own: Mapping[str, Price | Mapping[str, Any]] | None = None, *, known: bool = True) -> None:
        self._own = {name: _price_of(name, price) for name, price in (own or {}).items()}
        self._known = known

    def cost(
        self,
        usage: Usage | None,
        *models: str | None,
        own: Price | None = None,
        base_url: str | None = None,
        service_tier: str | None = None,
        priced_apart: bool = False,
        at: datetime | None = None,
    ) -> int | None:
        """The price of a call in nano-USD, rounded half to even once, at the end; ``None``: not known.

        Args:
            usage: What the provider counted; ``None``: nothing is known.
            models: Names of the model, the best first (as the provider answered, as it was asked for).
            own: The price that holds for this endpoint, whatever the model; ``None``: as the model is known.
            base_url: The endpoint's address, which tells the provider.
            service_tier: The provider's tier that served the call; ``None``: the usual one.
            priced_apart: Whether some of it has a price of its own, which is not known here.
            at: When the call was made; ``None``: now.
        """
        if usage is None or priced_apart:
            return None
        names = [model for model in models if model]
        if own is None:
            own = next((price for name in names if (price := self._own_price(name)) is not None), None)
        if own is not None:
            return own.nano(usage)
        candidates = names if self._known and base_url is not None and not is_this_machine(base_url) else []
        known = (_known_cost(usage, name, base_url, service_tier, at) for name in candidates)
        usd = next((amount for amount in known if amount is not None), None)
        return None if usd is None else int(_EXACT.to_integral_value(_EXACT.multiply(usd, Decimal(NANO_PER_USD))))

    def _own_price(self, model: str) -> Price | None:
        if model in self._own:
            return self._own[model]
        beginnings = [name for name in self._own if name.endswith("*") and model.startswith(name[:-1])]
        return self._own[max(beginnings, key=len)] if beginnings else None


def _known_cost(
    usage: Usage, model: str, base_url: str | None, service_tier: str | None, at: datetime | None
) -> Decimal | None:
    import genai_prices  # takes 0.4 s, and many never ask for a price

    if usage.input_tokens is None or usage.output_tokens is None:
        return None
    counts = genai_prices.Usage(
        input_tokens=usage.input_tokens,
        cache_read_tokens=usage.cached_tokens,
        cache_write_tokens=usage.cache_write_tokens,
        output_tokens=usage.output_tokens,
    )
    try:
        price = genai_prices.calc_price(
            counts,
            model,
            provider_api_url=base_url,
            genai_request_timestamp=at,
            price_context={"service_tier": service_tier} if service_tier else None,
        )
    except (LookupError, ValueError):  # an endpoint or model that is not listed; counts that contradict each other
        return None
    listed = price.model_price
    # The list has models without prices, and their cost would come out as 0.
    missing = (usage.input_tokens and listed.input_mtok is None) or (usage.output_tokens and listed.output_mtok is None)
    return None if missing else price.total_price


def _price_of(name: str, price: Price | Mapping[str, Any]) -> Price:
    if isinstance(price, Price):
        return price
    try:
        return Price.of(**price)
    except (TypeError, ReliveError) as error:
        raise ReliveError(
            f"The price of {name!r} is not valid ({error}). Give USD for a million tokens: input, output, cached, "
            "cache_write."
        ) from error


def _amount(field: str, value: object) -> Decimal:
    try:
        amount = Decimal(str(value))
    except InvalidOperation:
        amount = Decimal("NaN")
    if not amount.is_finite() or amount < 0:
        raise ReliveError(f"{field} is {value!r}, not a number of at least 0")
    return amount
