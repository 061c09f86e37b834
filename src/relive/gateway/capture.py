"""Bytes of one call in, a `Transition` out; and the bytes that the client gets.

A `Capture` does no input or output and keeps no clock: it is told when things happen. It can be asked for its
transition at any moment, so that a call cut off in the middle leaves what was received until then. It never raises for
what an upstream sends: what cannot be read is recorded as such.
"""

from datetime import datetime
from typing import Any, Literal

import msgspec

from relive.experience import TokenTrace, Transition, Usage
from relive.gateway.conversations import Step
from relive.gateway.decoding import BodyDecoder
from relive.gateway.dialects.raw import RawReader
from relive.gateway.dialects.reader import AnswerReader, dictionaries, parse
from relive.gateway.estimates import TokenEstimates
from relive.gateway.identity import Identity
from relive.gateway.request import CallRequest
from relive.gateway.stream import StreamedAnswer
from relive.llm.errors import UpstreamError, classify, describe
from relive.llm.pricing import Price, PriceTable
from relive.llm.records import Attempt
from relive.storage.record import NEVER_LEARNT

Status = Literal["complete", "failed", "interrupted", "client_disconnected"]
"""How a call ended. ``interrupted``: gateway or upstream broke off; ``client_disconnected``: the client left."""

LARGEST_ANSWER = 64 << 20
"""Bytes of an answer that are read for the record; what comes after is forwarded and not recorded."""

_ENDINGS = {
    "interrupted": "The answer broke off before its end.",
    "client_disconnected": "The client left before the answer was whole.",
}


class Upstream(msgspec.Struct, frozen=True, kw_only=True):
    """Whom a call went to.

    Attributes:
        name: The route's name.
        model: The model's name there.
        base_url: The endpoint's address, which tells the provider and so the price.
        shown: The same without secrets, for messages.
        key: The provider's key, blanked out wherever it appears; ``None``: none.
        price: The route's own price; ``None``: as the model is known there.
    """

    name: str
    model: str | None
    base_url: str
    shown: str
    key: str | None = None
    price: Price | None = None


class Capture:
    """One call as it goes by.

    Args:
        request: What the client asked for.
        identity: What the client says of itself.
        place: The episode and step that it belongs to.
        agent: Who acts, if the client does not say so.
        created_at: When the request arrived, UTC.
        estimates: Counts tokens where the provider does not; learns where it does.
        with_tokens: Whether token ids and log-probabilities are recorded where the server gives them.
    """

    def __init__(
        self,
        request: CallRequest,
        identity: Identity,
        place: Step,
        *,
        agent: str,
        created_at: datetime,
        estimates: TokenEstimates,
        with_tokens: bool = True,
    ) -> None:
        self.request = request
        self.place = place
        self.created_at = created_at
        self.upstream: Upstream | None = None
        self.http_status: int | None = None
        self._reader: AnswerReader = RawReader()
        self._identity = identity
        self._agent = identity.agent or agent
        self._estimates = estimates
        self._with_tokens = with_tokens
        self._state = request.state()
        self._stream: StreamedAnswer | None = None
        self._decoder = BodyDecoder(None)
        self._body: list[bytes] = []
        self._received = 0
        self._drop_usage = False
        self._full = False
        self._first_piece_ms: float | None = None
        self._error: str | None = None
        self._error_kind: str | None = None
        self._info: dict[str, Any] = {}
        self.repeats = False
        self._attempts: list[tuple[str, Attempt]] = []

    def note(self, **facts: Any) -> None:
        """Adds facts to the record's `info`; those that are ``None`` are left out."""
        self._info.update({name: fact for name, fact in facts.items() if fact is not None})

    def attempted(self, model: str, attempt: Attempt) -> None:
        """One try failed."""
        self._attempts.append((model, attempt))

    def forwarded(self, upstream: Upstream, *, drop_usage: bool = False) -> None:
        """The request goes to this upstream; whatever an earlier one answered is forgotten.

        Args:
            upstream: Whom it goes to.
            drop_usage: Take the chunk with the usage out of the stream: the gateway asked for it, the client did not.
        """
        self.upstream = upstream
        self._drop_usage = drop_usage
        self._error = self._error_kind = self.http_status = None

    def repeat(self, body: bytes, content_type: str, first: bytes) -> None:
        """The answer of an earlier call, whose record is `first`, is given again, and costs nothing."""
        self.begin(200, content_type)
        self.feed(body, None)
        self.end()
        self.repeats = True
        self.note(cached=first.hex())

    def begin(self, status: int, content_type: str | None, content_encoding: str | None = None) -> None:
        """The upstream's answer begins."""
        self.http_status = status
        understood = self.request.understood and status < 400
        self._reader = self.request.dialect.reader() if understood else RawReader()
        self._decoder = BodyDecoder(content_encoding)
        streamed = (content_type or "").lower().startswith("text/event-stream")
        dropping = self._drop_usage and self._decoder.plain
        self._stream = StreamedAnswer(self._reader, drop_usage=dropping) if streamed else None
        self._body, self._received, self._full, self._first_piece_ms = [], 0, False, None

    @property
    def streamed(self) -> bool:
        """Whether the answer comes as a stream of events."""
        return self._stream is not None

    @property
    def reader(self) -> AnswerReader:
        """What was read of the answer so far, all of it that came."""
        if self._stream is not None:
            self._stream.read()
        return self._reader

    def feed(self, piece: bytes, elapsed_ms: float | None) -> bytes:
        """Takes the next bytes of the answer.

        Args:
            piece: As the upstream sent them.
            elapsed_ms: Since the request arrived, in milliseconds; ``None``: not known.

        Returns:
            What the client gets now: the same bytes, or, where the usage is taken out, those of whole events.
        """
        if self._first_piece_ms is None and piece:
            self._first_piece_ms = elapsed_ms
        if self._full:
            return piece
        text = piece if self._decoder.plain else self._decoder.decode(piece)
        self._received += len(text)
        if self._received > LARGEST_ANSWER:
            return self._stop_reading() + piece
        if self._stream is None:
            self._body.append(text)
            return piece
        kept = self._stream.feed(text)
        return kept if self._decoder.plain else piece

    def end(self) -> bytes:
        """The upstream's answer is over; gives the bytes that were held back for the client."""
        if self._full:
            return b""
        if self._stream is None:
            self._read_body()
            return b""
        return self._stream.end()

    def fail(self, error: UpstreamError | str, kind: str | None = None) -> None:
        """The call failed for a reason that is not in the answer's bytes."""
        self._error, self._error_kind = str(error), kind
        if isinstance(error, UpstreamError):
            self._error_kind = error.kind
            self.http_status = error.status or self.http_status

    @property
    def whole(self) -> bool:
        """Whether the answer came to its end, as far as its API marks one."""
        return self.reader.ended or self._full

    def transition(self, status: Status, *, latency_ms: float | None, prices: PriceTable) -> Transition:
        """The record of the call as it stands.

        Args:
            status: How it ended.
            latency_ms: From the request's arrival to now, in milliseconds; ``None``: not known.
            prices: What models cost.
        """
        reader, upstream = self.reader, self.upstream
        usage, estimated = self._usage(status)
        models = (reader.model, upstream.model if upstream else None)  # what the client calls it has no price
        cost = prices.cost(
            usage,
            *models,
            own=upstream.price if upstream else None,
            base_url=upstream.base_url if upstream else None,
            service_tier=reader.service_tier,
            priced_apart=reader.priced_apart,
            at=self.created_at,
        )
        error, kind = self._failure(status)
        attempts = [{"model": model, **msgspec.to_builtins(attempt)} for model, attempt in self._attempts]
        self.note(
            status=status,
            http_status=self.http_status,
            error_kind=kind,
            finish_reason=reader.finish_reason,
            response_id=None if self.repeats else reader.id,
            first_piece_ms=None if self._first_piece_ms is None else round(self._first_piece_ms, 3),
            estimated_usage=estimated or None,
            attempts=attempts or None,
        )
        return Transition(
            state=self._state,
            action=None if self._refused else reader.action(),
            agent=self._agent,
            episode_id=self.place.episode_id,
            step=self.place.step,
            group_id=self._identity.group_id,
            tags=(*self._identity.tags, NEVER_LEARNT) if self.repeats else self._identity.tags,
            policy=next((model for model in (*models, self.request.model) if model), None),
            usage=usage,
            cost=0 if self.repeats else cost,
            latency_ms=latency_ms,
            error=error,
            created_at=self.created_at,
            tokens=self._trace() if self._with_tokens and not self.repeats else None,
            info={**self._request_info(), **self._info},
        )

    @property
    def free(self) -> bool:
        """Whether no provider charges for it: nobody answered, or the answer is an error."""
        reader = self.reader
        return self.http_status is None or self._refused or (reader.failure is not None and not reader.characters)

    @property
    def _refused(self) -> bool:
        return self.http_status is not None and self.http_status >= 400

    def _stop_reading(self) -> bytes:
        """The answer is longer than what is recorded; gives what was held back."""
        self._full = True
        self.note(recorded_bytes=LARGEST_ANSWER)
        return self._stream.held() if self._stream is not None else b""

    def _read_body(self) -> None:
        body = b"".join(self._body)
        if self._decoder.readable:
            self.reader.read_body(body)
        else:
            self.note(unreadable="The answer was compressed in a way that cannot be read here.")
        if self._refused:
            self.reader.failure = body

    def _failure(self, status: Status) -> tuple[str | None, str | None]:
        """What went wrong in a sentence, and its kind."""
        if self._error is not None:
            return self._error, self._error_kind
        failure = self.reader.failure
        if failure is not None and self.upstream is not None:
            code = self.http_status if (self.http_status or 0) >= 400 else _code_in(failure)
            kind, words = classify(code or 500, failure)
            shown, model = self.upstream.shown, self.upstream.model or self.request.model or ""
            return describe(kind, shown, model, status=code, words=words, key=self.upstream.key), kind.kind
        return _ENDINGS.get(status), None

    def _usage(self, status: Status) -> tuple[Usage | None, bool]:
        """The tokens of the call, and whether they are an estimate. A call without an answer has none."""
        reader = self.reader
        if self._refused or not self.request.understood or self.upstream is None:
            return None, False
        if self.http_status is None and status == "failed":
            return None, False
        if not self._decoder.readable:
            return self.reader.usage, False
        model = reader.model or (self.upstream.model if self.upstream else None)
        seen, said = _length(self._state), reader.characters
        reported = reader.usage
        if reported is not None and reported.output_tokens is not None and (reader.ended or status == "complete"):
            for name in {model, self.request.model}:  # asked for by one name, the model may answer under another
                self._estimates.learn(name, "prompt", seen, reported.input_tokens)
                self._estimates.learn(name, "answer", said, reported.output_tokens)
            return reported, False
        if reader.failure is not None and not said:
            return reported, False
        known = reported or Usage()
        answer = max(1, self._estimates.tokens(model, "answer", said))
        estimate = msgspec.structs.replace(
            known,
            input_tokens=known.input_tokens or self._estimates.tokens(model, "prompt", seen),
            output_tokens=max(known.output_tokens or 0, answer),  # what was reported may be an early running total
        )
        return estimate, True

    def _trace(self) -> TokenTrace | None:
        return self.reader.tokens.trace(self.request.number("temperature"), self.request.number("top_p"))

    def _request_info(self) -> dict[str, Any]:
        info: dict[str, Any] = {"api": self.request.dialect.name}
        if self.upstream is not None:
            info["route"] = self.upstream.name
        if self.request.model is not None and self.request.model != self.reader.model:
            info["requested_model"] = self.request.model
        if self.request.stream:
            info["stream"] = True
        parameters = self.request.parameters()
        return {**info, "parameters": parameters} if parameters else info


def failed_attempts(transition: Transition) -> list[Transition]:
    """The failed tries of a recorded call as records of their own, unless the call is but one of them."""
    info = transition.info
    if isinstance(info, msgspec.Raw):  # it waited in the spool
        info = parse(bytes(info))
    attempts = dictionaries(info.get("attempts")) if isinstance(info, dict) else []
    if len(attempts) == 1 and transition.error is not None:
        return []
    return [
        msgspec.structs.replace(
            transition,
            action=None,
            next_state=None,
            tags=(*transition.tags, "attempt"),
            policy=attempt["model"],
            usage=None,
            cost=None,
            latency_ms=attempt["latency_ms"],
            error=attempt["error"],
            tokens=None,
            info={"status": "failed", "http_status": attempt["status"], "error_kind": attempt["kind"]},
        )
        for attempt in attempts
    ]


def _code_in(failure: bytes) -> int | None:
    """The HTTP status that an error inside a stream stands for, where it names one."""
    value = parse(failure)
    error = value.get("error") if isinstance(value, dict) else None
    code = error.get("code") if isinstance(error, dict) else None
    code = int(code) if isinstance(code, str) and code.isdecimal() else code
    return code if isinstance(code, int) and 400 <= code < 600 else None


def _length(state: Any) -> int:
    return len(bytes(state)) if isinstance(state, msgspec.Raw) else len(msgspec.json.encode(state))
