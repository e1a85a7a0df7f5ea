"""One provider as a worker calls it: one connection pool each, every failure typed.

Nothing here follows a redirect, reads a proxy from the environment or keeps a cookie: a call goes to the URL of the
configuration or nowhere.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Final

import msgspec

from firstchair.core.http_client import (
    KEEPALIVE_S,
    Answer,
    ConnectTimeout,
    Disconnected,
    HttpFault,
    NotConnected,
    Pool,
    head_lines,
    request_path,
)
from firstchair.gateway.dialects.base import DialectName, Failure, FailureKind, StreamFault
from firstchair.gateway.dialects.failures import read_failure

if TYPE_CHECKING:
    from firstchair.gateway.config import Provider

FORWARDED: Mapping[DialectName, frozenset[bytes]] = {
    "anthropic": frozenset({b"anthropic-version", b"anthropic-beta"}),
    "openai": frozenset({b"openai-beta"}),
    "responses": frozenset({b"openai-beta"}),
}
"""Request headers of the client that go on to a provider of the same dialect. Nothing else does."""
ANTHROPIC_VERSION: Final = "2023-06-01"
MAX_ERROR_BYTES: Final = 1 << 20
LINGER_S: Final = 1.0
"""How long a provider may keep its connection open behind the last event of a stream."""
_KEEPALIVE_S: Mapping[str, float] = {"anthropic": 30.0, "openai": 30.0, "openai-compatible": KEEPALIVE_S}
"""How long an idle connection is reused."""


class Answered:
    """The head of an answer; its body is read by one of the methods, once."""

    def __init__(self, provider: str, answer: Answer):
        self._provider = provider
        self._answer = answer
        self.status = answer.status

    @property
    def headers(self) -> dict[str, str]:
        """Lower-case names."""
        return self._answer.headers

    @property
    def is_stream(self) -> bool:
        kind = self._answer.headers.get("content-type", "").partition(";")[0]
        return kind.strip().lower() == "text/event-stream"

    async def body(self, limit: int) -> bytes:
        """All of it. Raises ``StreamFault`` when it is cut or longer than ``limit`` bytes."""
        parts: list[bytes] = []
        size = 0
        async for chunk in self.chunks():
            size += len(chunk)
            if size > limit:
                self.stop()
                raise StreamFault(_bad(self._provider, f"sent more than {limit} bytes", self.status))
            parts.append(chunk)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def error_body(self) -> bytes:
        """What of an error can be read; never raises."""
        parts: list[bytes] = []
        try:
            async for chunk in self.chunks():
                parts.append(chunk)
                if sum(map(len, parts)) > MAX_ERROR_BYTES:
                    self.stop()
                    break
        except StreamFault:
            pass
        return b"".join(parts)

    async def chunks(self) -> AsyncIterator[bytes]:
        """The bytes as they come. Raises ``StreamFault`` when the connection breaks."""
        try:
            while chunk := await self._answer.read():
                yield chunk
        except HttpFault:
            raise StreamFault(_bad(self._provider, "broke off its answer", self.status)) from None

    async def finish(self) -> None:
        """Behind an answer that is complete: wait a moment for its end, so that the connection can be used again."""
        try:
            async with asyncio.timeout(LINGER_S):
                async for _ in self.chunks():
                    pass
        except (TimeoutError, StreamFault):
            self.stop()

    def stop(self) -> None:
        """Close the connection: the provider stops computing."""
        self._answer.close()

    def release(self) -> None:
        """Give the connection back, or close it when the answer has not been read to its end."""
        self._answer.release()


class Upstream:
    """One provider."""

    def __init__(self, name: str, provider: Provider, secret: str | None):
        """``secret``: the provider's key; ``None`` for one that wants none."""
        self.name = name
        self.provider = provider
        self._paths = {dialect: request_path(provider.url(dialect)) for dialect in provider.dialects}
        self._secret = secret or ""
        self._headers = _own_headers(provider, secret)
        self._heads = {dialect: self._head(dialect, {}) for dialect in provider.dialects}
        self._pool = Pool(provider.base_url, limit=provider.max_connections, keepalive_s=_KEEPALIVE_S[provider.type])

    async def send(
        self,
        dialect: DialectName,
        body: bytes,
        client_headers: Mapping[str, str],
        *,
        connect_s: float,
        path: bytes = b"",
    ) -> Answered | Failure:
        """POST ``body`` and wait for the head of the answer; the caller holds the clock for that."""
        try:
            head = self._head(dialect, client_headers) if client_headers else self._heads[dialect]
            answer = await self._pool.post(self._paths[dialect] + path, head, body, connect_s=connect_s)
        except ConnectTimeout:
            return self._failed(FailureKind.CONNECT, f"could not be reached within {connect_s:g} s")
        except NotConnected as error:
            return self._failed(FailureKind.CONNECT, _why_not_connected(error.error))
        except Disconnected:
            return self._failed(FailureKind.CONNECT, "closed the connection")
        except (HttpFault, ValueError):
            return self._failed(FailureKind.BAD_ANSWER, "sent what is not HTTP")
        if 300 <= answer.status < 400:
            answer.close()
            return _bad(self.name, "answered with a redirect, which is not followed", answer.status)
        return Answered(self.name, answer)

    def _head(self, dialect: DialectName, client_headers: Mapping[str, str]) -> bytes:
        version = {"anthropic-version": ANTHROPIC_VERSION} if dialect == "anthropic" else {}
        return head_lines({**version, **client_headers, **self._headers})

    async def count_tokens(
        self, body: bytes, headers: Mapping[bytes, bytes], connect_s: float, total_s: float
    ) -> bytes | Failure:
        """What Anthropic's ``count_tokens`` answers."""
        try:
            async with asyncio.timeout(total_s):
                sent = await self.send(
                    "anthropic",
                    body,
                    client_headers("anthropic", headers),
                    connect_s=connect_s,
                    path=b"/count_tokens",
                )
                if isinstance(sent, Failure):
                    return sent
                if sent.status != 200:
                    return read_failure(sent.status, sent.headers, await sent.error_body())
                return await sent.body(MAX_ERROR_BYTES)
        except TimeoutError:
            return self._failed(FailureKind.TIMEOUT, f"did not count within {total_s:g} s")
        except StreamFault as fault:
            return fault.failure

    def hidden(self, failure: Failure) -> Failure:
        """``failure`` without our key, which some providers repeat in what they refuse."""
        if not self._secret or self._secret not in f"{failure.message} {failure.param} {failure.native}":
            return failure
        hidden = {
            name: text.replace(self._secret, "[REDACTED]")
            for name in ("message", "param", "native")
            if (text := getattr(failure, name)) is not None
        }
        return msgspec.structs.replace(failure, **hidden)

    async def close(self) -> None:
        await self._pool.close()

    def _failed(self, kind: FailureKind, what: str) -> Failure:
        return Failure(kind=kind, message=f"provider {self.name} {what}")


def _why_not_connected(error: OSError) -> str:
    """Without the address: clients read it too."""
    if isinstance(error, socket.gaierror):
        return "cannot be reached: its host name is not known"
    if isinstance(error, ssl.SSLError):
        return "cannot be reached: no TLS connection can be made"
    return f"cannot be reached: {os.strerror(error.errno)}" if error.errno else "cannot be reached"


def _bad(provider: str, what: str, status: int | None) -> Failure:
    return Failure(kind=FailureKind.BAD_ANSWER, message=f"provider {provider} {what}", status=status)


def _own_headers(provider: Provider, secret: str | None) -> dict[str, str]:
    # Streams are not worth compressing, and a compressor in between would hold events back.
    headers = {"content-type": "application/json", "accept-encoding": "identity", "user-agent": "firstchair"}
    headers |= {header.lower(): value for header, value in provider.headers.items()}
    if secret is not None:
        if provider.type == "anthropic":
            headers["x-api-key"] = secret
        else:
            headers["authorization"] = f"Bearer {secret}"
    return headers


def client_headers(dialect: DialectName, headers: Mapping[bytes, bytes]) -> dict[str, str]:
    """The headers of a request that go on to a provider of the same dialect. ``headers`` have lower-case names."""
    return {
        name.decode("ascii"): value.decode("latin-1")
        for name in FORWARDED[dialect]
        if (value := headers.get(name)) is not None
    }
