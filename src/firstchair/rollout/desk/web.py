"""The desk's tiny web: a few dozen pages with a search index, built from a seed, never changed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from random import Random
from types import MappingProxyType

from firstchair.rollout.desk.values import Values, slug

SUBJECTS = 16
"""Each has its own page and an entry in a guide, so a web has twice as many pages."""

WEBS = 400
"""Different webs; a task names one by number."""

_WORD = re.compile(r"[a-z0-9]+")


@dataclass(frozen=True, slots=True)
class Page:
    """One page: a subject and facts about it."""

    url: str
    title: str
    facts: tuple[tuple[str, str], ...]

    @property
    def text(self) -> str:
        """What a reader gets."""
        return document(self.facts)


@dataclass(frozen=True, slots=True)
class Web:
    """Pages by address, and which pages a word of a title leads to."""

    pages: Mapping[str, Page]
    index: Mapping[str, tuple[str, ...]]

    def find(self, query: str) -> tuple[Page, ...]:
        """Pages whose title shares the most words with ``query`` (two at least), in stable order."""
        terms = set(_WORD.findall(query.lower()))
        hits: dict[str, int] = {}
        for term in terms:
            for url in self.index.get(term, ()):
                hits[url] = hits.get(url, 0) + 1
        best = max(hits.values(), default=0)
        if best < 2:
            return ()
        return tuple(self.pages[url] for url in self.pages if hits.get(url) == best)


def document(facts: tuple[tuple[str, str], ...]) -> str:
    """Facts as text: ``owner: Ana Silva. budget: 4200.``"""
    return " ".join(f"{key}: {value}." for key, value in facts)


@lru_cache(maxsize=WEBS)
def build_web(number: int) -> Web:
    """The web of this number (a pure function of it)."""
    values = Values(Random(f"web:{number}"))
    pages: dict[str, Page] = {}
    index: dict[str, list[str]] = {}
    titles: set[str] = set()
    while len(titles) < SUBJECTS:
        title = values.place()
        first, second, kind = title.lower().split(" ")
        site = f"https://{first}{second}.{values.pick(('org', 'com', 'net'))}/{kind}"
        if title in titles or site in pages:
            continue
        titles.add(title)
        facts = values.fields(6 if len(titles) % 2 else 3)
        guide = f"https://guide{values.below(90) + 10}.net/{slug(title)}"
        for url in (site, guide):
            pages[url] = Page(url, title, facts)
            for term in (first, second, kind):
                index.setdefault(term, []).append(url)
    return Web(MappingProxyType(pages), MappingProxyType({term: tuple(urls) for term, urls in index.items()}))
