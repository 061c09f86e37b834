"""Asks a model for changes: within the caps, once more where the reply cannot be used, and never the same thing twice.

Every reply is one of a few kinds, and each has its own second try: one that was cut at its limit gets twice the room,
one that cannot be read is shown with what is wrong, an empty one is asked for anew in other words; a refusal is taken
for one. What cannot be used after two tries is in quarantine: head and tail are kept as text, and no lesson comes of
it. Each try is recorded as an experience of unknown outcome with its tokens, cost and reply (tag `finished.TAG`), and
with the experiences that it was shown, so that a rollback finds what came of them.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal

import msgspec

from relive.errors import ReliveError
from relive.experience import Transition
from relive.llm import Attempt, BadRequestError, Completion, Upstream, UpstreamError
from relive.reflect.chunking import shortened
from relive.reflect.finished import TAG
from relive.reflect.replies import Answer, UnreadableReplyError, read, response_format
from relive.reflect.spending import Reserved, Spending
from relive.reflect.trajectory import Message

Kind = Literal["answered", "malformed", "truncated", "empty", "refused", "failed"]

TEMPERATURE = 0.3
_TRIES = 2
_KEPT = 2_000  # tokens of a reply that is kept
_AGAIN = (
    "Your reply could not be used: {problem} Reply with the JSON object alone, without any other text: "
    '{{"analysis": "…", "changes": […]}}; an empty list where nothing is to be changed.'
)


class CapReachedError(ReliveError):
    """The next call could go beyond a cap; it was not made."""


class Try(msgspec.Struct, frozen=True, kw_only=True):
    """One call.

    Attributes:
        tier: ``cheap`` or ``strong``.
        model: Who answered.
        kind: What came of it.
        problem: Why it could not be used, in one sentence; empty: it could.
        reply: Of a reply that could not be used, its head and tail; empty: it could, or there was none.
        tokens: What it used; ``None``: not known.
        cost: In nano-USD; ``None``: not known.
        record: The experience that it is recorded as.
    """

    tier: str
    model: str
    kind: Kind
    problem: str = ""
    reply: str = ""
    tokens: int | None = None
    cost: int | None = None
    record: int | None = None


class Asked(msgspec.Struct, frozen=True):
    """What asking came to.

    Attributes:
        answer: The answer; ``None``: none that can be used.
        record: The experience that the reply is recorded as; ``None``: there is none.
        problem: Why there is no answer, or why it is not whole; empty: all is well.
    """

    answer: Answer | None
    record: int | None
    problem: str = ""


class Asker:
    """Asks one model.

    Args:
        model: Who is asked.
        tier: ``cheap`` or ``strong``.
        spending: The caps.
        answer_tokens: How long an answer may be; twice that at the second try, if it was cut.
        keep: Stores a record and gives its id.

    Attributes:
        tries: All calls, in order.
    """

    def __init__(
        self,
        model: Upstream,
        tier: str,
        spending: Spending,
        *,
        answer_tokens: int,
        keep: Callable[[Transition], int | None],
    ) -> None:
        self.model = model
        self.tier = tier
        self.tries: list[Try] = []
        self._spending = spending
        self._answer_tokens = answer_tokens
        self._keep = keep
        self._params: dict[str, Any] = {"response_format": response_format(), "temperature": TEMPERATURE}
        self._limit = "max_tokens"

    def ask(self, messages: Sequence[Message], *, agent: str, experiences: Sequence[int]) -> Asked:
        """Asks, and once more where the reply cannot be used.

        Args:
            messages: The prompt.
            agent: Whose episodes it holds.
            experiences: Ids of the experiences that it holds.

        Raises:
            CapReachedError: nothing was sent, since it could go beyond a cap.
            UpstreamError: the first call failed.
        """
        limit, prompt, best = self._answer_tokens, list(messages), Asked(None, None)
        for number in range(1, _TRIES + 1):
            try:
                completion = self._call(prompt, limit)
            except (CapReachedError, UpstreamError) as error:
                if isinstance(error, UpstreamError):
                    self._note_failure(error, agent, experiences)
                if number == 1:
                    raise
                return msgspec.structs.replace(best, problem=f"{best.problem} Then: {error}")
            kind, answer, problem = _judge(completion)
            record = self._note(completion, kind, problem, agent, experiences)
            if kind == "answered":
                return Asked(answer, record)
            if best.answer is None:
                best = Asked(answer if answer is not None and answer.changes else None, record, problem)
            if kind == "refused":
                break
            if kind == "truncated":
                limit, prompt = 2 * self._answer_tokens, list(messages)
            else:
                prompt = [*messages, *_again(completion, problem, self._answer_tokens)]
        return best

    def _call(self, messages: Sequence[Message], limit: int) -> Completion:
        """One call, within the caps; a server that does not take a field is asked without it from then on."""
        while True:
            params = {**self._params, self._limit: limit}
            reserved = self._spending.reserve(self.model, messages, params)
            if not self._spending.admits(reserved, self.model.policy.max_attempts):
                raise CapReachedError(
                    f"The next request to {self.model.model} may take {reserved.tokens:,} tokens a try, which the caps "
                    "do not leave; raise them, or make requests smaller with --window."
                )
            try:
                completion = self.model.chat_sync(messages, **params)
            except UpstreamError as error:
                self._settle_lost(error.attempts, reserved)
                if not self._adapt(error):
                    raise
            else:
                self._settle_lost(completion.attempts[:-1], reserved)
                self._spending.settle(reserved, completion.usage, completion.cost)
                return completion

    def _settle_lost(self, attempts: Sequence[Attempt], reserved: Reserved) -> None:
        """Counts tries that may have been billed: those without an answer. An answer with an error status is free."""
        for attempt in attempts:
            if attempt.kind is not None and (attempt.status is None or attempt.status < 400):
                self._spending.settle(reserved, None, None)

    def _adapt(self, error: UpstreamError) -> bool:
        """Leaves out what the server says it does not take; False: it says nothing of the kind, or all is left out."""
        if not isinstance(error, BadRequestError):
            return False
        words = error.body.decode(errors="replace").lower()
        if self._limit == "max_tokens" and "max_completion_tokens" in words:
            self._limit = "max_completion_tokens"
            return True
        for field, names in {
            "temperature": ("temperature",),
            "response_format": ("response_format", "json_schema", "schema", "grammar"),
        }.items():
            if field in self._params and any(name in words for name in names):
                del self._params[field]
                return True
        return False

    def _note(
        self, completion: Completion, kind: Kind, problem: str, agent: str, experiences: Sequence[int]
    ) -> int | None:
        reply = shortened(_said(completion), _KEPT)
        record = self._keep(
            self._record(
                agent,
                experiences,
                action={"role": "assistant", "content": reply},
                usage=completion.usage,
                cost=completion.cost,
                latency_ms=completion.latency_ms,
                policy=completion.model,
                error=problem or None,
            )
        )
        usage = completion.usage
        known = usage is not None and usage.input_tokens is not None and usage.output_tokens is not None
        self.tries.append(
            Try(
                tier=self.tier,
                model=completion.model,
                kind=kind,
                problem=problem,
                reply=reply if problem else "",
                tokens=(usage.input_tokens or 0) + (usage.output_tokens or 0) if usage is not None and known else None,
                cost=completion.cost,
                record=record,
            )
        )
        return record

    def _note_failure(self, error: UpstreamError, agent: str, experiences: Sequence[int]) -> None:
        record = self._keep(
            self._record(agent, experiences, action=None, latency_ms=error.latency_ms, error=str(error))
        )
        self.tries.append(Try(tier=self.tier, model=self.model.model, kind="failed", problem=str(error), record=record))

    def _record(self, agent: str, experiences: Sequence[int], **fields: Any) -> Transition:
        return Transition(
            state={"reflection": self.tier, "experiences": list(experiences)},
            agent=agent,
            tags=(TAG, self.tier),
            info={"recalled": [[number, None] for number in experiences]},
            **{"policy": self.model.model, **fields},
        )


def _judge(completion: Completion) -> tuple[Kind, Answer | None, str]:
    """What kind of reply it is, its answer (of one that was cut: what is whole of it), and what is wrong."""
    said, reason = _said(completion), completion.finish_reason
    if reason == "content_filter" or (not said.strip() and completion.message.get("refusal")):
        return "refused", None, "The model refused to answer."
    try:
        answer: Answer | None = read(said)
        problem = ""
    except UnreadableReplyError as error:
        answer, problem = None, str(error)
    if reason in ("length", "max_tokens"):
        return "truncated", answer, "The reply was cut at its limit of tokens."
    if not said.strip():
        return "empty", None, "The reply is empty."
    return ("malformed" if answer is None else "answered"), answer, problem


def _said(completion: Completion) -> str:
    """The reply's text, or what it put into a tool's arguments instead."""
    return completion.text or "\n".join(call.arguments for call in completion.tool_calls)


def _again(completion: Completion, problem: str, tokens: int) -> list[Message]:
    said = _said(completion)
    reply = [{"role": "assistant", "content": shortened(said, tokens // 2)}] if said.strip() else []
    return [*reply, {"role": "user", "content": _AGAIN.format(problem=problem)}]
