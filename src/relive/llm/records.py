"""What a call to a model leaves behind: `Completion`, `ToolCall` and one `Attempt` for each try.

Nothing here is rounded or rewritten: the message, and above all the text of a tool call's arguments, is what the
provider sent.
"""

from typing import Any, Literal

import msgspec

from relive.experience import Usage

WaitReason = Literal["hint", "backoff"]


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """One try of a call. A call's attempts are in order; the last one is the one that was answered or given up on.

    Attributes:
        status: The HTTP status; ``None``: no answer came.
        kind: The kind of failure (`UpstreamError.kind`); ``None``: it succeeded.
        error: The failure in one sentence, with keys blanked out; ``None``: it succeeded.
        latency_ms: From request to whole answer or failure, in milliseconds, waiting not included.
        waited_ms: How long was waited after it before the next try, in milliseconds; 0 for the last one.
        wait_reason: Whether the provider's hint or the client's own back-off set that wait; ``None``: there was none.
        retry_after: The provider's hint in seconds; ``None``: it gave none that is usable.
        request_id: The provider's own id of the request; ``None``: it named none.
    """

    status: int | None = None
    kind: str | None = None
    error: str | None = None
    latency_ms: float = 0.0
    waited_ms: float = 0.0
    wait_reason: WaitReason | None = None
    retry_after: float | None = None
    request_id: str | None = None


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """A tool that the model asks for.

    Attributes:
        id: The call's id, to be named in the tool's answer.
        name: The function's name.
        arguments: The arguments as the JSON text that the model wrote: it may be broken, and is never rewritten.
    """

    id: str
    name: str
    arguments: str


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """A model's answer, with what it cost and how it came about.

    Attributes:
        message: The assistant's message as the provider sent it; append it to the conversation unchanged.
        finish_reason: Why the model stopped (``"stop"``, ``"length"``, ``"tool_calls"`` ...); ``None``: not said.
        usage: The tokens that the provider counted; ``None``: it counted none.
        cost: The price in nano-USD (10^-9 USD), exact up to the last rounding; ``None``: usage or price is not known.
        latency_ms: From the call to the whole answer in milliseconds, failed tries and waits included.
        attempts: Every try in order; the last one succeeded.
        model: The model that answered, as the provider names it.
        raw: The provider's whole answer.
    """

    message: dict[str, Any]
    finish_reason: str | None
    usage: Usage | None
    cost: int | None
    latency_ms: float
    attempts: tuple[Attempt, ...]
    model: str
    raw: dict[str, Any]

    @property
    def text(self) -> str:
        """The answer's text; empty where the model only calls tools. Text in several parts is joined."""
        content = self.message.get("content")
        if isinstance(content, list):
            return "".join(part["text"] for part in content if isinstance(part, dict) and type(part.get("text")) is str)
        return content if isinstance(content, str) else ""

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """The tools that the model asks for, in order; an entry without a function's name is left out."""
        calls = self.message.get("tool_calls")
        functions = [(call, call.get("function")) for call in calls or () if isinstance(call, dict)]
        return tuple(
            ToolCall(id=str(call.get("id") or ""), name=function["name"], arguments=_text_of(function.get("arguments")))
            for call, function in functions
            if isinstance(function, dict) and isinstance(function.get("name"), str)
        )

    @property
    def waited_ms(self) -> float:
        """All the waiting between tries together, in milliseconds."""
        return sum(attempt.waited_ms for attempt in self.attempts)


def _text_of(arguments: Any) -> str:
    """A few servers send an object where the text of one belongs."""
    if arguments is None:
        return ""
    return arguments if isinstance(arguments, str) else msgspec.json.encode(arguments).decode()
