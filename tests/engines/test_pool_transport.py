"""An engine asks through the lean client where it can, and through httpx where only that knows the way."""

from __future__ import annotations

import asyncio
import gzip
import json
import ssl
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from firstchair.chat.messages import text_message
from firstchair.engines import http_retry
from firstchair.engines import pool_transport as pool_transport_module
from firstchair.engines.base import ErrorKind, Generation, Request
from firstchair.engines.http_engine import HttpOptions
from firstchair.engines.http_retry import RetryPolicy
from firstchair.engines.openai_engine import OpenAIEngine
from firstchair.engines.pool_transport import pool_transport
from firstchair.testing.fault_server import Answer, FaultServer

TLS = Path(__file__).parents[1] / "core/tls"
CHAT = {"model": "m", "choices": [{"message": {"role": "assistant", "content": "hello"}, "finish_reason": "stop"}]}


def ask(base_url: str, tries: int = 1) -> Generation:
    async def go() -> Generation:
        options = HttpOptions(retry=RetryPolicy(tries=tries, connect_s=30, read_s=30))
        engine = OpenAIEngine(base_url, "m", api_key="k7", options=options)
        (found,) = [one async for one in engine.generate([Request("a", messages=(text_message("user", "hi"),))])]
        await engine.close()
        return replace(found, latency_s=0)

    return asyncio.run(go())


def is_lean(base_url: str = "http://127.0.0.1:1/v1") -> bool:
    return pool_transport(base_url, limit=1, tls=httpx.create_ssl_context()) is not None


def test_an_answer_is_the_same_through_both_and_asks_for_no_encoding_that_cannot_be_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    packed = Answer(gzip.compress(json.dumps(CHAT).encode()), headers={"content-encoding": "gzip"})
    with FaultServer(lambda seen, number: packed) as server:
        lean = ask(f"{server.base_url}/v1")
        monkeypatch.setitem(sys.modules, "firstchair.core.http_client", None)
        assert not is_lean()
        assert ask(f"{server.base_url}/v1") == lean
    assert lean.message is not None
    assert lean.message.text == "hello"
    first, second = server.seen
    assert first.headers["accept-encoding"] == "gzip, deflate"
    assert (first.path, first.body) == (second.path, second.body)
    assert first.headers.keys() == second.headers.keys()
    assert first.headers["authorization"] == "Bearer k7"


@pytest.mark.parametrize("lean", [True, False])
def test_an_answer_that_is_too_long_is_given_up_and_not_asked_for_again(
    monkeypatch: pytest.MonkeyPatch, lean: bool
) -> None:
    for module in (http_retry, pool_transport_module):
        monkeypatch.setattr(module, "MAX_ANSWER_BYTES", 1000)
    if not lean:
        monkeypatch.setitem(sys.modules, "firstchair.core.http_client", None)
    endless = Answer(b" " * 1001)
    with FaultServer(lambda seen, number: endless) as server:
        found = ask(f"{server.base_url}/v1", tries=3)
    assert found.error_kind is ErrorKind.BAD_RESPONSE
    assert "a body of more than 1,000 bytes" in (found.error or "")
    assert len(server.seen) == 1


def test_a_proxy_in_the_environment_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_lean()
    with FaultServer(lambda seen, number: Answer(CHAT)) as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.base_url)
        assert not is_lean()
        assert ask("http://models.invalid/v1").error is None
    assert proxy.seen[0].path == "http://models.invalid/v1/chat/completions"


def test_whom_to_trust_is_as_httpx_is_told() -> None:
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(TLS / "localhost.crt", TLS / "localhost.key")
    trusting = ssl.create_default_context(cafile=TLS / "localhost.crt")

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"{}")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
        writer.close()

    async def post(url: str, tls: ssl.SSLContext) -> Any:
        transport = pool_transport(url, limit=1, tls=tls)
        async with httpx.AsyncClient(transport=transport, timeout=30) as client:
            return (await client.post(url, content=b"{}")).text

    async def go() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=serving)
        url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        assert await post(url, trusting) == "ok"
        with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
            await post(url, ssl.create_default_context())
        server.close()

    asyncio.run(go())
