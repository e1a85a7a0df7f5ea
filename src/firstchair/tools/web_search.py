"""``web_search``: a query, and the best results of the backend that is configured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from firstchair.chat.messages import Tool
from firstchair.core.config import Strict
from firstchair.tools.base import Failure, ToolFailed, object_schema
from firstchair.tools.search_duckduckgo import DuckDuckGo, DuckDuckGoSpec
from firstchair.tools.search_hit import Hit, SearchBackend
from firstchair.tools.search_local import LocalSearch, LocalSearchSpec
from firstchair.tools.search_searxng import Searxng, SearxngSpec
from firstchair.tools.search_tavily import Tavily, TavilySpec

MAX_QUERY_CHARS = 400
"""Tavily refuses longer ones."""

Backend = Annotated[LocalSearchSpec | TavilySpec | SearxngSpec | DuckDuckGoSpec, Field(discriminator="type")]


class WebSearchSpec(Strict):
    """Where and how much is searched."""

    type: Literal["web_search"] = "web_search"
    backend: Backend
    results: int = Field(default=5, ge=1, le=20)
    result_chars: int = Field(default=1_200, ge=100)
    """Of each result's text."""


class WebSearch:
    """The tool. Its backend keeps the time; when that fails, ``UpstreamError`` is raised."""

    timeout_s: float | None = None

    def __init__(self, spec: WebSearchSpec, backend: SearchBackend):
        self._spec, self._backend = spec, backend
        where = "local documents" if isinstance(spec.backend, LocalSearchSpec) else "the web"
        self.tool = Tool(
            name="web_search",
            description=f"Search {where}; gives up to {spec.results} results with title, place and text.",
            parameters=object_schema(
                {"query": {"type": "string", "minLength": 1, "maxLength": MAX_QUERY_CHARS}}, required=("query",)
            ),
        )

    async def run(self, arguments: Mapping[str, Any]) -> str:
        """The results as text."""
        query = arguments["query"].strip()
        if not query:
            raise ToolFailed(Failure.INVALID_ARGUMENTS, "the query is empty; say what to look for")
        hits = await self._backend.search(query, self._spec.results)
        return results_text(hits, self._spec.result_chars) if hits else f"No results for {query!r}; try other words."

    async def close(self) -> None:
        """Close the backend."""
        await self._backend.close()


def results_text(hits: Sequence[Hit], chars: int) -> str:
    """Hits as a model reads them: number, title, place and score, then the text."""
    blocks = []
    for number, hit in enumerate(hits, start=1):
        place = hit.url if hit.url.startswith(hit.title) else f"{hit.title}\n{hit.url}"
        score = "" if hit.score is None else f" (score {hit.score:.3g})"
        text = hit.text if len(hit.text) <= chars else hit.text[: chars - 1] + "…"
        blocks.append(f"[{number}] {place}{score}\n{text}")
    return "\n\n".join(blocks)


def open_backend(spec: Backend) -> SearchBackend:
    """The backend that ``spec`` names. Raises ``ConfigError`` for a missing key, ``DataError`` for an index."""
    match spec:
        case LocalSearchSpec():
            return LocalSearch(spec)
        case TavilySpec():
            return Tavily(spec)
        case SearxngSpec():
            return Searxng(spec)
        case DuckDuckGoSpec():
            return DuckDuckGo(spec)
