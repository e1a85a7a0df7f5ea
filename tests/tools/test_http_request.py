import asyncio
import gzip
import ipaddress
import re
import ssl
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.tools.site import Asked, Page, Site, site

from firstchair.chat.messages import ToolCall
from firstchair.tools import http_request
from firstchair.tools.addresses import forbidden
from firstchair.tools.base import Failure, ToolFailed
from firstchair.tools.http_request import HttpRequest, HttpRequestSpec, resolve_host
from firstchair.tools.toolbox import ToolBox

GZIP = {"content-encoding": "gzip"}


NOT_REACHED = re.compile("refused: |is no URL|cannot be resolved")
TEXT = {"content-type": "text/plain"}
PAGES = {
    "/hello": Page(b"hello", headers=TEXT),
    "/umlaut": Page("grüße".encode("latin-1"), headers={"content-type": "text/html; charset=latin-1"}),
    "/odd-charset": Page("grüße".encode(), headers={"content-type": "text/html; charset=klingon"}),
    **{
        f"/charset/{name}": Page(b"page-a\xff", headers={"content-type": f"text/plain; charset={name}"})
        for name in ("idna", "punycode", "undefined", "unicode_escape", "raw_unicode_escape")
    },
    "/see-other": Page(status=303, headers={"location": "/echo"}),
    "/keep": Page(status=307, headers={"location": "/echo"}),
    "/round": Page(status=301, headers={"location": "/round"}),
    "/cookie": Page(b"have one", headers={"set-cookie": "session=1"}),
    "/big": Page(b"x" * 5000),
    "/zipped": Page(gzip.compress(b"inflated"), headers=GZIP),
    "/bomb": Page(gzip.compress(bytes(10_000_000)), headers={**GZIP, **TEXT}),
    "/no-zip": Page(b"no gzip", headers=GZIP),
    "/cut-zip": Page(gzip.compress(b"x" * 999)[:-5], headers=GZIP),
    "/brotli": Page(b"x", headers={"content-encoding": "br"}),
    "/image": Page(b"\x89PNG\x00\xff", headers={"content-type": "image/png"}),
    "/short": Page(b"ab", headers={"content-length": "100", "connection": "close"}),
}


def pages(asked: Asked) -> Page:
    path, _, query = asked.path.partition("?")
    if path == "/to":
        return Page(status=302, headers={"location": query})
    if path == "/echo":
        return Page(f"{asked.method} {asked.body!r}".encode(), headers=TEXT)
    if path == "/hang-up":
        raise ConnectionAbortedError
    return PAGES.get(path, Page(b"nothing here", status=404))


@pytest.fixture(scope="module")
def server() -> Iterator[Site]:
    with site(pages) as made:
        yield made


def get(server: Site, path: str, *, allow: Sequence[str] = (), **arguments: Any) -> str:
    spec = HttpRequestSpec(allow=(f"127.0.0.1:{server.port}", *allow), max_response_bytes=1000, max_redirects=2)
    return send(spec, {"url": f"{server.url}{path}", **arguments})


def send(spec: HttpRequestSpec, arguments: dict[str, Any], **options: Any) -> str:
    async def sent() -> str:
        tool = HttpRequest(spec, **options)
        try:
            return await tool.run(arguments)
        finally:
            await tool.close()

    return asyncio.run(sent())


def fails(kind: Failure, words: str, act: Callable[..., object], *arguments: Any, **named: Any) -> None:
    with pytest.raises(ToolFailed) as failed:
        act(*arguments, **named)
    assert words in str(failed.value)
    assert failed.value.kind is kind


def test_an_answer_is_status_headers_and_text(server: Site):
    url = f"{server.url}/hello"
    assert get(server, "/hello#part") == f"HTTP 200 {url}\ncontent-type: text/plain\n\nhello"
    assert get(server, "/missing").startswith(f"HTTP 404 {server.url}/missing\n\nnothing here")
    assert get(server, "/hello", method="HEAD").endswith("text/plain\n\n")
    assert "grüße" in get(server, "/umlaut")
    assert "grüße" in get(server, "/odd-charset")
    assert "inflated" in get(server, "/zipped")


@pytest.mark.parametrize("path", [path for path in PAGES if path.startswith("/charset/")])
def test_a_page_in_no_charset_of_the_web_is_read_as_utf_8(server: Site, path: str):
    """Python has codecs that raise, or take a time that grows with the square of the page."""
    assert get(server, path).endswith("page-a\N{REPLACEMENT CHARACTER}")


def test_a_redirect_to_a_name_that_is_no_idna_is_the_models_to_read(server: Site):
    fails(Failure.NOT_FOUND, "xn--a.invalid: cannot be resolved", get, server, "/to?http://xn--a.invalid/")


def test_a_post_is_sent_as_it_was_asked_for(server: Site):
    assert "POST b'{}'" in get(server, "/echo", method="POST", body="{}", headers={"X-Own": "1"})
    assert server.asked[-1].headers["x-own"] == "1"
    assert server.asked[-1].headers["host"] == f"127.0.0.1:{server.port}"


def test_redirects_go_on_as_in_a_browser(server: Site):
    assert "GET b''" in get(server, "/see-other", method="POST", body="x", headers={"content-type": "a/b"})
    assert "content-type" not in server.asked[-1].headers
    assert "POST b'x'" in get(server, "/keep", method="POST", body="x")
    fails(Failure.FAILED, "more than 2 redirects", get, server, "/round")


def test_a_secret_goes_to_its_own_origin_only(server: Site):
    with site(pages) as other:
        get(
            server,
            f"/to?{other.url}/hello",
            allow=(f"127.0.0.1:{other.port}",),
            headers={"Authorization": "Bearer s", "Cookie": "c", "Accept": "text/plain"},
        )
        get(server, f"/to?{server.url}/hello", headers={"Authorization": "Bearer s"})
        assert {"authorization", "cookie"} & other.asked[-1].headers.keys() == set()
        assert other.asked[-1].headers["accept"] == "text/plain"
    assert server.asked[-1].headers["authorization"] == "Bearer s"


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "localhost",
        "localhost.",
        "2130706433",
        "0x7f000001",
        "0x7f.1",
        "0177.0.0.1",
        "127.1",
        "0.0.0.0",
        "[::1]",
        "[::]",
        "[::ffff:127.0.0.1]",
        "[::ffff:7f00:1]",
        "[::127.0.0.1]",
        "[64:ff9b::7f00:1]",
        "[2002:7f00:1::]",
        "[fe80::1]",
        "[fd00:ec2::254]",
        "169.254.169.254",
        "100.100.100.200",
        "10.0.0.1",
        "172.16.0.1",
        "192.168.1.1",
        "168.63.129.16",
        "224.0.0.1",
        "255.255.255.255",
        "①②⑦.⓪.⓪.①",
    ],
)
def test_no_spelling_of_a_private_address_is_reached_at_once_or_by_a_redirect(server: Site, host: str):
    """The server listens, so that whatever got through would be seen; only its usual spelling is allowed."""
    inside = HttpRequestSpec(timeout_s=5)
    before = len(server.asked)
    with pytest.raises(ToolFailed, match=NOT_REACHED):
        send(inside, {"url": f"http://{host}:{server.port}/hello"})
    assert len(server.asked) == before
    if host == "127.0.0.1":
        return
    with pytest.raises(ToolFailed, match=NOT_REACHED):
        get(server, f"/to?http://{host}:{server.port}/hello")
    assert [one.path[:4] for one in server.asked[before:]] == ["/to?"]


def test_a_redirect_to_another_port_of_an_allowed_host_is_refused(server: Site):
    fails(Failure.REFUSED, "(loopback)", get, server, "/to?http://127.0.0.1:1/x")
    fails(Failure.REFUSED, "expected a URL with http", get, server, "/to?file:///etc/passwd")


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("8.8.8.8", None),
        ("2606:4700:4700::1111", None),
        ("::ffff:8.8.8.8", None),
        ("64:ff9b::808:808", None),
        ("::ffff:10.0.0.1", "private"),
        ("100.64.0.1", "private"),
        ("198.18.0.1", "private"),
        ("240.0.0.1", "private"),
        ("fec0::1", "private"),
        ("fc00::1", "private"),
        ("ff02::1", "multicast"),
        ("169.254.169.254", "metadata"),
        ("169.254.1.1", "link-local"),
        ("2001:0:a9fe:a9fe::", "metadata"),
    ],
)
def test_addresses_are_judged_by_what_they_are(address: str, reason: str | None):
    found = forbidden(ipaddress.ip_address(address))
    assert found is None if reason is None else reason in str(found)


def test_a_name_is_resolved_once_and_connected_to_where_it_was_checked(server: Site):
    """A name that no system knows is reached at the address that was checked, however it resolves afterwards."""
    calls: list[str] = []

    async def resolve(host: str, port: int) -> Sequence[str]:
        calls.append(host)
        return ["127.0.0.1"] if len(calls) == 1 else ["169.254.169.254"]

    spec = HttpRequestSpec(allow=(f"pinned.invalid:{server.port}",))
    found = send(spec, {"url": f"http://pinned.invalid:{server.port}/hello"}, resolve=resolve)
    assert found.endswith("hello")
    assert calls == ["pinned.invalid"]
    assert server.asked[-1].headers["host"] == f"pinned.invalid:{server.port}"


def test_a_certificate_is_checked_against_the_name_and_not_the_address(monkeypatch: pytest.MonkeyPatch):
    data = Path(__file__).parents[1] / "core" / "tls"  # for 127.0.0.1
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(data / "localhost.crt", data / "localhost.key")
    trusting = ssl.create_default_context(cafile=data / "localhost.crt")
    monkeypatch.setattr(http_request, "tls_context", lambda: trusting)

    async def resolve(host: str, port: int) -> Sequence[str]:
        return ["127.0.0.1"]

    with site(pages, tls=serving) as made:
        spec = HttpRequestSpec(allow=(f"127.0.0.1:{made.port}", f"other.invalid:{made.port}"))
        assert send(spec, {"url": f"https://127.0.0.1:{made.port}/hello"}, resolve=resolve).endswith("hello")
        url = f"https://other.invalid:{made.port}/hello"
        fails(Failure.FAILED, "not valid for 'other.invalid'", send, spec, {"url": url}, resolve=resolve)


def test_one_private_address_among_public_ones_is_enough_to_refuse(server: Site):
    async def resolve(host: str, port: int) -> Sequence[str]:
        return ["93.184.216.34", "::1"]

    fails(Failure.REFUSED, "is at ::1", send, HttpRequestSpec(), {"url": "http://two.invalid/"}, resolve=resolve)


def test_a_name_with_several_addresses_is_tried_at_the_next(server: Site):
    async def resolve(host: str, port: int) -> Sequence[str]:
        return ["127.0.0.2", "127.0.0.1"]

    spec = HttpRequestSpec(allow=(f"pair.invalid:{server.port}",))
    assert send(spec, {"url": f"http://pair.invalid:{server.port}/hello"}, resolve=resolve).endswith("hello")


def test_the_systems_resolver_gives_each_address_once():
    assert asyncio.run(resolve_host("127.0.0.1", 80)) == ["127.0.0.1"]


def test_an_answer_is_read_up_to_a_limit_also_when_it_inflates(server: Site):
    assert get(server, "/big").endswith("x" * 1000 + "\n[cut: only the first 1,000 bytes were read]")
    assert len(get(server, "/bomb")) < 1200


def test_what_is_no_text_is_counted_and_not_shown(server: Site):
    assert get(server, "/image").endswith("content-type: image/png\n\n[6 bytes that are no text]")


def test_no_cookie_is_kept_for_the_next_request(server: Site):
    async def twice() -> None:
        tool = HttpRequest(HttpRequestSpec(allow=(f"127.0.0.1:{server.port}",)))
        await tool.run({"url": f"{server.url}/cookie"})
        await tool.run({"url": f"{server.url}/hello"})
        await tool.close()

    asyncio.run(twice())
    assert "cookie" not in server.asked[-1].headers


def test_no_proxy_of_the_environment_is_used(server: Site, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:1")
    assert get(server, "/hello").endswith("hello")


@pytest.mark.parametrize(
    ("arguments", "kind", "words"),
    [
        ({"url": "ftp://example.com/"}, Failure.REFUSED, "expected a URL with http"),
        ({"url": "example.com/x"}, Failure.REFUSED, "expected a URL with http"),
        ({"url": "http://"}, Failure.REFUSED, "expected a URL with http"),
        ({"url": "http://a:b@example.com/"}, Failure.REFUSED, "no user and password"),
        ({"url": "http://[::1/"}, Failure.INVALID_ARGUMENTS, "is no URL"),
        ({"url": "http://example.com:99999/"}, Failure.INVALID_ARGUMENTS, "is no URL"),
        ({"url": "http://no.such.invalid/"}, Failure.NOT_FOUND, "cannot be resolved"),
        ({"url": "http://a/", "headers": {"Host": "b"}}, Failure.REFUSED, "'host' is not yours"),
        ({"url": "http://a/", "headers": {"Transfer-Encoding": "x"}}, Failure.REFUSED, "'transfer-encoding'"),
        ({"url": "http://a/", "method": "POST", "body": "x" * 200_000}, Failure.TOO_LARGE, "at most 100,000"),
    ],
)
def test_a_request_that_cannot_be_is_explained(arguments: dict[str, Any], kind: Failure, words: str):
    fails(kind, words, send, HttpRequestSpec(), arguments)


def test_a_header_cannot_carry_another(server: Site):
    fails(Failure.FAILED, "header", get, server, "/hello", headers={"x-a": "1\r\nx-b: 2"})


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/hang-up", "RemoteProtocolError"),
        ("/short", "broke off"),
        ("/no-zip", "broke off"),
        ("/cut-zip", "broke off"),
        ("/brotli", "'br'"),
    ],
)
def test_a_site_that_misbehaves_is_the_models_to_read(server: Site, path: str, words: str):
    fails(Failure.FAILED, words, get, server, path)


def test_a_site_that_is_not_there_is_the_models_to_read():
    fails(
        Failure.FAILED,
        "cannot connect",
        send,
        HttpRequestSpec(allow=("127.0.0.1:1",)),
        {"url": "http://127.0.0.1:1/"},
    )


def test_the_toolbox_keeps_to_methods_and_time(server: Site):
    async def call(arguments: str) -> str:
        spec = HttpRequestSpec(methods=("GET",), allow=(f"127.0.0.1:{server.port}",), timeout_s=0.1)

        async def slow(host: str, port: int) -> Sequence[str]:
            await asyncio.sleep(9)
            return []

        async with ToolBox([HttpRequest(spec, resolve=slow)]) as box:
            return (await box.call(ToolCall("1", "http_request", arguments))).text

    assert "'POST' is not one of" in asyncio.run(call('{"url": "http://a/", "method": "POST"}'))
    assert "timeout: http_request was stopped after 0.1 s" in asyncio.run(call('{"url": "http://slow.invalid/"}'))


def test_nothing_is_read_after_the_end_of_compressed_data():
    class Endless(httpx.Response):
        async def aiter_raw(self, chunk_size: int | None = None) -> AsyncIterator[bytes]:
            yield gzip.compress(b"inflated")
            pytest.fail("has read on")

    assert asyncio.run(http_request._body(Endless(200, headers=GZIP), 100)) == (b"inflated", True)
