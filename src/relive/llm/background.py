"""An event loop and its connections in a thread of their own: for code that has no loop, or one that must not own them.

The thread starts with the object and ends with `close`. After a fork the child has no such thread; it must make a new
`LoopThread` and leave the inherited one alone (`alive` is False): closing it would speak on the parent's connections.
"""

import asyncio
import concurrent.futures
import os
import threading
from collections.abc import Awaitable, Callable
from typing import TypeVar

import aiohttp

T = TypeVar("T")


class LoopThread:
    """A running event loop with an HTTP session.

    Args:
        name: The thread's name.
        connect: Makes the session, on the loop, when it is first needed.
    """

    def __init__(self, name: str, connect: Callable[[], aiohttp.ClientSession]) -> None:
        self._pid = os.getpid()
        self._connect = connect
        self._session: aiohttp.ClientSession | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether it takes work: it is not closed, and this is the process that made it."""
        return self._pid == os.getpid() and self._thread.is_alive() and not self._loop.is_closed()

    def submit(self, work: Callable[[aiohttp.ClientSession], Awaitable[T]]) -> concurrent.futures.Future[T]:
        """Starts work on the loop with the session; cancelling the future cancels the work."""
        return asyncio.run_coroutine_threadsafe(self._run(work), self._loop)

    def close(self) -> None:
        """Cancels what runs, closes the connections and ends the thread; nothing the second time, or in a fork."""
        if not self.alive:
            return
        self._loop.call_soon_threadsafe(self._loop.stop)
        if threading.current_thread() is not self._thread:  # a garbage collection may come from the thread itself
            self._thread.join()

    async def _run(self, work: Callable[[aiohttp.ClientSession], Awaitable[T]]) -> T:
        if self._session is None:
            self._session = self._connect()
        return await work(self._session)

    def _serve(self) -> None:
        try:
            self._loop.run_forever()
            self._loop.run_until_complete(self._finish())
        finally:
            self._loop.close()

    async def _finish(self) -> None:
        running = asyncio.all_tasks() - {asyncio.current_task()}
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        if self._session is not None:
            await self._session.close()
            await asyncio.sleep(0)  # transports close in the loop's next round
        await self._loop.shutdown_asyncgens()
        await self._loop.shutdown_default_executor()
