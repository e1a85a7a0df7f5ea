"""``http_request``: a model's request to the public web, and to nothing else.

    URL ──→ host resolved once ──→ every address public? ──→ connect to that address ──→ redirect? from the beginning
                                          └─ no: refused

What is checked is what is connected to: the address stands in the request's URL, the name only in ``Host`` and TLS,
so a name that resolves to something else a moment later changes nothing.
"""

from __future__ import annotations

import asyncio
import codecs
import ipaddress
import socket
import zlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import httpx
from pydantic import Field

from firstchair.chat.messages import Tool
from firstchair.core.config import Strict
from firstchair.tools.addresses import Address, forbidden
from firstchair.tools.base import Failure, ToolFailed, object_schema
from firstchair.tools.tls import tls_context

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""Host and port → the addresses as text; raises ``OSError``."""

Method = Literal["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"]

_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_OURS = frozenset(
    {"host", "connection", "content-length", "transfer-encoding", "accept-encoding", "upgrade", "te", "trailer"}
    | {"proxy-authorization", "proxy-connection", "keep-alive", "expect"}
)
"""Headers that a model may not set: they say where a message ends and where it goes."""
_OF_ORIGIN = frozenset({"authorization", "cookie"})
"""Headers that go nowhere but where they were meant for."""
_NO_CHARSETS = frozenset({"idna", "punycode", "undefined", "unicode-escape", "raw-unicode-escape"})
"""Codecs of Python's own, which no page is written in: they refuse to replace what is broken, or take a time that
grows with the square of the page.
"""
_SHOWN = ("content-type", "location", "retry-after", "last-modified", "www-authenticate", "allow")


class HttpRequestSpec(Strict):
    """What may be asked for, and how much of it is read."""

    type: Literal["http_request"] = "http_request"
    methods: tuple[Method, ...] = Field(default=("GET", "HEAD", "POST"), min_length=1)
    allow: tuple[str, ...] = ()
    """``host:port`` as URLs write them that may be reached whatever their addresses, for servers of one's own."""
    max_redirects: int = Field(default=5, ge=0)
    max_request_bytes: int = Field(default=100_000, ge=1)
    max_response_bytes: int = Field(default=2_000_000, ge=1)
    """Of the body, decompressed; the rest is not read."""
    timeout_s: float = Field(default=20.0, gt=0)
    """Redirects included."""


@dataclass(frozen=True)
class _Ask:
    """One request, before it is sent."""

    method: str
    url: httpx.URL
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""


async def resolve_host(host: str, port: int) -> Sequence[str]:
    """The system's resolver."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


class HttpRequest:
    """The tool. A site that cannot be reached, or is slow, is the model's to read: it chose the site."""

    def __init__(self, spec: HttpRequestSpec, *, resolve: Resolve = resolve_host):
        self._spec, self._resolve = spec, resolve
        self.timeout_s: float | None = spec.timeout_s
        # A transport and no client: no proxy out of the environment, which would resolve the name itself, and no
        # cookies, which would go from one episode to the next.
        self._transport = httpx.AsyncHTTPTransport(
            verify=tls_context(), limits=httpx.Limits(max_keepalive_connections=0)
        )
        self.tool = Tool(
            name="http_request",
            description="Send a request to a public http or https address and read the text of the answer.",
            parameters=object_schema(
                {
                    "url": {"type": "string"},
                    "method": {"type": "string", "enum": list(spec.methods), "description": "GET unless given."},
                    "headers": {"type": "object", "additionalProperties": {"type": "string"}},
                    "body": {"type": "string"},
                },
                required=("url",),
            ),
        )

    async def run(self, arguments: Mapping[str, Any]) -> str:
        """Status, some headers and the text."""
        ask = self._checked(arguments)
        for _ in range(self._spec.max_redirects + 1):
            answer = await self._send(ask)
            try:
                target = answer.headers.get("location")
                if answer.status_code not in _REDIRECTS or target is None:
                    return await self._read(ask, answer)
                ask = _redirected(ask, answer.status_code, _url(target, base=ask.url))
            finally:
                await answer.aclose()
        raise ToolFailed(Failure.FAILED, f"more than {self._spec.max_redirects} redirects, the last to {ask.url}")

    async def close(self) -> None:
        """Close the transport."""
        await self._transport.aclose()

    def _checked(self, arguments: Mapping[str, Any]) -> _Ask:
        body = arguments.get("body", "").encode("utf-8")
        if len(body) > self._spec.max_request_bytes:
            limit = self._spec.max_request_bytes
            raise ToolFailed(Failure.TOO_LARGE, f"the body has {len(body):,} bytes of at most {limit:,}")
        headers = {name.lower(): value for name, value in arguments.get("headers", {}).items()}
        taken = sorted(_OURS & headers.keys())
        if taken:
            raise ToolFailed(Failure.REFUSED, f"the header {taken[0]!r} is not yours to set; leave it out")
        method = arguments.get("method", self._spec.methods[0])
        return _Ask(method, _url(arguments["url"]), headers, body)

    async def _send(self, ask: _Ask) -> httpx.Response:
        """The answer to one request, its body unread; ``aclose`` it."""
        failure: Exception | None = None
        for address in (await self._addresses(ask.url))[:3]:
            try:
                return await self._transport.handle_async_request(_pinned(ask, address))
            except httpx.ConnectError as error:
                failure = error
            except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
                raise ToolFailed(Failure.FAILED, f"{ask.url}: {type(error).__name__}: {error}") from None
        raise ToolFailed(Failure.FAILED, f"{ask.url}: cannot connect: {failure}")

    async def _addresses(self, url: httpx.URL) -> list[Address]:
        """Where the host of ``url`` is. Raises ``ToolFailed`` when any of it must not be reached."""
        port = url.port or (443 if url.scheme == "https" else 80)
        host = url.raw_host.decode("ascii")
        try:
            found = [ipaddress.ip_address(one.partition("%")[0]) for one in await self._resolve(host, port)]
        except (OSError, UnicodeError) as error:
            raise ToolFailed(Failure.NOT_FOUND, f"{host}: cannot be resolved ({error}); check the spelling") from None
        if not found:
            raise ToolFailed(Failure.NOT_FOUND, f"{host}: has no address; check the spelling")
        if f"[{host}]:{port}" not in self._spec.allow and f"{host}:{port}" not in self._spec.allow:
            for address in found:
                reason = forbidden(address)
                if reason is not None:
                    raise ToolFailed(
                        Failure.REFUSED, f"{host} is at {address} ({reason}); only public addresses can be reached"
                    )
        return found

    async def _read(self, ask: _Ask, answer: httpx.Response) -> str:
        limit = self._spec.max_response_bytes
        try:
            body, is_whole = await _body(answer, limit)
        except (httpx.HTTPError, zlib.error) as error:
            raise ToolFailed(Failure.FAILED, f"{ask.url}: the answer broke off: {error}") from None
        head = [f"HTTP {answer.status_code} {ask.url}"]
        head += [f"{name}: {answer.headers[name]}" for name in _SHOWN if name in answer.headers]
        if not _is_text(answer, body):
            return "\n".join([*head, "", f"[{len(body):,} bytes that are no text]"])
        note = "" if is_whole else f"\n[cut: only the first {limit:,} bytes were read]"
        return "\n".join([*head, "", body.decode(_encoding(answer), "replace")]) + note


def _pinned(ask: _Ask, address: Address) -> httpx.Request:
    """The request as it is sent to ``address`` and nowhere else."""
    headers = {"user-agent": "firstchair", **ask.headers, "accept-encoding": "gzip", "connection": "close"}
    return httpx.Request(
        ask.method,
        ask.url.copy_with(host=str(address)),
        headers={**headers, "host": ask.url.netloc.decode("ascii")},
        content=ask.body or None,
        extensions={"sni_hostname": ask.url.raw_host.decode("ascii")},
    )


def _url(text: str, *, base: httpx.URL | None = None) -> httpx.URL:
    """A URL that can be asked for. Raises ``ToolFailed``."""
    try:
        url = httpx.URL(text) if base is None else base.join(text)
        host = url.raw_host
    except (httpx.InvalidURL, ValueError, TypeError) as error:
        raise ToolFailed(Failure.INVALID_ARGUMENTS, f"{text[:200]!r} is no URL: {error}") from None
    if url.scheme not in ("http", "https") or not host:
        raise ToolFailed(Failure.REFUSED, f"{text[:200]!r}: expected a URL with http:// or https:// and a host")
    if url.port is not None and not 0 < url.port < 65_536:
        raise ToolFailed(Failure.INVALID_ARGUMENTS, f"{text[:200]!r} is no URL: a port is 1 to 65535")
    if url.userinfo:
        raise ToolFailed(
            Failure.REFUSED,
            f"{host.decode('ascii')}: no user and password in a URL; send an Authorization header",
        )
    return url.copy_with(fragment=None)


def _redirected(ask: _Ask, status: int, url: httpx.URL) -> _Ask:
    """The request that follows a redirect, as browsers do it (RFC 9110, 15.4)."""
    # Not ``host``, which undoes IDNA and raises for what is none.
    same = (url.scheme, url.raw_host, url.port) == (ask.url.scheme, ask.url.raw_host, ask.url.port)
    headers = {name: value for name, value in ask.headers.items() if same or name not in _OF_ORIGIN}
    if (status == 303 and ask.method != "HEAD") or (status in (301, 302) and ask.method == "POST"):
        headers.pop("content-type", None)
        return _Ask("GET", url, headers)
    return _Ask(ask.method, url, headers, ask.body)


async def _body(answer: httpx.Response, limit: int) -> tuple[bytes, bool]:
    """At most ``limit`` bytes of the body, and whether that is all of it."""
    encoding = answer.headers.get("content-encoding", "identity").lower()
    if encoding not in ("identity", "gzip", "x-gzip"):
        raise ToolFailed(Failure.FAILED, f"the answer is compressed as {encoding!r}, which nobody asked for")
    # httpx would inflate a whole piece at once, however large it becomes.
    inflate = zlib.decompressobj(zlib.MAX_WBITS | 16) if encoding != "identity" else None
    body = bytearray()  # a site may send a byte at a time, and bytes are copied whole for each
    async for piece in answer.aiter_raw():
        body += inflate.decompress(piece, limit + 1 - len(body)) if inflate is not None else piece
        if len(body) > limit:
            return bytes(body[:limit]), False
        if inflate is not None and inflate.eof:
            break  # what comes after the end would only pile up
    if inflate is not None and body and not inflate.eof:
        raise zlib.error("the compressed data ends early")
    return bytes(body), True


def _encoding(answer: httpx.Response) -> str:
    name = answer.charset_encoding or "utf-8"
    try:
        "".encode(name)
        is_known = codecs.lookup(name).name not in _NO_CHARSETS
    except (LookupError, UnicodeError):
        is_known = False
    return name if is_known else "utf-8"


def _is_text(answer: httpx.Response, body: bytes) -> bool:
    kind = answer.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind.startswith("text/") or kind.endswith(("json", "xml", "javascript", "yaml", "x-www-form-urlencoded")):
        return True
    try:
        # Incremental, so that a character may end beyond what is looked at.
        return "\0" not in codecs.getincrementaldecoder("utf-8")().decode(body[:1000])
    except UnicodeDecodeError:
        return False
