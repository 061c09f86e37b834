"""Calls to a model: `Upstream` for any OpenAI-compatible endpoint, `LocalServer` for one on this machine."""

from relive.llm.errors import (
    AuthenticationError,
    BadAnswerError,
    BadRequestError,
    ContextOverflowError,
    ModelUnavailableError,
    OverloadedError,
    PolicyError,
    QuotaExceededError,
    RateLimitedError,
    UnreachableError,
    UpstreamError,
    UpstreamTimeoutError,
)
from relive.llm.local import DEFAULT_MODEL, LocalModelError, LocalServer
from relive.llm.pricing import Price, PriceTable
from relive.llm.records import Attempt, Completion, ToolCall
from relive.llm.upstream import Upstream

__all__ = [
    "DEFAULT_MODEL",
    "Attempt",
    "AuthenticationError",
    "BadAnswerError",
    "BadRequestError",
    "Completion",
    "ContextOverflowError",
    "LocalModelError",
    "LocalServer",
    "ModelUnavailableError",
    "OverloadedError",
    "PolicyError",
    "Price",
    "PriceTable",
    "QuotaExceededError",
    "RateLimitedError",
    "ToolCall",
    "UnreachableError",
    "Upstream",
    "UpstreamError",
    "UpstreamTimeoutError",
]
