"""Several awaitables at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import TypeVar

Result = TypeVar("Result")


async def all_or_none(work: Sequence[Awaitable[Result]]) -> list[Result]:
    """The results in order. The first to fail cancels the others, which are awaited; its own exception is raised.
    Cancelled itself, nothing is left running.
    """
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        for task in asyncio.as_completed(tasks):
            await task
        return [task.result() for task in tasks]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def to_the_end(work: Awaitable[Result]) -> Result:
    """The result of ``work``, which a cancellation does not stop: it is raised when the work is done."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
    return task.result()


def was_cancelled() -> bool:
    """Whether somebody asked this task to stop. If nobody did, a ``CancelledError`` is what was awaited failing."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
