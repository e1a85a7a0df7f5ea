"""The least a Python gateway can be: read the model's name, send the bytes on, send the answer back.

    python bench/gateway/passthrough.py PORT '{"plain": "http://127.0.0.1:…", …}'

uvicorn, uvloop, httptools, raw ASGI, aiohttp. No keys, ledger, recording or fallback: the floor to compare with.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import aiohttp
import orjson
import uvicorn


class App:
    """One ASGI application; ``upstreams`` by model."""

    def __init__(self, upstreams: dict[str, str]):
        self._upstreams = upstreams

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await receive()
            connector = aiohttp.TCPConnector(limit=512)
            self._client = aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar())
            await send({"type": "lifespan.startup.complete"})
            await receive()
            await self._client.close()
            await send({"type": "lifespan.shutdown.complete"})
            return
        raw, more = b"", True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            raw += message.get("body", b"")
            more = message.get("more_body", False)
        url = self._upstreams[orjson.loads(raw)["model"]] + scope["path"]
        async with self._client.post(url, data=raw, headers={"content-type": "application/json"}) as answer:
            kind = answer.headers["content-type"].encode()
            headers = [(b"content-type", kind)]
            if answer.content_length is not None:
                headers.append((b"content-length", str(answer.content_length).encode()))
            await send({"type": "http.response.start", "status": answer.status, "headers": headers})
            while chunk := await answer.content.readany():
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body"})


def main() -> None:
    uvicorn.run(
        App(json.loads(sys.argv[2])),
        host="127.0.0.1",
        port=int(sys.argv[1]),
        loop="uvloop",
        http="httptools",
        ws="none",
        access_log=False,
        log_level="warning",
    )


if __name__ == "__main__":
    main()
