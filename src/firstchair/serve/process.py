"""The process of ``firstchair serve``: everything opened, requests answered, everything closed.

SIGTERM and Ctrl-C: new requests are refused, those under way go on for ``drain_s`` at most, what is left then is told
that it is cut short, and the port closes.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Mapping
from typing import Any

from firstchair.catalog.prices import ModelPrice, PriceTable
from firstchair.core.errors import BadRequest, ConfigError, RunFailed
from firstchair.core.extras import require
from firstchair.rollout.orchestration.policy_spec import LocalPolicy, open_policy
from firstchair.rollout.orchestration.setup import OpenedParts, open_parts
from firstchair.rollout.policy import Policy
from firstchair.serve.config import Listen, ServeConfig, keys_of

BACKLOG = 1024
CLOSE_S = 5.0
"""How long connections may take to close once no request is under way."""


def serve(config: ServeConfig, environ: Mapping[str, str], ready: Callable[[str], None]) -> None:
    """Serve until told to stop; ``ready`` hears a line about it once requests are answered.

    Raises ``ConfigError`` for what is missing: a key, an expert's, a package, the port. Raises ``RunFailed`` when the
    stop has cut requests short.
    """
    require("gateway")
    keys = keys_of(config, environ)
    with listening(config.listen) as listener:
        asyncio.run(_serve(config, environ, keys, listener, ready))


def listening(listen: Listen) -> socket.socket:
    """The port, at which clients wait from now on. Raises ``ConfigError``."""
    family = socket.AF_INET6 if ":" in listen.host else socket.AF_INET
    try:
        return socket.create_server((listen.host, listen.port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise ConfigError(
            f"listen: cannot listen on {listen.host}:{listen.port}: {error.strerror}; choose another host or port"
        ) from None


async def _serve(
    config: ServeConfig,
    environ: Mapping[str, str],
    keys: tuple[str, ...],
    listener: socket.socket,
    ready: Callable[[str], None],
) -> None:
    from firstchair.gateway.http_server import run_server
    from firstchair.gateway.json_log import JsonLines, log
    from firstchair.gateway.telemetry import tracer_provider
    from firstchair.serve.app import Door, build_app
    from firstchair.serve.orchestrator import Defaults, Shared
    from firstchair.serve.under_way import UnderWay

    logging.basicConfig(level=logging.WARNING, handlers=[JsonLines()], force=True)
    provider = tracer_provider(environ)
    try:
        async with (
            open_parts(config, environ) as parts,
            open_policy(config.policy, concurrency=config.concurrency) as policy,
        ):
            # A preference is put into words: those of an anonymised offer must not tell who the models are.
            hidden = config.offer.anonymised
            names = frozenset(one.name for one in parts.full.offered if not hidden or one.kind != "model")
            _check_preference(config, names)
            tracer = None if provider is None else provider.get_tracer("firstchair.serve")
            prices = with_policy(parts.prices, policy, config)
            shared = Shared(policy, parts.offer, parts.experts, parts.toolset, prices, tracer)
            defaults = Defaults(
                max_steps=config.max_steps,
                budget_usd=config.budget_usd,
                preference=config.preference,
                limits=config.limits,
                answer_after_s=config.answer_after_s,
                timeout_s=config.timeout_s,
            )
            door = Door(config.model, keys, config.concurrency, config.max_body_bytes, names)
            under_way = UnderWay()
            app = build_app(shared, defaults, door, log, under_way)
            ready(start_line(config, listener, parts, policy))
            await run_server(
                app,
                listener,
                drain_s=CLOSE_S,
                parent_fd=None,
                on_stop=lambda: log("stopping"),
                before_close=lambda: under_way.drain(config.drain_s),
            )
            log("stopped", cut=under_way.cut)
    finally:
        if provider is not None:
            provider.shutdown()
    if under_way.cut:
        which = "1 request had" if under_way.cut == 1 else f"{under_way.cut} requests had"
        were = "was" if under_way.cut == 1 else "were"
        raise RunFailed(
            f"{which} no answer {config.drain_s:g} s after the stop and {were} cut short; raise drain_s for more time"
        )


def with_policy(prices: PriceTable, policy: Policy, config: ServeConfig) -> PriceTable:
    """``prices``, with what the policy's own tokens cost where the config or the place where it runs says it."""
    own = config.policy_price
    if own is None and isinstance(config.policy, LocalPolicy):
        own = ModelPrice.model_validate({"input": 0, "output": 0})
    return prices if own is None else PriceTable(prices.version, {**prices.models, policy.name: own})


def start_line(config: ServeConfig, listener: socket.socket, parts: OpenedParts, policy: Policy) -> str:
    """What is served, where, and by whom."""
    host, port = listener.getsockname()[:2]
    models, tools = len(parts.full.models), len(parts.full.offered) - len(parts.full.models)
    budget = "no budget" if config.budget_usd is None else f"at most ${config.budget_usd:g} a request"
    keys = _counted(len(config.api_keys), "key") if config.api_keys else "no keys"
    where = f"http://{f'[{host}]' if ':' in host else host}:{port}/v1"
    return (
        f"{config.model} on {where}  ({policy.name} leads {_counted(models, 'expert')} and "
        f"{_counted(tools, 'tool')}; {budget}; {keys}; Ctrl-C stops)"
    )


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _check_preference(config: ServeConfig, names: Any) -> None:
    from firstchair.serve.requests import check_preference

    try:
        check_preference(config.preference, names)
    except BadRequest as error:
        raise ConfigError(str(error).removeprefix("firstchair.")) from None
