"""What every API's answers have in common, and the tokens that some servers give with them."""

import json
from abc import ABC, abstractmethod
from typing import Any

import msgspec
import numpy as np

from relive.experience import TokenTrace, Usage
from relive.gateway.sse import Event
from relive.llm.usage import priced_apart, read_usage

END_MARK = b"[DONE]"
"""What ends the streams of OpenAI's older APIs instead of a JSON value."""


class AnswerReader(ABC):
    """Puts one answer together from its whole body, or from the events of its stream as they come.

    A reader never fails: what it does not understand it leaves out, and what it has so far can be asked for any time.

    Attributes:
        id: The provider's id of the answer; ``None``: not seen.
        model: The model that answers, as the provider names it; ``None``: not seen.
        finish_reason: Why it stopped, in the API's own words; ``None``: not seen.
        usage: The tokens reported last; ``None``: none so far.
        priced_apart: Whether some of them have a price of their own; see `relive.llm.usage.priced_apart`.
        service_tier: The provider's tier that served it; ``None``: not said.
        failure: The body of an error that came in place of the rest; ``None``: none.
        ended: The answer came to the end that its API has for it.
        characters: How much text of the answer was received, reasoning and tool arguments included.
        tokens: Token ids and log-probabilities, where the server gives them.
    """

    def __init__(self) -> None:
        self.id: str | None = None
        self.model: str | None = None
        self.finish_reason: str | None = None
        self.usage: Usage | None = None
        self.priced_apart = False
        self.service_tier: str | None = None
        self.failure: bytes | None = None
        self.ended = False
        self.characters = 0
        self.tokens = TokenParts()

    @abstractmethod
    def read_body(self, body: bytes) -> None:
        """Takes a whole answer."""

    @abstractmethod
    def read_event(self, event: Event) -> None:
        """Takes one event of a stream."""

    @abstractmethod
    def action(self) -> Any:
        """What the model did, as far as it is known: JSON values, `msgspec.Raw` for what is kept byte for byte."""


class ValueReader(AnswerReader):
    """An answer of JSON values, with what all APIs of this kind share: errors, names, the end mark."""

    def __init__(self) -> None:
        super().__init__()
        self._bytes = b""  # JSON text of the value that is being read

    def read_body(self, body: bytes) -> None:
        """Takes a whole answer."""
        self._bytes = body
        value = parse(body)
        if not isinstance(value, dict):
            return
        if value.get("error") and not self._is_answer(value):
            self.failure = body
            return
        self._body(value)
        self.ended = self.failure is None

    def read_event(self, event: Event) -> None:
        """Takes one event of a stream."""
        if event.data is None:
            return
        if event.data.strip() == END_MARK:
            self.ended = self.failure is None
            return
        self._bytes = event.data
        value = parse(event.data)
        if not isinstance(value, dict):
            return
        if event.name == b"error" or (value.get("error") and not self._is_answer(value)):
            self.failure = event.data
            return
        self._piece(value)

    @abstractmethod
    def _body(self, value: dict[str, Any]) -> None:
        """Takes a whole answer that is no error."""

    @abstractmethod
    def _piece(self, value: dict[str, Any]) -> None:
        """Takes one piece of a stream that is no error."""

    def _is_answer(self, value: dict[str, Any]) -> bool:
        """Whether a value with an ``error`` field is an answer all the same."""
        return bool(value.get("choices"))

    def _take_usage(self, value: dict[str, Any]) -> None:
        usage = read_usage(value)
        if usage is not None:
            self.usage, self.priced_apart = usage, priced_apart(value)

    def _take_names(self, value: dict[str, Any]) -> None:
        self.id = text_or(value.get("id"), self.id)
        self.model = text_or(value.get("model"), self.model)
        self.service_tier = text_or(value.get("service_tier"), self.service_tier)


class TokenParts:
    """Token ids and log-probabilities of one answer as they come, in the forms of vLLM, llama.cpp and OpenAI.

    vLLM gives ``token_ids`` beside a choice and ``prompt_token_ids`` beside the choices, or token texts of the form
    ``token_id:17``; llama.cpp an ``id`` with each log-probability. OpenAI gives log-probabilities without ids, which
    are no trace: ids never come from re-tokenising text.
    """

    def __init__(self) -> None:
        self._prompt: list[Any] = []
        self._ids: list[Any] = []
        self._ids_with_logprobs: list[Any] = []
        self._logprobs: list[Any] = []

    def take(self, value: dict[str, Any], choice: dict[str, Any]) -> None:
        """Adds what an answer, or a piece of one, says of the tokens of its first choice."""
        prompt = value.get("prompt_token_ids") or choice.get("prompt_token_ids")
        if prompt and not self._prompt and isinstance(prompt, list):
            self._prompt = prompt
        ids = choice.get("token_ids")
        if isinstance(ids, list):
            self._ids += ids
        given = choice.get("logprobs")
        if not isinstance(given, dict):
            return
        content = given.get("content")
        if isinstance(content, list):
            for entry in content:
                if isinstance(entry, dict):
                    self._ids_with_logprobs.append(entry.get("id", _id_in(entry.get("token"))))
                    self._logprobs.append(entry.get("logprob"))
        elif isinstance(given.get("token_logprobs"), list) and isinstance(given.get("tokens"), list):
            self._ids_with_logprobs += [_id_in(token) for token in given["tokens"]]
            self._logprobs += given["token_logprobs"]

    def trace(self, temperature: float | None, top_p: float | None) -> TokenTrace | None:
        """The trace of prompt and answer; ``None`` where the server did not give every id of the answer.

        Without the prompt's ids the trace holds the answer alone. A log-probability that is missing makes all of them
        absent: it is never 0.
        """
        answer = self._ids or self._ids_with_logprobs
        if not answer or not all(type(i) is int and 0 <= i < 2**31 for i in (*self._prompt, *answer)):
            return None
        logprobs = None
        if len(self._logprobs) == len(answer) and all(type(p) in (int, float) for p in self._logprobs):
            values = np.array([0.0] * len(self._prompt) + self._logprobs, np.float32)
            logprobs = values if np.isfinite(values).all() else None
        return TokenTrace(
            token_ids=np.array([*self._prompt, *answer], np.int32),
            mask=np.array([0] * len(self._prompt) + [1] * len(answer), np.uint8),
            logprobs=logprobs,
            temperature=temperature,
            top_p=top_p,
        )


def parse(data: bytes) -> Any:
    """The value of JSON text; ``None`` where it is none.

    Takes what a strict reader refuses and servers send all the same: halves of a surrogate pair, cut apart by a stream.
    """
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def is_only_usage(event: Event) -> bool:
    """Whether an event is nothing but the usage of a chat or text completion: the chunk that has to be asked for."""
    if event.data is None or b'"usage"' not in event.data:
        return False
    value = parse(event.data)
    return isinstance(value, dict) and value.get("choices") == [] and isinstance(value.get("usage"), dict)


def text_or(value: Any, otherwise: str | None) -> str | None:
    """The value if it is text with something in it, else the other."""
    return value if isinstance(value, str) and value else otherwise


def dictionaries(value: Any) -> list[dict[str, Any]]:
    """Those elements of a list that are objects; empty for what is no list."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _id_in(token: Any) -> int | None:
    digits = token.removeprefix("token_id:") if isinstance(token, str) and token.startswith("token_id:") else ""
    return int(digits) if digits.isdecimal() else None
