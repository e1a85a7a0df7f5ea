"""A console over a gateway that real calls went through, with the long names, failures and losses of a bad week."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import uvicorn
from tests.gateway.console.traffic import fill

from firstchair.chat.messages import ToolCall
from firstchair.gateway.console.app import admin_app
from firstchair.gateway.control.keys import KeyLimits
from firstchair.gateway.serve import sink_settings
from firstchair.gateway.sink import Sink
from firstchair.gateway.spool import SpoolWriter
from firstchair.testing.gateway_server import provider, running_gateway
from firstchair.testing.scripted_upstream import Fault, Reply, Script, scripted_upstream

LONG_SLOT = "orchestrator-of-the-customer-support-desk-in-europe-west-staging"
LONG_MODEL = "accounts/fireworks/models/llama-v3p1-405b-instruct-turbo-long-context-2026-07-15-preview"
LONG_SESSION = "desk/2026-07-15/tenant-4711/conversation-0f8fad5b-d9cb-469f-a165-70867728950e"
SLOT = {
    "slot": LONG_SLOT,
    "match": ["gpt-*", "o3-a-very-long-model-name-of-yesteryear-2025-04-16", "gemini-codex-max-with-a-long-name"],
    "primary": {"provider": "local", "model": LONG_MODEL},
    "fallbacks": [{"provider": "anthropic", "model": "claude-sonnet-4-6"}],
    "shadow": [
        {"provider": "down", "model": "orchestrator-4b"},
        {"provider": "anthropic", "model": "claude-haiku-4-5"},
    ],
    "canary": {"route": {"provider": "down", "model": "orchestrator-4b-canary"}, "percent": 30},
    "counterfactual": "anthropic/claude-sonnet-4-6",
    "retries": {"attempts": 1},
}
TOOL = {"name": "find_trips", "description": "Find the trips of a customer.", "parameters": {"type": "object"}}


@contextlib.contextmanager
def serving(app) -> Iterator[str]:
    """The application on a port of its own; its URL."""
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_config=None, lifespan="off"))
    ready = threading.Event()
    startup = server.startup

    async def started(sockets=None):
        await startup(sockets)
        ready.set()

    server.startup = started
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        assert ready.wait(60)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(60)


@contextlib.contextmanager
def live_console(folder: Path) -> Iterator[tuple[str, str]]:
    """The console's URL and a key that opens it, while the gateway runs."""
    call = ToolCall.of("call_1", "find_trips", {"customer": "c-4711", "note": "a_token_without_any_space_" * 12})
    answers = (
        Reply(calls=(call,)),
        Reply(text="You have two trips. " * 20),
        Reply(fault=Fault("status", status=529)),
    )
    script = Script(by=_in_turn(answers))
    with scripted_upstream(script) as upstream, scripted_upstream(Script((Reply(text="Hello."),))) as backup:
        providers = {
            "anthropic": provider(backup.base_url, "anthropic"),
            "local": provider(upstream.base_url),
            "down": provider("http://127.0.0.1:9"),
        }
        limits = KeyLimits(budget_nano=10**9, requests_per_minute=600, tokens_per_minute=2_000_000)
        with running_gateway(
            folder, providers, [SLOT], limits, breaker={"failures": 2}, logs={"calls": False}
        ) as running:
            fill(running.store, running.config.recording.store, calls=60)
            for number in range(18):
                _ask(running.url, running.key, number)
            running.wait_until(lambda: not running.app.shadows.running and not running.app.shadows.waiting)
            closed = SpoolWriter(running.config.spool, "w9")
            closed.close()
            closed.append(b"too late")
            with Sink(sink_settings(running.config), readers=_readers(running)) as sink:
                assert sink.drain(60), sink.status()
                running.store.create_key(
                    "spent-key-of-the-nightly-regression-run", ["call"], KeyLimits(budget_nano=0), who="ops"
                )
                app = admin_app(
                    running.store,
                    traces=running.config.recording.store,
                    spool=running.config.spool,
                    wait_s=0.0,
                )
                with serving(app) as url:
                    yield url, running.store.create_key("boss", ["admin"], who="ops").secret


def _in_turn(answers):
    seen = iter(range(10**6))
    return lambda _: answers[next(seen) % len(answers)]


def _readers(running):
    return {name: dialect.read_request for name, dialect in running.worker.dialects.items()}


def _ask(url: str, key: str, number: int) -> None:
    messages = [
        {"role": "system", "content": "You help at a desk."},
        {"role": "user", "content": f"Where is trip {number}?"},
    ]
    httpx.post(
        f"{url}/v1/chat/completions",
        json={"model": LONG_SLOT, "messages": messages, "tools": [{"type": "function", "function": TOOL}]},
        headers={"authorization": f"Bearer {key}", "x-firstchair-session": f"{LONG_SESSION}-{number % 4}"},
        timeout=60,
    )
