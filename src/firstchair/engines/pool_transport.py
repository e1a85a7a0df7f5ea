"""``core.http_client`` in the place of httpx's own connections, below an ``httpx.AsyncClient``.

    httpx.AsyncClient: base URL, headers ─► PoolTransport ─► core.http_client.Pool ─► sockets

httpx's pool looks at all its connections for every request: with 128 of them that is most of what a request costs.
What httpx knows and the pool does not, proxies, stays with httpx.
"""

from __future__ import annotations

import asyncio
import ssl
import urllib.request
from typing import TYPE_CHECKING

import httpx

from firstchair.engines.http_retry import MAX_ANSWER_BYTES

if TYPE_CHECKING:
    from firstchair.core.http_client import Pool

_PROXIES = frozenset({"http", "https", "all"})
_OWN = frozenset({b"host", b"content-length", b"accept-encoding"})
"""Request headers that the pool writes itself, or that promise more encodings than it reads."""
_DONE_WITH = frozenset({"content-encoding", "content-length", "transfer-encoding"})
"""Headers of an answer that are no longer true of its body."""


def pool_transport(base_url: str, *, limit: int, tls: ssl.SSLContext) -> PoolTransport | None:
    """Connections to the server of ``base_url``, at most ``limit``.

    ``None``, which leaves it to httpx, where the environment names a proxy, for another scheme than http and https,
    and without httptools (``firstchair[gateway]``).
    """
    if _PROXIES & urllib.request.getproxies().keys() or httpx.URL(base_url).scheme not in ("http", "https"):
        return None
    try:
        from firstchair.core.http_client import KEEPALIVE_S, Pool
    except ModuleNotFoundError:
        return None
    return PoolTransport(Pool(base_url, limit=limit, keepalive_s=KEEPALIVE_S, tls=tls))


class PoolTransport(httpx.AsyncBaseTransport):
    """Sends POSTs and gives whole answers; failures are httpx's, as a client of httpx expects."""

    def __init__(self, pool: Pool):
        self._pool = pool

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """The answer, read to its end within the request's ``read`` timeout.

        Raises ``httpx.TransportError``, and ``httpx.DecodingError`` for one of more than ``MAX_ANSWER_BYTES``.
        """
        from firstchair.core.http_client import ConnectTimeout, HttpFault, NotConnected, TooLong, head_lines

        assert request.method == "POST", "an engine only posts"
        times, sent = request.extensions["timeout"], request.headers.raw
        own = {name.decode(): value.decode("latin-1") for name, value in sent if name.lower() not in _OWN}
        try:
            head = head_lines(own | {"accept-encoding": "gzip, deflate"})
            async with asyncio.timeout(times["read"]):
                answer = await self._pool.post(
                    request.url.raw_path, head, await request.aread(), connect_s=times["connect"]
                )
                body = await answer.rest(MAX_ANSWER_BYTES)
        except TimeoutError:
            raise httpx.ReadTimeout("", request=request) from None
        except ConnectTimeout:
            raise httpx.ConnectTimeout("", request=request) from None
        except NotConnected as error:
            raise httpx.ConnectError(str(error), request=request) from error
        except TooLong as error:
            raise httpx.DecodingError(str(error), request=request) from error
        except HttpFault as error:
            reason = str(error) or "the server closed the connection before its answer had ended"
            raise httpx.RemoteProtocolError(reason, request=request) from error
        except ValueError as error:
            raise httpx.LocalProtocolError(str(error), request=request) from error
        kept = [(name, value) for name, value in answer.headers.items() if name not in _DONE_WITH]
        return httpx.Response(answer.status, headers=kept, content=body)

    async def aclose(self) -> None:
        """Close every connection."""
        await self._pool.close()
