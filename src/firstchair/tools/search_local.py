"""``web_search`` over files of one's own: the BM25 index of ``firstchair tools index``."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from firstchair.core.config import Strict
from firstchair.tools.search_hit import Hit
from firstchair.tools.search_index import SearchIndex


class LocalSearchSpec(Strict):
    """An index on this machine: no key, no network."""

    type: Literal["local"] = "local"
    index: Path
    """Directory that ``firstchair tools index`` wrote."""


class LocalSearch:
    """The backend. Raises ``DataError`` when the index cannot be read."""

    def __init__(self, spec: LocalSearchSpec):
        self._index = SearchIndex.load(spec.index)

    async def search(self, query: str, limit: int) -> Sequence[Hit]:
        """Passages, in a thread: a large index takes a while."""
        return await asyncio.to_thread(self._index.search, query, limit)

    async def close(self) -> None:
        """Close the index."""
        self._index.close()
