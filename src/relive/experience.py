"""The records that everything else speaks: `Transition`, `Usage`, `TokenTrace` and `Feedback`.

A transition's payload never changes after it is stored. What becomes known later (a reward, a demonstration) arrives as
`Feedback` and lives beside it. Absent is never zero: an unknown reward, price or log-probability is ``None``, and an
unknown outcome is never a success.
"""

import math
import uuid
from datetime import UTC, datetime
from typing import Annotated, Any, ClassVar, Literal, Self

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Meta

from relive.errors import InvalidExperienceError

SCHEMA_VERSION = 1
"""Version of the record's shape, written into every file that holds it."""

Outcome = Literal["success", "failure", "unknown"]
Count = Annotated[int, Meta(ge=0)]
_NUMBER = (float, int, np.floating, np.integer)


def new_episode_id() -> str:
    """An episode id that no other process will choose (128 random bits, 32 hexadecimal digits)."""
    return uuid.uuid4().hex


def now() -> datetime:
    """The present time in UTC, aware of its zone."""
    return datetime.now(UTC)


class _Record(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, frozen=True):
    """Common behaviour: made from outside data with every field checked, and turned back into JSON values.

    A record never changes once it is made; `msgspec.structs.replace` gives a changed copy.
    """

    _numbers: ClassVar[tuple[str, ...]] = ()  # fields that hold a finite number or None

    def __post_init__(self) -> None:
        for field in self._numbers:
            value = getattr(self, field)
            if value is None:
                continue
            if not isinstance(value, _NUMBER):
                raise InvalidExperienceError(
                    f"{type(self).__name__}.{field} is {value!r}; it must be a number or None."
                )
            try:
                number = float(value)
            except OverflowError:
                number = math.inf
            if not math.isfinite(number):
                raise InvalidExperienceError(
                    f"{type(self).__name__}.{field} is {number}; leave it None when it is not known."
                )
            if type(value) is not float:  # True, an integer, a number of NumPy
                msgspec.structs.force_setattr(self, field, number)

    @classmethod
    def from_dict(cls, data: object) -> Self:
        """Makes a record from outside data (for example parsed JSON), checking every field.

        Raises:
            InvalidExperienceError: a field is unknown, missing, of the wrong type or out of range; it is named.
        """
        try:
            return msgspec.convert(data, cls, dec_hook=_decode)
        except msgspec.ValidationError as error:
            raise InvalidExperienceError(f"Not a valid {cls.__name__}: {error}") from error

    def to_dict(self) -> dict[str, Any]:
        """The record as JSON values; fields at their default are kept, arrays become lists, times ISO 8601 text."""
        result: dict[str, Any] = msgspec.to_builtins(self, enc_hook=_encode)
        return result


class Usage(_Record, frozen=True):
    """Tokens of one call, as the provider counted them. ``None``: the provider did not say.

    Attributes:
        input_tokens: Tokens of the prompt, cached ones included.
        cached_tokens: Part of `input_tokens` read from the provider's cache.
        cache_write_tokens: Part of `input_tokens` written into the provider's cache.
        output_tokens: Tokens of the answer, reasoning included.
        reasoning_tokens: Part of `output_tokens` spent on hidden reasoning.
    """

    input_tokens: Count | None = None
    cached_tokens: Count | None = None
    cache_write_tokens: Count | None = None
    output_tokens: Count | None = None
    reasoning_tokens: Count | None = None


class TokenTrace(_Record, frozen=True, eq=False):
    """The tokens of one rollout, exactly as the sampler produced them (never from re-tokenising text).

    Attributes:
        token_ids: int32 ``[T]``, prompt and answer.
        mask: uint8 ``[T]``, 1 where the policy sampled the token.
        logprobs: float32 ``[T]``, natural logarithm under the policy that sampled; ``None`` where nobody recorded them.
            Positions with mask 0 hold any finite value.
        versions: int32 ``[T]``, the policy version that sampled each token; ``None``: not known.
        temperature: The sampler's temperature; ``None``: not known.
        top_p: The sampler's nucleus bound; ``None``: not known.
        tokenizer: Hash of the tokenizer; ``None``: not known, then no other model may train on it.
    """

    _numbers = ("temperature", "top_p")

    token_ids: npt.NDArray[np.int32]
    mask: npt.NDArray[np.uint8]
    logprobs: npt.NDArray[np.float32] | None = None
    versions: npt.NDArray[np.int32] | None = None
    temperature: float | None = None
    top_p: float | None = None
    tokenizer: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for field, dtype in _TRACE_DTYPES.items():
            value = getattr(self, field)
            if value is not None:
                msgspec.structs.force_setattr(self, field, _as_array(field, value, dtype))
        length = len(self.token_ids)
        for field in _TRACE_DTYPES:
            value = getattr(self, field)
            if value is not None and len(value) != length:
                raise InvalidExperienceError(
                    f"TokenTrace.{field} has {len(value)} entries but token_ids has {length}; they must be equal."
                )
        if self.mask.max(initial=0) > 1:
            raise InvalidExperienceError("TokenTrace.mask may hold only 0 and 1.")
        if self.logprobs is not None and not np.isfinite(self.logprobs).all():
            raise InvalidExperienceError(
                "TokenTrace.logprobs holds a value that is not finite; pass None where they were not recorded."
            )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TokenTrace):
            return NotImplemented
        return all(_same(getattr(self, f), getattr(other, f)) for f in self.__struct_fields__)


class Transition(_Record, frozen=True):
    """One step of an agent: what it saw, what it did, and what came of it.

    Attributes:
        state: What the agent saw; any JSON value (for an LLM: messages and tools).
        action: What it did; any JSON value (for an LLM: the assistant's message).
        next_state: What it saw next; ``None`` when the episode ended or nothing is known.
        reward: The step's reward; ``None``: not known yet.
        terminated: The task came to an end of its own (Gymnasium's meaning): nothing is bootstrapped from `next_state`.
        truncated: The episode was cut off from outside, for example by a time limit.
        outcome: Whether it succeeded; ``"unknown"`` never counts as success.
        agent: Who acted.
        episode_id: Steps with one id belong to one episode; by default each transition is an episode of its own.
        step: Position in the episode, from 0.
        parent: Id of the stored experience that this one belongs under (an attempt of a call); ``None``: none.
        group_id: Rollouts of one prompt share it; ``None``: not part of a group.
        tags: Free labels.
        policy: Name of the policy or model that acted; ``None``: not known.
        policy_version: Its version; ``None``: not versioned.
        usage: Tokens of the call; ``None`` for an action that called no model, and for a trainer's rollout.
        cost: Price of the call in nano-USD (10^-9 USD), exact; ``None``: the price is not known (never 0 for unknown).
        latency_ms: From request to whole answer, in milliseconds; ``None``: not measured.
        error: What went wrong, in one sentence; ``None``: nothing did.
        created_at: When it happened, UTC.
        tokens: The rollout's tokens, for training; ``None`` for an agent that only sees text.
        info: What else was recorded about how it came about, a JSON object (of a call: why it finished, when its first
            piece came, the provider's id of the answer); ``None``: nothing.
    """

    _numbers = ("reward", "latency_ms")

    state: Any
    action: Any
    next_state: Any = None
    reward: float | None = None
    terminated: bool = False
    truncated: bool = False
    outcome: Outcome = "unknown"
    agent: str = "default"
    episode_id: str = msgspec.field(default_factory=new_episode_id)
    step: Count = 0
    parent: int | None = None
    group_id: str | None = None
    tags: tuple[str, ...] = ()
    policy: str | None = None
    policy_version: int | None = None
    usage: Usage | None = None
    cost: Count | None = None
    latency_ms: Annotated[float, Meta(ge=0)] | None = None
    error: str | None = None
    created_at: Annotated[datetime, Meta(tz=True)] = msgspec.field(default_factory=now)
    tokens: TokenTrace | None = None
    info: Any = None


class Feedback(_Record, frozen=True):
    """Something learnt about an experience after the fact. The same `source` and `key` replaces what it said before.

    Attributes:
        experience_id: The stored experience it is about; ``None``: it is about a whole episode.
        episode_id: The episode it is about; ``None``: it is about one experience. Exactly one of the two is given.
        source: Who says so (a person, a test, a judge).
        key: Which aspect, when a source judges several.
        reward: The reward by this source; ``None``: it gives none.
        comment: Free text for people.
        demonstration: The right action, any JSON value; ``None``: none was shown.
    """

    _numbers = ("reward",)

    experience_id: int | None = None
    episode_id: str | None = None
    source: str = "user"
    key: str = "reward"
    reward: float | None = None
    comment: str | None = None
    demonstration: Any = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.experience_id is None) == (self.episode_id is None):
            raise InvalidExperienceError("Feedback needs exactly one of experience_id and episode_id.")
        if self.reward is None and self.comment is None and self.demonstration is None:
            raise InvalidExperienceError("Feedback says nothing: give a reward, a comment or a demonstration.")


_TRACE_DTYPES = {"token_ids": np.int32, "mask": np.uint8, "logprobs": np.float32, "versions": np.int32}


def _as_array(field: str, value: Any, dtype: Any) -> npt.NDArray[Any]:
    """A one-dimensional array of `dtype` with the same values, or an error that names the field."""
    try:
        given = np.asarray(value)
        array = given.astype(dtype)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidExperienceError(f"TokenTrace.{field} is not an array of {np.dtype(dtype)}: {error}") from error
    if array.ndim != 1:
        raise InvalidExperienceError(f"TokenTrace.{field} has shape {array.shape}; it must have one dimension.")
    if np.issubdtype(dtype, np.integer) and not np.array_equal(array, given):
        raise InvalidExperienceError(f"TokenTrace.{field} holds values that {np.dtype(dtype)} cannot.")
    return np.ascontiguousarray(array)


def _same(a: Any, b: Any) -> bool:
    return np.array_equal(a, b) if isinstance(a, np.ndarray) and isinstance(b, np.ndarray) else bool(a is b or a == b)


def _encode(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    raise NotImplementedError(f"Objects of type {type(value).__name__} are not JSON values.")


def _decode(_kind: Any, value: Any) -> Any:
    return np.asarray(value)  # only the arrays of a TokenTrace come here; its __post_init__ gives them their dtype
