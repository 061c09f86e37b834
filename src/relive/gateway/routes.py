"""Where a call goes, and where it goes next when that fails: decisions only, no network and no clock of its own.

A client names a model or a tier. A `Plan` walks through the models that may answer, each at most once, however the
fallbacks point at each other; it decides after each failure whether the same model is tried again, the next one takes
over, or the call is given up. A request's own fault is never tried elsewhere and never cools a route; an upstream's
fault cools it, so that the next calls go elsewhere first.
"""

import random
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Literal

import msgspec

from relive.errors import ReliveError
from relive.llm.endpoint import Endpoint
from relive.llm.errors import (
    AuthenticationError,
    BadRequestError,
    ContextOverflowError,
    ModelUnavailableError,
    PolicyError,
    QuotaExceededError,
    RateLimitedError,
    UpstreamError,
    read_error,
)
from relive.llm.pricing import Price
from relive.llm.retry import RetryPolicy, may_retry

DEEPEST_FALLBACK = 5
"""How many models take over from another, one after the other, for one call."""

COOLDOWN = 15.0
"""Seconds that a failing route stands back, unless the provider names a longer time."""

LONGEST_COOLDOWN = 300.0

OWN_FAULTS = (BadRequestError, PolicyError)
"""Failures that are the request's own: the same everywhere, so nothing else is tried."""

TOO_BIG = (ContextOverflowError,)

OF_THE_KEY = (AuthenticationError, QuotaExceededError, RateLimitedError)
"""Failures that are about the key that was shown: where it is the client's, they say nothing about the route."""


_MOST_REMEMBERED = 1_024  # names that clients asked for


class RouteError(ReliveError, ValueError):
    """The models, tiers or fallbacks are not set up right, or a client names one that there is none of."""


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """A model that calls may go to.

    Attributes:
        name: What clients call it.
        endpoint: Where it is.
        model: Its name there; ``None``: whatever name the client gave.
        api: The API spoken there: ``"openai"`` or ``"anthropic"``.
        price: Its price; ``None``: as `genai-prices` knows it.
        window: Tokens that prompt and answer may have together; ``None``: not known.
        rpm: Requests a minute; ``None``: no limit.
        tpm: Tokens a minute; ``None``: no limit.
        timeout: Seconds for a whole call.
        fallbacks: Models that take over when it fails, in order.
        asks_usage: Whether its streams may be asked for a chunk with the usage.
        named_by_client: Whether `model` is a name that the client made up.
    """

    name: str
    endpoint: Endpoint
    model: str | None = None
    api: Literal["openai", "anthropic"] = "openai"
    price: Price | None = None
    window: int | None = None
    rpm: int | None = None
    tpm: int | None = None
    timeout: float = 600.0
    fallbacks: tuple[str, ...] = ()
    asks_usage: bool = True
    named_by_client: bool = False


class Routes:
    """All models and tiers.

    Args:
        models: In order; the first is where calls go that name none, or one that is not here, where `default` allows.
        tiers: By name, models in order of preference.
        fallbacks: Models that take over for any model, after its own fallbacks.
        open_default: Whether a name that is not here goes unchanged to the first model's endpoint, if that one takes
            any name.

    Attributes:
        warnings: What is odd about the set-up, in sentences.

    Raises:
        RouteError: a name is taken twice, or a fallback or tier names a model that is not there.
    """

    def __init__(
        self,
        models: Iterable[Model],
        *,
        tiers: Mapping[str, Iterable[str]] | None = None,
        fallbacks: Iterable[str] = (),
        open_default: bool = True,
    ) -> None:
        self.models: dict[str, Model] = {}
        for model in models:
            if model.name in self.models:
                raise RouteError(f"Two models are called {model.name!r}; give each its own name.")
            self.models[model.name] = model
        if not self.models:
            raise RouteError("There is no model to send calls to; add a [[models]] table with name and upstream.")
        self.tiers = {name: tuple(members) for name, members in (tiers or {}).items()}
        self.fallbacks = tuple(fallbacks)
        self._open_default = open_default
        self._candidates: dict[str | None, list[Model]] = {}
        self.warnings = self._check()

    def candidates(self, requested: str | None) -> list[Model]:
        """The models that may answer a call, in order, each once.

        Raises:
            RouteError: there is no such model or tier; those that there are, are listed.
        """
        known = self._candidates.get(requested)
        if known is None:
            if len(self._candidates) >= _MOST_REMEMBERED:
                self._candidates.clear()
            known = self._candidates[requested] = self._walk(requested)
        return known

    def _walk(self, requested: str | None) -> list[Model]:
        """The first models that a name stands for, and what takes over from them, level by level."""
        first = self._first(requested)
        found: dict[str, Model] = {}
        level = [model.name for model in first]
        for _ in range(DEEPEST_FALLBACK + 1):
            level = [name for name in dict.fromkeys(level) if name not in found]
            found.update({name: self._named(name, requested) for name in level})
            level = [fallback for name in level for fallback in self.models[name].fallbacks]
        for name in self.fallbacks:
            found.setdefault(name, self.models[name])
        return list(found.values())[: max(len(first), DEEPEST_FALLBACK + 1)]

    @property
    def takes_any_name(self) -> bool:
        """Whether a model that is not here may be asked for, of the first model's endpoint."""
        return self._open_default and next(iter(self.models.values())).model is None

    def listed(self) -> bytes:
        """The answer to ``GET /v1/models``: models and tiers by name."""
        names = [{"id": name, "object": "model", "owned_by": "relive"} for name in [*self.models, *self.tiers]]
        return msgspec.json.encode({"object": "list", "data": names})

    def _named(self, name: str, requested: str | None) -> Model:
        """The model; one that takes any name is called as the client asked."""
        model, asked = self.models[name], None if requested is None else asked_name(requested)
        if model.model is None and asked is not None and asked not in self.models and asked not in self.tiers:
            return msgspec.structs.replace(model, model=asked, named_by_client=True)
        return model if model.model is not None else msgspec.structs.replace(model, model=name)

    def _first(self, requested: str | None) -> list[Model]:
        if requested is None:
            return [next(iter(self.models.values()))]
        name = asked_name(requested)
        if name in self.tiers:
            return [self.models[member] for member in self.tiers[name]]
        if name in self.models:
            return [self.models[name]]
        if self.takes_any_name:
            return [next(iter(self.models.values()))]
        known = ", ".join([*self.models, *self.tiers])
        raise RouteError(f"There is no model or tier {requested!r} here; there are {known}.")

    def _check(self) -> list[str]:
        named = [(f"The tier {tier!r}", member) for tier, members in self.tiers.items() for member in members]
        named += [(f"The model {m.name!r}", fallback) for m in self.models.values() for fallback in m.fallbacks]
        named += [("The list of fallbacks", fallback) for fallback in self.fallbacks]
        for whose, name in named:
            if name not in self.models:
                raise RouteError(f"{whose} names the model {name!r}, which is not there; add it to [[models]].")
        for tier, members in self.tiers.items():
            if not members or tier in self.models:
                raise RouteError(f"The tier {tier!r} must name at least one model and not be called as one.")
        itself = [m.name for m in self.models.values() if m.name in m.fallbacks]
        if itself:
            raise RouteError(f"The model {itself[0]!r} is its own fallback; retries are what tries it again.")
        return [
            f"The fallbacks of {name!r} lead back to it; each model is tried once a call all the same."
            for name in self.models
            if self._leads_back(name)
        ]

    def _leads_back(self, name: str) -> bool:
        seen: set[str] = set()
        ahead = list(self.models[name].fallbacks)
        while ahead:
            following = ahead.pop()
            if following == name:
                return True
            if following not in seen:
                seen.add(following)
                ahead += self.models[following].fallbacks
        return False


def asked_name(requested: str) -> str:
    """The model, tier or function that a client means; TensorZero's clients say which of them it is."""
    if not requested.startswith("tensorzero::"):
        return requested
    return requested.removeprefix("tensorzero::").removeprefix("model_name::").removeprefix("function_name::")


class Cooldowns:
    """Which routes failed lately through a fault of their own.

    Args:
        clock: Monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._until: dict[str, float] = {}

    def failed(self, name: str, error: UpstreamError) -> None:
        """Cools a route after a failure, unless the failure is the request's own."""
        if isinstance(error, (*OWN_FAULTS, *TOO_BIG)):
            return
        seconds = min(LONGEST_COOLDOWN, max(COOLDOWN, error.retry_after or 0.0))
        self._until[name] = max(self._until.get(name, 0.0), self._clock() + seconds)

    def succeeded(self, name: str) -> None:
        """A route that answers is warm again."""
        self._until.pop(name, None)

    def cooling(self, name: str) -> bool:
        """Whether a route stands back at the moment."""
        until = self._until.get(name)
        if until is not None and until <= self._clock():
            del self._until[name]
            until = None
        return until is not None


class Next(msgspec.Struct, frozen=True):
    """What happens next.

    Attributes:
        model: The model that is called.
        wait: Seconds to wait before.
        switched: Whether it takes over from another one.
    """

    model: Model
    wait: float = 0.0
    switched: bool = False


class Plan:
    """The way of one call through the models.

    Args:
        candidates: The models that may answer, in order.
        cooldowns: Routes that stand back are called last.
        policy: How often one model is tried, and how long is waited between; the limit on waiting is the whole call's.
        tokens: How long prompt and answer together are estimated to be; ``None``: not known.
        rng: For the jitter.
        cools: Whether its failures tell anything about a route; what is asked for may simply not be there.
    """

    def __init__(
        self,
        candidates: Iterable[Model],
        cooldowns: Cooldowns,
        policy: RetryPolicy,
        *,
        tokens: int | None = None,
        rng: random.Random | None = None,
        cools: bool = True,
    ) -> None:
        models = list(candidates)
        late = [model for model in models if cooldowns.cooling(model.name)]
        self._ahead = [model for model in models if model not in late] + late if late else models
        self._cooldowns = cooldowns
        self._policy = policy
        self._tokens = tokens
        self._rng = rng or random.Random()
        self._cools = cools
        self._tries = 0
        self._waited = 0.0
        self.model = self._ahead.pop(0)

    def succeeded(self) -> None:
        """The model answered."""
        self._cooldowns.succeeded(self.model.name)

    def after(self, error: UpstreamError, time_left: float, *, clients_key: bool = False) -> Next | None:
        """What follows a failure before the first byte was sent; ``None``: the call is given up.

        Args:
            error: What went wrong.
            time_left: Seconds that this model may still take; another one has a time of its own.
            clients_key: Whether the model was shown the client's own key.
        """
        self._tries += 1
        if isinstance(error, OWN_FAULTS) or (clients_key and isinstance(error, AuthenticationError)):
            return None
        wait = self._wait(error)
        if wait is not None and wait < time_left:
            self._waited += wait
            return Next(self.model, wait)
        if self._cools and not self._of_the_client(error, clients_key):
            self._cooldowns.failed(self.model.name, error)
        following = self._following(error)
        if following is None:
            return None
        self.model, self._tries = following, 0
        return Next(following, switched=True)

    def _of_the_client(self, error: UpstreamError, clients_key: bool) -> bool:
        """Whether a failure comes from what the client brought, its key or a made-up name: others may fare better."""
        if isinstance(error, ModelUnavailableError):
            return self.model.named_by_client
        return clients_key and isinstance(error, OF_THE_KEY)

    def _wait(self, error: UpstreamError) -> float | None:
        """Seconds before the same model is tried again; ``None``: it is not."""
        if self._tries >= self._policy.max_attempts or not may_retry(error) or isinstance(error, ModelUnavailableError):
            return None
        wait = error.retry_after or self._policy.backoff(self._tries, self._rng)
        return wait if self._waited + wait <= self._policy.wait_limit else None

    def _following(self, error: UpstreamError) -> Model | None:
        """The next model; after a prompt that was too long, one whose window is known to fit."""
        if not isinstance(error, TOO_BIG):
            return self._ahead.pop(0) if self._ahead else None
        named = prompt_tokens_in(read_error(error.body)[1])
        needed = max(named or 0, self._tokens or 0, (self.model.window or 0) + 1)
        while self._ahead:
            model = self._ahead.pop(0)
            if model.window is not None and model.window >= needed:
                return model
        return None


_COUNTS = re.compile(r"\d{1,3}(?:,\d{3})+|\d+")


def prompt_tokens_in(words: str) -> int | None:
    """The prompt's length that an error about a too long prompt names: the larger of its numbers; ``None``: none.

    Such an error names the limit, the length, or both, and the length is above the limit.
    """
    numbers = [int(text.replace(",", "")) for text in _COUNTS.findall(words)]
    lengths = [number for number in numbers if 256 <= number <= 100_000_000]
    return max(lengths, default=None)
