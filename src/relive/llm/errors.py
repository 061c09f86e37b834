"""What can go wrong in a call to a model, by kind, and how to tell the kinds apart.

Every provider words its errors differently, often under one generic status. `RULES` is a table from statuses, error
codes and wordings to kinds; it is tried from the top, and a caller can put rows of its own before it.

A message is one sentence that names the endpoint and one that says what to do next. Words from the provider are outside
text: they are cut short, freed of control characters, and anything that looks like a key is blanked out.
"""

import json
import re
from collections.abc import Iterable
from typing import Any, ClassVar
from urllib.parse import urlsplit, urlunsplit

import msgspec

from relive.errors import ReliveError
from relive.llm.records import Attempt

LONGEST_QUOTE = 200
"""Characters of a provider's own words that a message repeats."""


class UpstreamError(ReliveError):
    """A call to a model failed. Subclasses name the kind; this class itself is a failure of no known kind.

    Attributes:
        kind: A short name of the kind, the same for all errors of one class.
        permanent: The same request would fail again, so it is not tried again.
        status: The provider's last HTTP status; ``None``: no answer came. 400 for a request that was never sent.
        body: The provider's last body, unchanged: to be passed on to whoever made the call, never to a log.
        content_type: The type of `body`.
        retry_after: The provider's hint in seconds on when to try again; ``None``: no usable one.
        attempts: Every try in order; empty for a request that was never sent.
        latency_ms: From the call to the error in milliseconds, waits included.
    """

    kind: ClassVar[str] = "failed"
    says: ClassVar[str] = "{endpoint} failed"
    next_step: ClassVar[str] = "Try again later"
    permanent: bool = False

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        body: bytes = b"",
        content_type: str | None = None,
        retry_after: float | None = None,
        request_id: str | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.body = body
        self.content_type = content_type
        self.retry_after = retry_after
        self.request_id = request_id
        self.attempts: tuple[Attempt, ...] = ()
        self.latency_ms = 0.0

    @property
    def waited_ms(self) -> float:
        """All the waiting between tries together, in milliseconds."""
        return sum(attempt.waited_ms for attempt in self.attempts)


class AuthenticationError(UpstreamError):
    """The provider refused the key, or the key may not do this."""

    kind = "authentication"
    says = "{endpoint} refused the API key"
    next_step = "Check that the key is the one for this endpoint and has not expired"
    permanent = True


class ModelUnavailableError(UpstreamError):
    """The provider does not know the model, or does not offer it (any more, or to this key)."""

    kind = "model_unavailable"
    says = "{endpoint} does not offer the model {model!r}"
    next_step = "Choose one that {endpoint}/models lists"
    permanent = True


class ContextOverflowError(UpstreamError):
    """The prompt is longer than the model can take."""

    kind = "context_overflow"
    says = "The prompt is too long for the model {model!r} at {endpoint}"
    next_step = "Send fewer or shorter messages, or use a model with a longer context"
    permanent = True


class RateLimitedError(UpstreamError):
    """Too many requests or tokens in too short a time."""

    kind = "rate_limited"
    says = "{endpoint} limits the rate of requests"
    next_step = "Wait a little, or send fewer calls at once"


class QuotaExceededError(UpstreamError):
    """The account has no money or quota left; waiting a few seconds does not help."""

    kind = "quota_exceeded"
    says = "The account at {endpoint} has no quota or credit left"
    next_step = "Raise its limit or add credit with the provider"
    permanent = True


class OverloadedError(UpstreamError):
    """The provider is overloaded or has an error of its own."""

    kind = "overloaded"
    says = "{endpoint} is overloaded or has an internal error"
    next_step = "Try again later or use another endpoint"


class UpstreamTimeoutError(UpstreamError):
    """No whole answer came within the time limit."""

    kind = "timeout"
    says = "{endpoint} gave no whole answer in time"
    next_step = "Raise the time limit, ask for fewer tokens or use a faster model"


class UnreachableError(UpstreamError):
    """No connection, or it broke off."""

    kind = "unreachable"
    says = "Cannot reach {endpoint}"
    next_step = "Check the address and that a server runs there (`relive local serve` starts one on this machine)"


class BadRequestError(UpstreamError):
    """The request itself is wrong; where `attempts` is empty, that was found before anything was sent."""

    kind = "bad_request"
    says = "{endpoint} does not accept the request"
    next_step = "Correct the request"
    permanent = True


class PolicyError(UpstreamError):
    """The provider's content policy forbids the request or the answer."""

    kind = "policy"
    says = "{endpoint} refused the content by its policy"
    next_step = "Change the messages"
    permanent = True


class BadAnswerError(UpstreamError):
    """Something answered, but not with a chat completion."""

    kind = "bad_answer"
    says = "{endpoint} did not answer as an OpenAI-compatible endpoint does"
    next_step = "Check that the base URL is the API's (it mostly ends in /v1)"
    permanent = True


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """A row of the table: it fits if the status does (an empty set: any), and then the code or the wording.

    Attributes:
        error: The kind of error that it means.
        statuses: HTTP statuses under which it is looked for; empty: all.
        codes: Values of the error's ``code``, ``type`` or ``status`` in lower case.
        wording: A regular expression looked for in the error's message, whatever the case; ``None``: none. With neither
            codes nor wording the status alone decides.
    """

    error: type[UpstreamError]
    statuses: frozenset[int] = frozenset()
    codes: frozenset[str] = frozenset()
    wording: str | None = None

    def fits(self, status: int, codes: frozenset[str], message: str) -> bool:
        """Whether an error with this status, these codes and this message is of the row's kind."""
        if self.statuses and status not in self.statuses:
            return False
        if not self.codes and self.wording is None:
            return True
        return bool(self.codes & codes) or (
            self.wording is not None and re.search(self.wording, message, re.IGNORECASE) is not None
        )


def _rule(
    error: type[UpstreamError], statuses: Iterable[int] = (), codes: str = "", wording: str | None = None
) -> Rule:
    return Rule(error=error, statuses=frozenset(statuses), codes=frozenset(codes.split()), wording=wording)


_REFUSED = (400, 403, 404, 413, 422, 500)
"""Statuses under which providers hide a more exact reason."""

RULES: tuple[Rule, ...] = (
    _rule(ContextOverflowError, codes="context_length_exceeded exceed_context_size_error"),
    _rule(
        ContextOverflowError,
        _REFUSED,
        wording=r"maximum context length|prompt is too long|input token count.*exceeds|"
        r"exceeds? (the )?(available |model.?s )?(maximum )?(context|n_ctx)|context (length|window|size).*exceed|"
        r"longer than the model.?s context|reduce the length of the (messages|prompt)|"
        r"max_tokens must be at least 1, got -",  # vLLM: the prompt alone left less than nothing for the answer
    ),
    _rule(
        QuotaExceededError,
        codes="insufficient_quota billing_hard_limit_reached billing_not_active insufficient_balance",
    ),
    _rule(QuotaExceededError, (402,)),
    _rule(
        QuotaExceededError,
        (400, 403, 429),
        wording=r"credit balance|out of credits|insufficient (balance|credit|fund)",
    ),
    _rule(QuotaExceededError, (400, 403), wording=r"quota.{0,20}exceeded|exceeded.{0,20}quota"),
    _rule(PolicyError, codes="content_policy_violation content_filter responsibleaipolicyviolation"),
    _rule(
        PolicyError,
        (400, 403),
        wording=r"content (management |usage |filtering )?policy|flagged (by|as)|safety (system|policy)|"
        r"content exists risk",
    ),
    _rule(
        ModelUnavailableError,
        codes="model_not_found model_not_available model_not_active model_decommissioned deploymentnotfound",
    ),
    _rule(
        ModelUnavailableError,
        _REFUSED,
        wording=r"\bmodel\b.{0,120}(does not exist|not found|not (currently )?available|no longer|decommissioned|"
        r"deprecated|not exist)|(no such|unknown|invalid|unsupported) model\b|is not a valid model|"
        r"^models/\S+ is not found",
    ),
    _rule(ModelUnavailableError, (404,), codes="not_found_error", wording=r"^model: \S+$"),
    _rule(AuthenticationError, codes="invalid_api_key authentication_error permission_error permission_denied"),
    _rule(
        AuthenticationError,
        (400,),
        wording=r"(incorrect|invalid|missing) api.?key|api.?key (is )?(not valid|invalid|missing|expired)|"
        r"location is not supported",
    ),
    _rule(AuthenticationError, (401, 403)),
    _rule(RateLimitedError, codes="rate_limit_exceeded rate_limit_error too_many_requests"),
    _rule(RateLimitedError, (429,)),
    _rule(UpstreamTimeoutError, (408, 504, 524)),
    _rule(OverloadedError, codes="overloaded_error overloaded"),
    _rule(OverloadedError, range(500, 600)),
    _rule(UpstreamError, (409,)),
    _rule(BadAnswerError, (404, 405)),
    _rule(BadRequestError, range(400, 500)),
)


def classify(status: int, body: bytes, rules: Iterable[Rule] = RULES) -> tuple[type[UpstreamError], str]:
    """The kind of an error answer and the provider's own words about it.

    Args:
        status: The HTTP status.
        body: The body, JSON or not.
        rules: The table, tried in order; put own rows before `RULES`.
    """
    codes, message = read_error(body)
    kind = next((rule.error for rule in rules if rule.fits(status, codes, message)), UpstreamError)
    return kind, message


def read_error(body: bytes) -> tuple[frozenset[str], str]:
    """The codes (in lower case) and the message in an error body; the message is empty where there is none.

    Understands ``{"error": {"message", "code", "type", "status"}}``, ``{"error": "..."}``, ``{"message": ...}``,
    ``{"detail": ...}`` and a list that holds one of these. Of another body only its first characters count.
    """
    try:
        data: Any = json.loads(body)
    except (ValueError, RecursionError):  # not JSON, not even text, or brackets without end
        text = body[: 10 * LONGEST_QUOTE].decode(errors="replace").strip()
        return frozenset(), "" if text.startswith("<") else text
    if isinstance(data, list) and data:
        data = data[0]
    if isinstance(data, dict) and data.get("error"):
        data = data["error"]
    if isinstance(data, str):
        return frozenset(), data
    if not isinstance(data, dict):
        return frozenset(), ""
    codes = frozenset(v.lower() for key in ("code", "type", "status") if isinstance(v := data.get(key), str))
    message = next((v for key in ("message", "detail", "error_message", "msg") if (v := data.get(key))), "")
    return codes, message if isinstance(message, str) else json.dumps(message)


def describe(
    kind: type[UpstreamError], endpoint: str, model: str, *, status: int | None, words: str, key: str | None
) -> str:
    """The message of an error: what happened where, in the provider's words, and the next step.

    Args:
        kind: The error's class.
        endpoint: The base URL, already without secrets (`shown_url`).
        model: The model that was asked for.
        status: The HTTP status; ``None``: no answer came.
        words: The provider's or the operating system's own words; may be empty.
        key: The API key, blanked out wherever it appears.
    """
    reason = ": ".join(filter(None, [f"HTTP {status}" if status else "", quote(words, key)]))
    names = {"endpoint": endpoint, "model": model}
    return f"{kind.says.format(**names)}{f' ({reason})' if reason else ''}. {kind.next_step.format(**names)}."


_KEYS = re.compile(
    r"\bBearer\s+\S+|\b(?:sk|pk|rk|gsk|xai|hf|r8|nvapi)[-_][\w*.\-]{6,}|\bAIza[\w*\-]{6,}|"
    r"(?<=://)[^/@\s]+@|"
    r"((?:api[-_ ]?key|access[-_ ]?token|token|key|secret|password)[\"']?\s*[=:]\s*[\"']?)[\w*.\-]{6,}",
    re.IGNORECASE,
)


def quote(words: str, key: str | None = None) -> str:
    """Outside text made fit for a message: one line without control characters, keys blanked out, cut short."""
    if key:  # a placeholder such as "x" is no secret, and its letter occurs in words
        edge = r"\b" if len(key) < 8 else ""
        words = re.sub(f"{edge}{re.escape(key)}{edge}", "[key]", words)
    words = "".join(c if c.isprintable() else " " for c in words[: 20 * LONGEST_QUOTE])
    words = _KEYS.sub(lambda match: f"{match[1] or ''}[key]", " ".join(words.split())).rstrip(".")
    return words if len(words) <= LONGEST_QUOTE else words[: LONGEST_QUOTE - 3] + "..."


def shown_url(url: str) -> str:
    """A text that should be a URL without what may be secret in it: user, password, query and fragment."""
    try:
        parts = urlsplit(url)
    except ValueError:  # no URL at all, such as http://[::1/v1
        return re.sub(r"(?<=//)[^/]*@", "", re.split(r"[?#]", url, maxsplit=1)[0])
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))
