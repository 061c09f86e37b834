"""The description of the admin API, in OpenAPI 3.1."""

from typing import Any

from relive import __version__

_TEXT, _INTEGER, _NUMBER = {"type": "string"}, {"type": "integer"}, {"type": "number"}
_ANY: dict[str, Any] = {}
_OBJECT: dict[str, Any] = {"type": "object"}


def openapi() -> dict[str, Any]:
    """The description."""
    integers, numbers = {"type": "array", "items": _INTEGER}, {"type": "array", "items": _NUMBER}
    of_ids = {"type": "object", "required": ["ids"], "properties": {"ids": integers}}
    transition = {
        "type": "object",
        "required": ["state", "action"],
        "properties": {
            "state": _ANY,
            "action": _ANY,
            "next_state": _ANY,
            "reward": {"type": ["number", "null"]},
            "terminated": {"type": "boolean"},
            "truncated": {"type": "boolean"},
            "outcome": {"enum": ["success", "failure", "unknown"]},
            "agent": _TEXT,
            "episode_id": _TEXT,
            "step": {"type": "integer", "minimum": 0},
            "group_id": {"type": ["string", "null"]},
            "tags": {"type": "array", "items": _TEXT},
            "policy": {"type": ["string", "null"]},
            "cost": {"type": ["integer", "null"], "minimum": 0},
            "error": {"type": ["string", "null"]},
        },
    }
    page = [_query(name) for name in ("agent", "episode_id", "group_id", "policy", "tag", "text", "outcome")]
    page += [_query("limit", _INTEGER), _query("after", _INTEGER), _query("newest_first")]
    return {
        "openapi": "3.1.0",
        "info": {"title": "Relive", "version": __version__},
        "paths": {
            "/v1/feedback": {
                "post": _operation(
                    "feedback",
                    "Say what became known about an experience or an episode.",
                    body={
                        "type": "object",
                        "properties": {
                            "experience_id": {"type": ["integer", "string"]},
                            "episode_id": _TEXT,
                            "response_id": _TEXT,
                            "reward": {"type": ["number", "boolean"]},
                            "demonstration": _ANY,
                            "source": _TEXT,
                            "key": _TEXT,
                            "comment": _TEXT,
                        },
                        "additionalProperties": False,
                    },
                )
            },
            "/api/experiences": {
                "post": _operation(
                    "add",
                    "Add experiences, all or none.",
                    body={
                        "type": "object",
                        "required": ["experiences"],
                        "properties": {
                            "experiences": {"type": "array", "items": transition},
                            "priorities": numbers,
                            "uids": {"type": "array", "items": _TEXT},
                        },
                    },
                ),
                "get": _operation("list", "One page of experiences.", parameters=page),
            },
            "/api/experiences/{id}": {
                "get": _operation(
                    "show",
                    "One experience with its feedback.",
                    parameters=[{"name": "id", "in": "path", "required": True, "schema": _TEXT}],
                )
            },
            "/api/get": {
                "post": _operation(
                    "get",
                    "Experiences by id; null where there is none.",
                    body=of_ids,
                )
            },
            "/api/query": {
                "post": _operation(
                    "query",
                    "One page of experiences, by any condition.",
                    body={
                        "type": "object",
                        "properties": {
                            **dict.fromkeys(("agent", "episode_id", "group_id", "policy", "tag", "text"), _TEXT),
                            "outcome": {"enum": ["success", "failure", "unknown"]},
                            **dict.fromkeys(("min_reward", "max_reward"), _NUMBER),
                            **dict.fromkeys(("parent", "policy_version", "after", "limit"), _INTEGER),
                            **{name: {"type": "string", "format": "date-time"} for name in ("since", "until")},
                            "error": {"type": ["boolean", "string"]},
                            "newest_first": {"type": "boolean"},
                        },
                        "additionalProperties": False,
                    },
                )
            },
            "/api/search": {
                "get": _operation(
                    "search",
                    "The experiences whose states are most like a text.",
                    parameters=[_query("text"), _query("outcome"), _query("agent"), _query("limit", _INTEGER)],
                )
            },
            "/api/sample": {
                "post": _operation(
                    "sample",
                    "Draw experiences.",
                    body={
                        "type": "object",
                        "required": ["batch_size"],
                        "properties": {"batch_size": {"type": "integer", "minimum": 1}, "strict": {"type": "boolean"}},
                    },
                )
            },
            "/api/priorities": {
                "post": _operation(
                    "update_priorities",
                    "Set priorities.",
                    body={
                        "type": "object",
                        "required": ["ids"],
                        "properties": {"ids": integers, "priorities": numbers, "td_errors": numbers},
                    },
                )
            },
            "/api/remove": {
                "post": _operation(
                    "remove",
                    "Take experiences out.",
                    body=of_ids,
                )
            },
            "/api/forget": {
                "post": _operation(
                    "forget",
                    "Take out, so that no byte is left, what an agent, an episode and a text have in common.",
                    body={
                        "type": "object",
                        "minProperties": 1,
                        "properties": {key: {"type": ["string", "null"]} for key in ("agent", "episode", "match")},
                        "additionalProperties": False,
                    },
                )
            },
            "/api/stats": {"get": _operation("stats", "Figures of the memory.")},
            "/api/usage": {"get": _operation("usage", "What calls used and cost.", parameters=[_query("by")])},
            "/healthz": {"get": _operation("health", "Whether calls are recorded.")},
            "/metrics": {"get": _operation("metrics", "Counts for Prometheus.", media="text/plain")},
        },
        "components": {"securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}},
        "security": [{"key": []}, {}],
    }


def _query(name: str, schema: dict[str, Any] = _TEXT) -> dict[str, Any]:
    return {"name": name, "in": "query", "schema": schema}


def _operation(
    name: str,
    summary: str,
    *,
    parameters: list[dict[str, Any]] | None = None,
    body: dict[str, Any] | None = None,
    media: str = "application/json",
) -> dict[str, Any]:
    answer = {"description": "Done.", "content": {media: {"schema": _TEXT if media == "text/plain" else _OBJECT}}}
    error = {"description": "Refused.", "content": {"application/json": {"schema": _OBJECT}}}
    operation: dict[str, Any] = {
        "operationId": name,
        "summary": summary,
        "responses": {"200": answer, **{str(status): error for status in (400, 401, 403, 404, 409, 503, 507)}},
    }
    if parameters:
        operation["parameters"] = parameters
    if body is not None:
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": body}}}
    return operation
