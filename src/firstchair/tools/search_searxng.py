"""``web_search`` through a SearXNG server of one's own: ``GET /search?format=json``."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Literal

import httpx
from pydantic import Field, HttpUrl

from firstchair.core.config import Strict
from firstchair.core.errors import UpstreamError
from firstchair.core.jsontext import JsonProblem, loads
from firstchair.engines.http_retry import RETRYABLE_STATUS
from firstchair.tools.search_hit import Hit, read_results
from firstchair.tools.tls import tls_context


class SearxngSpec(Strict):
    """A SearXNG server with ``json`` among ``search.formats`` of its settings.yml."""

    type: Literal["searxng"] = "searxng"
    base_url: HttpUrl
    """Without ``/search``."""
    language: str = "auto"
    timeout_s: float = Field(default=30.0, gt=0)


class Searxng:
    """The backend."""

    def __init__(self, spec: SearxngSpec):
        self._client = httpx.AsyncClient(base_url=str(spec.base_url), timeout=spec.timeout_s, verify=tls_context())
        self._language, self._timeout_s = spec.language, spec.timeout_s

    async def search(self, query: str, limit: int) -> Sequence[Hit]:
        """One search; the server gives about 20 results, of which the first ``limit`` are taken."""
        where = f"SearXNG at {self._client.base_url}"
        try:
            # httpx's own limit begins anew with every byte.
            async with asyncio.timeout(self._timeout_s):
                answer = await self._client.get(
                    "/search", params={"q": query, "format": "json", "language": self._language}
                )
        except (httpx.HTTPError, TimeoutError) as error:
            raise UpstreamError(f"{where}: {type(error).__name__}: {error}", retryable=True) from error
        if answer.status_code != 200:
            hint = "; is json among search.formats of its settings.yml?" if answer.status_code == 403 else ""
            raise UpstreamError(
                f"{where}: HTTP {answer.status_code}{hint}",
                status=answer.status_code,
                retryable=answer.status_code in RETRYABLE_STATUS,
            )
        try:
            found = loads(answer.text)
        except JsonProblem as problem:
            raise UpstreamError(f"{where}: the answer is not JSON: {problem}") from None
        if not isinstance(found, dict):
            raise UpstreamError(f"{where}: the answer is {type(found).__name__}; expected an object")
        hits = read_results(found, where, limit)
        silent = found.get("unresponsive_engines")
        if not hits and silent:
            # It asks others; when those do not answer, nothing found says nothing of the query.
            raise UpstreamError(f"{where}: no results, and engines that did not answer: {silent}", retryable=True)
        return hits

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()
