"""``web_search`` through DuckDuckGo's page for browsers without scripts, read by ``ddgs``: no key, low limits.

The engine of ``ddgs`` is asked itself and not through its ``DDGS``, which tells a refused request and a query without
results in the same words. DuckDuckGo refuses with status 202 and a page without results.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Literal

from pydantic import Field

from firstchair.core.config import Strict
from firstchair.core.errors import UpstreamError
from firstchair.core.extras import require
from firstchair.tools.search_hit import Hit


class DuckDuckGoSpec(Strict):
    """DuckDuckGo; it limits each address to a few searches a minute."""

    type: Literal["duckduckgo"] = "duckduckgo"
    region: str = "wt-wt"
    """As DuckDuckGo writes it: ``us-en``, ``de-de``; ``wt-wt`` is none."""
    timeout_s: int = Field(default=10, ge=1)


class DuckDuckGo:
    """The backend. Raises ``ConfigError`` when ``ddgs`` (``firstchair[tools]``) is missing."""

    def __init__(self, spec: DuckDuckGoSpec):
        require("tools")
        self._spec = spec

    async def search(self, query: str, limit: int) -> Sequence[Hit]:
        """One search, in a thread: the library blocks."""
        return await asyncio.to_thread(self._search, query, limit)

    async def close(self) -> None:
        """Nothing is held."""

    def _search(self, query: str, limit: int) -> tuple[Hit, ...]:
        from ddgs.engines.duckduckgo import Duckduckgo
        from ddgs.exceptions import DDGSException
        from lxml.etree import LxmlError  # type: ignore[import-untyped] # it has no stubs

        engine = Duckduckgo(timeout=self._spec.timeout_s)
        payload = engine.build_payload(query, self._spec.region, "moderate", None)
        try:
            answer = engine.http_client.request(engine.search_method, engine.search_url, data=payload)
        except DDGSException as error:
            raise UpstreamError(f"DuckDuckGo: {error}", retryable=True) from error
        status = answer.status_code
        if status != 200:
            why = " (it takes this for a robot; wait some minutes)" if status == 202 else ""
            raise UpstreamError(f"DuckDuckGo: HTTP {status}{why}", status=status, retryable=True)
        try:
            results: list[Any] = engine.post_extract_results(engine.extract_results(answer.text))
        except LxmlError as error:
            raise UpstreamError(f"DuckDuckGo: the answer is no page: {error}", retryable=True) from error
        return tuple(Hit(one.title, one.href, one.body) for one in results[:limit] if one.href)
