"""The tokens that a provider says a call used, in whichever form it says so.

Four forms are in use: chat and text completions (``prompt_tokens``), embeddings (the same, with no answer to count),
Responses (``input_tokens``, cached ones inside) and Messages (``input_tokens`` with cached ones *beside* it). All
become one `Usage`, in which the part is always inside the whole. An absent count stays ``None``, and what is no count
is left out.
"""

from collections.abc import Mapping
from typing import Any

from relive.experience import Usage

_PRICED_APART = (
    ("prompt_tokens_details", "audio_tokens"),
    ("completion_tokens_details", "audio_tokens"),
    ("completion_tokens_details", "image_tokens"),
    ("input_tokens_details", "audio_tokens"),
    ("output_tokens_details", "audio_tokens"),
    ("output_tokens_details", "image_tokens"),
    ("cache_creation", "ephemeral_1h_input_tokens"),
    ("server_tool_use", "web_search_requests"),
)


def read_usage(answer: Mapping[str, Any]) -> Usage | None:
    """The tokens that an answer reports under ``usage``; ``None``: it reports none.

    Args:
        answer: A whole answer, or the piece of a stream that holds the usage, parsed.
    """
    reported = answer.get("usage")
    if not isinstance(reported, Mapping):
        return None
    if "input_tokens" in reported or "output_tokens" in reported:
        usage = _of_input_and_output(reported)
    else:
        usage = _of_prompt_and_completion(reported, embedding=answer.get("object") == "list")
    return None if usage == Usage() else usage


def priced_apart(answer: Mapping[str, Any]) -> bool:
    """Whether some of what an answer reports has a price of its own, so that its `Usage` alone does not tell the cost.

    That are tokens of sound, tokens of images in the answer, an hour in Anthropic's cache (the usual five minutes cost
    less), and searches of the web.

    Args:
        answer: As for `read_usage`.
    """
    reported = _mapping(answer.get("usage"))
    return any(_count(_mapping(reported.get(part)).get(name)) for part, name in _PRICED_APART)


def _of_prompt_and_completion(reported: Mapping[str, Any], *, embedding: bool) -> Usage:
    """Chat, completions and embeddings. The total tells whether reasoning is counted inside the answer or beside it."""
    prompt_details = _mapping(reported.get("prompt_tokens_details"))
    answer_details = _mapping(reported.get("completion_tokens_details"))
    prompt, output = _count(reported.get("prompt_tokens")), _count(reported.get("completion_tokens"))
    reasoning = _count(answer_details.get("reasoning_tokens"))
    if reasoning and prompt is not None and output is not None:
        beside = _count(reported.get("total_tokens")) == prompt + output + reasoning
        output += reasoning if beside else 0
    if embedding:
        prompt = _first_count(prompt, reported.get("total_tokens"))  # some count only the whole
        output = 0 if output is None and prompt is not None else output
    return Usage(
        input_tokens=prompt,
        cached_tokens=_first_count(
            prompt_details.get("cached_tokens"), reported.get("prompt_cache_hit_tokens"), reported.get("cached_tokens")
        ),
        cache_write_tokens=_first_count(
            prompt_details.get("cache_write_tokens"), reported.get("cache_creation_input_tokens")
        ),
        output_tokens=output,
        reasoning_tokens=reasoning,
    )


def _of_input_and_output(reported: Mapping[str, Any]) -> Usage:
    """Responses and Messages. Only the latter name cached tokens at the top, and then they are not in the input."""
    input_details = _mapping(reported.get("input_tokens_details"))
    output_details = _mapping(reported.get("output_tokens_details"))
    plain = _count(reported.get("input_tokens"))
    read, written = _count(reported.get("cache_read_input_tokens")), _count(reported.get("cache_creation_input_tokens"))
    return Usage(
        input_tokens=None if plain is None else plain + (read or 0) + (written or 0),
        cached_tokens=_first_count(read, input_details.get("cached_tokens")),
        cache_write_tokens=_first_count(written, input_details.get("cache_write_tokens")),
        output_tokens=_count(reported.get("output_tokens")),
        reasoning_tokens=_first_count(output_details.get("reasoning_tokens"), output_details.get("thinking_tokens")),
    )


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _count(value: Any) -> int | None:
    return value if type(value) is int and value >= 0 else None


def _first_count(*values: Any) -> int | None:
    return next((count for value in values if (count := _count(value)) is not None), None)
