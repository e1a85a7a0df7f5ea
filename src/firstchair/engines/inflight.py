"""Requests being answered at once: started together, yielded as they finish, cancelled by id."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterable
from typing import Any

from firstchair.engines.base import ErrorKind, Generation, Stop

Answer = Coroutine[Any, Any, Generation]


class InFlight:
    """One task per request, over every running ``generate`` of one engine.

    A task that is cancelled yields ``Stop.CANCELLED`` and one that raises ``Stop.ERROR``: whatever happens to
    one request, each request of a batch gets exactly one generation.
    """

    def __init__(self) -> None:
        self._tasks: dict[str, asyncio.Task[Generation]] = {}

    async def each(self, answers: Iterable[tuple[str, Answer]]) -> AsyncIterator[Generation]:
        """Run every ``(request_id, coroutine)`` and yield the generations as they come.

        Leaving the iteration early cancels what is still running.
        """
        pending: dict[asyncio.Task[Generation], str] = {}
        for request_id, answer in answers:
            task = asyncio.ensure_future(answer)
            pending[task] = request_id
            self._tasks[request_id] = task
        try:
            while pending:
                finished, _ = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                for task in [task for task in pending if task in finished]:
                    request_id = pending.pop(task)
                    self._forget(request_id, task)
                    yield _outcome(request_id, task)
        finally:
            for task, request_id in pending.items():
                task.cancel()
                self._forget(request_id, task)
            if pending:
                await asyncio.gather(*pending, return_exceptions=True)

    def _forget(self, request_id: str, task: asyncio.Task[Generation]) -> None:
        if self._tasks.get(request_id) is task:
            del self._tasks[request_id]

    def cancel(self, request_id: str) -> bool:
        """Cancel one request; ``False`` when it is unknown or finished."""
        task = self._tasks.get(request_id)
        return task is not None and task.cancel()

    def cancel_all(self) -> None:
        """Cancel every request."""
        for task in list(self._tasks.values()):
            task.cancel()


def _outcome(request_id: str, task: asyncio.Task[Generation]) -> Generation:
    if task.cancelled():
        return Generation(request_id=request_id, stop=Stop.CANCELLED)
    error = task.exception()
    if error is not None:
        reason = f"{type(error).__name__}: {error}"
        return Generation(request_id=request_id, stop=Stop.ERROR, error=reason, error_kind=ErrorKind.ENGINE)
    return task.result()
