import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import ddgs.engines.duckduckgo
import pytest
from tests.tools.site import Asked, Page, Site, site

from firstchair.core.config import validate
from firstchair.core.errors import ConfigError, DataError, UpstreamError
from firstchair.tools.base import Failure, ToolFailed
from firstchair.tools.search_hit import Hit
from firstchair.tools.search_index import build_index
from firstchair.tools.web_search import WebSearch, WebSearchSpec, open_backend, results_text

TAVILY_ANSWER = {
    "query": "who is Leo Messi?",
    "answer": None,
    "images": [],
    "results": [
        {"title": "Lionel Messi", "url": "https://a.example/m", "content": "A footballer.", "score": 0.98},
        {"title": "Goals", "url": "https://b.example/g", "content": "Many.", "score": 0.5, "raw_content": None},
    ],
    "response_time": 1.09,
    "request_id": "r",
}
SEARXNG_ANSWER = {
    "query": "messi",
    "number_of_results": 0,
    "results": [
        {"title": "One", "url": "https://a.example/", "content": None, "engine": "bing", "score": 4.0},
        {"title": "Two", "url": "https://b.example/", "content": "text", "engine": "google", "score": 1},
    ],
    "answers": [],
    "unresponsive_engines": [],
}
DUCKDUCKGO_PAGE = """<html><body><div class="links_main links_deep result__body"><h2 class="result__title">
<a class="result__a" href="https://a.example/">The <b>title</b></a></h2>
<a class="result__snippet" href="https://a.example/">A text.</a></div>
<div class="links_main result__body"><h2><a href="https://duckduckgo.com/y.js?ad">An ad</a></h2>
<a href="https://duckduckgo.com/y.js?ad">Buy</a></div></body></html>"""


def as_json(value: Any, status: int = 200, **headers: str) -> Callable[[Asked], Page]:
    return lambda _: Page(json.dumps(value).encode(), status, {"content-type": "application/json", **headers})


def search(backend: dict[str, Any], query: str = "who is Leo Messi?", **options: Any) -> str:
    async def searched() -> str:
        spec = WebSearchSpec.model_validate({"backend": backend, **options})
        tool = WebSearch(spec, open_backend(spec.backend))
        try:
            return await tool.run({"query": query})
        finally:
            await tool.close()

    return asyncio.run(searched())


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAVILY_API_KEY", "tvly-test")


def tavily(made: Site, **options: Any) -> dict[str, Any]:
    return {"type": "tavily", "base_url": made.url, "tries": 1, **options}


def test_tavily_is_asked_and_read_as_its_reference_says():
    with site(as_json(TAVILY_ANSWER)) as made:
        text = search(tavily(made), results=2)
    assert text == (
        "[1] Lionel Messi\nhttps://a.example/m (score 0.98)\nA footballer.\n\n"
        "[2] Goals\nhttps://b.example/g (score 0.5)\nMany."
    )
    (asked,) = made.asked
    assert (asked.method, asked.path, asked.headers["authorization"]) == ("POST", "/search", "Bearer tvly-test")
    assert json.loads(asked.body) == {"query": "who is Leo Messi?", "max_results": 2, "search_depth": "basic"}


@pytest.mark.parametrize(
    ("status", "retryable"), [(401, False), (432, False), (433, False), (429, True), (500, True), (503, True)]
)
def test_what_fails_at_tavily_is_no_answer_to_the_model(status: int, retryable: bool):
    with (
        site(as_json({"detail": {"error": "no"}}, status)) as made,
        pytest.raises(UpstreamError, match=f"Tavily: HTTP {status}: .*no") as raised,
    ):
        search(tavily(made))
    assert (raised.value.status, raised.value.retryable) == (status, retryable)


def test_tavily_is_asked_again_when_it_limits():
    answers = [as_json({}, 429, **{"retry-after": "0"}), as_json(TAVILY_ANSWER)]
    with site(lambda asked: answers.pop(0)(asked)) as made:
        assert search(tavily(made, tries=2)).startswith("[1] Lionel Messi")


def test_a_query_that_tavily_refuses_is_the_models_to_read():
    with (
        site(as_json({"detail": {"error": "Query is too long."}}, 400)) as made,
        pytest.raises(ToolFailed, match=r"invalid_arguments: the query was refused: .*too long"),
    ):
        search(tavily(made))


@pytest.mark.parametrize("answer", [{"results": None}, {"results": ["x"]}, {}])
def test_an_answer_of_another_form_is_a_failure_and_not_no_results(answer: Any):
    with site(as_json(answer)) as made, pytest.raises(UpstreamError, match="no list of results"):
        search(tavily(made))


def test_a_key_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("TAVILY_API_KEY")
    with pytest.raises(ConfigError, match=r"web_search\.backend\.api_key_env: .*TAVILY_API_KEY is not set"):
        search({"type": "tavily"})


def test_searxng_is_asked_and_read_as_its_reference_says():
    with site(as_json(SEARXNG_ANSWER)) as made:
        text = search({"type": "searxng", "base_url": made.url + "/"}, "a & b", results=1)
    assert text == "[1] One\nhttps://a.example/ (score 4)\n"
    (asked,) = made.asked
    assert asked.method == "GET"
    path, _, query = asked.path.partition("?")
    assert (path, parse_qs(query)) == ("/search", {"q": ["a & b"], "format": ["json"], "language": ["auto"]})


@pytest.mark.parametrize(
    ("page", "words"),
    [
        (Page(b"Forbidden", 403), "HTTP 403; is json among search.formats"),
        (Page(b"", 502), "HTTP 502"),
        (Page(b"<html>"), "not JSON"),
        (Page(b"[]"), "expected an object"),
        (Page(b'{"results": [], "unresponsive_engines": [["google", "timeout"]]}'), "did not answer.*google"),
    ],
)
def test_what_fails_at_searxng_is_no_answer_to_the_model(page: Page, words: str):
    with site(lambda _: page) as made, pytest.raises(UpstreamError, match=words):
        search({"type": "searxng", "base_url": made.url})


def test_a_server_that_is_not_there_is_retryable():
    with pytest.raises(UpstreamError, match="ConnectError") as raised:
        search({"type": "searxng", "base_url": "http://127.0.0.1:1"})
    assert raised.value.retryable


def test_an_address_that_is_none_is_the_users_mistake():
    with pytest.raises(ConfigError, match=r"backend\.searxng\.base_url: Input should be a valid URL"):
        validate(WebSearchSpec, {"backend": {"type": "searxng", "base_url": "searx"}}, source="here")


def test_nothing_found_is_said_in_words():
    with site(as_json({"results": [], "unresponsive_engines": []})) as made:
        text = search({"type": "searxng", "base_url": made.url})
    assert text == "No results for 'who is Leo Messi?'; try other words."


@pytest.fixture
def duckduckgo(monkeypatch: pytest.MonkeyPatch) -> Callable[[Page], str]:
    """Search where the library's own engine asks a server of ours."""

    def searched(page: Page) -> str:
        with site(lambda _: page) as made:
            monkeypatch.setattr(ddgs.engines.duckduckgo.Duckduckgo, "search_url", made.url + "/html/")
            try:
                return search({"type": "duckduckgo", "region": "de-de"})
            finally:
                (asked,) = made.asked
                assert parse_qs(asked.body.decode()) == {"q": ["who is Leo Messi?"], "l": ["de-de"]}

    return searched


def test_duckduckgo_gives_results_without_ads(duckduckgo: Callable[[Page], str]):
    page = Page(DUCKDUCKGO_PAGE.encode(), headers={"content-type": "text/html"})
    assert duckduckgo(page) == "[1] The title\nhttps://a.example/\nA text."


def test_a_search_without_results_is_told_from_one_that_was_refused(duckduckgo: Callable[[Page], str]):
    assert duckduckgo(Page(b"<html><body><p>No results.</p></body></html>")).startswith("No results for")
    with pytest.raises(UpstreamError, match=r"HTTP 202.*robot") as raised:
        duckduckgo(Page(b"<html><body>anomaly</body></html>", 202))
    assert raised.value.retryable
    with pytest.raises(UpstreamError, match="is no page"):
        duckduckgo(Page(b""))


def test_local_files_are_found_with_their_lines(tmp_path: Path):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "harbour.md").write_text("# Harbour\n\nThe lighthouse opens at nine.\n")
    (tmp_path / "docs" / "market.md").write_text("The market sells fish.\n")
    build_index(tmp_path / "docs", tmp_path / "index")
    found = search({"type": "local", "index": str(tmp_path / "index")}, "When does the lighthouse open?")
    assert found.startswith("[1] harbour.md:1 (score ")
    assert found.split("\n", 1)[1].startswith("# Harbour\n\nThe lighthouse opens at nine.\n\n[2] market.md:1")
    assert "No results" in search({"type": "local", "index": str(tmp_path / "index")}, "zebra")


def test_an_index_that_is_not_there_is_named(tmp_path: Path):
    with pytest.raises(DataError, match=r"not a search index .*firstchair tools index"):
        search({"type": "local", "index": str(tmp_path)})


def test_a_blank_query_is_refused_before_anything_is_asked():
    with pytest.raises(ToolFailed) as failed:
        search({"type": "searxng", "base_url": "http://127.0.0.1:1"}, "  ")
    assert failed.value.kind is Failure.INVALID_ARGUMENTS


def test_a_long_text_of_a_result_is_cut():
    assert results_text([Hit("t", "u", "abcdef")], 4) == "[1] t\nu\nabc…"
