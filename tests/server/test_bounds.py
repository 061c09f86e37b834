"""The store's limits hold while calls are recorded and nobody draws."""

import asyncio
from pathlib import Path

import pytest
from loopback import reply
from server_rig import Served, run

from relive.server import app


def test_calls_alone_do_not_grow_a_store_beyond_its_capacity(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "FOLLOWS_EVERY", 0.02)

    async def body(served: Served) -> None:
        served.upstream.answers(reply({"choices": [{"index": 0, "message": {"role": "assistant", "content": "a"}}]}))
        for n in range(12):
            await served.ask("/v1/chat/completions", {"model": "m", "messages": [{"role": "user", "content": str(n)}]})
        for _ in range(500):
            if len(served.parts.memory.storage) == 5:
                break
            await asyncio.sleep(0.01)
        assert [stored.id for stored in served.parts.memory.storage.query()] == [8, 9, 10, 11, 12]

    run(tmp_path, body, store={"capacity": 5})
