"""``web_search`` through Tavily's API: ``POST /search`` with a bearer key."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Literal

import httpx
from pydantic import Field, HttpUrl

from firstchair.core.config import Strict
from firstchair.core.errors import UpstreamError
from firstchair.engines.http_engine import key_from
from firstchair.engines.http_retry import HttpFailure, RetryPolicy, post_json
from firstchair.tools.base import Failure, ToolFailed
from firstchair.tools.search_hit import Hit, read_results
from firstchair.tools.tls import tls_context

_QUERY_REFUSED = frozenset({400, 422})


class TavilySpec(Strict):
    """Tavily; a key is needed."""

    type: Literal["tavily"] = "tavily"
    base_url: HttpUrl = HttpUrl("https://api.tavily.com")
    api_key_env: str = "TAVILY_API_KEY"
    """Environment variable that holds the key."""
    search_depth: Literal["basic", "advanced"] = "basic"
    """``advanced`` costs two credits a search."""
    tries: int = Field(default=3, ge=1)
    """When it limits, fails (5xx) or cannot be reached."""
    try_s: float = Field(default=30.0, gt=0)


class Tavily:
    """The backend. Raises ``ConfigError`` when the key is not set."""

    def __init__(self, spec: TavilySpec):
        key = key_from(spec.api_key_env, field="web_search.backend.api_key_env")
        self._client = httpx.AsyncClient(
            base_url=str(spec.base_url),
            headers={"authorization": f"Bearer {key}"},
            timeout=spec.try_s,
            verify=tls_context(),
        )
        self._depth = spec.search_depth
        self._policy = RetryPolicy(tries=spec.tries, read_s=spec.try_s, total_s=spec.tries * spec.try_s)

    async def search(self, query: str, limit: int) -> Sequence[Hit]:
        """One search."""
        body = {"query": query, "max_results": limit, "search_depth": self._depth}
        try:
            answer = await post_json(self._client, "/search", body, policy=self._policy, rng=random.Random())
        except HttpFailure as failure:
            if failure.status in _QUERY_REFUSED:
                raise ToolFailed(Failure.INVALID_ARGUMENTS, f"the query was refused: {failure}") from None
            raise UpstreamError(
                f"Tavily: {failure}",
                status=failure.status,
                retryable=failure.retryable,
                retry_after_s=failure.retry_after_s,
            ) from failure
        return read_results(answer, "Tavily", limit)

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()
