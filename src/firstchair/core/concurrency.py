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
