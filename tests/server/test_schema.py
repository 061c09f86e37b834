"""Whatever is sent to the admin API, as its description allows it or not: no answer is an error of the server."""

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from starlette.applications import Starlette

from relive.experience import Transition
from relive.server.api import AdminAPI
from relive.server.build import build
from relive.server.settings import load

EXAMPLES = 12
"""For each operation and way to make them; the seeds are fixed, so each run tries the same."""


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Starlette]:
    parts = build(load(None, store={"path": tmp_path / "s.db"}, models=[{"name": "m", "upstream": "http://u.test/v1"}]))
    parts.memory.add_batch([Transition(state={"n": n}, action="a") for n in range(20)])
    app = AdminAPI(parts).app()
    yield app
    asyncio.run(parts.gateway.close())
    parts.close()


@pytest.mark.parametrize("mode", list(schemathesis.GenerationMode), ids=lambda mode: mode.value)
def test_no_request_makes_the_admin_api_fail(api: Starlette, mode: schemathesis.GenerationMode) -> None:
    schema = schemathesis.openapi.from_asgi("/api/openapi.json", api)
    tried = 0
    for found in schema.get_all_operations():
        operation = found.ok()

        @settings(
            max_examples=EXAMPLES,
            deadline=None,
            database=None,
            derandomize=True,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy(generation_mode=mode))
        def send(case: schemathesis.Case) -> None:
            nonlocal tried
            answer = case.call()
            tried += 1
            assert answer.status_code < 500 or answer.status_code in (503, 507), (case.method, case.path, answer.text)

        with contextlib.suppress(Unsatisfiable):  # nothing can be wrong about a request that takes nothing
            send()
    assert tried > 5 * EXAMPLES
