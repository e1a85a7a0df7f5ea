"""The admin port's own process: what it does holds up no call."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

from firstchair.gateway.config import GatewayConfig

STOP_S = 5.0
"""How long a request under way may take to finish."""


def admin_main(config: GatewayConfig, listener: socket.socket, other: socket.socket) -> Callable[[int], None]:
    """The process that answers on ``listener``; ``other``, the call port, is not its own and is closed in it."""

    def run(parent_fd: int) -> None:
        from firstchair.gateway.console.app import admin_app
        from firstchair.gateway.control.store import ControlStore
        from firstchair.gateway.http_server import run_server

        other.close()
        with ControlStore.open(config.database, providers=config.providers) as store:
            app = admin_app(
                store,
                traces=config.recording.store,
                spool=config.spool,
                providers=config.providers,
                shadow_budget=config.shadow.budget,
                require_keys=config.auth.require_keys,
            )
            stopping = run_server(app, listener, drain_s=STOP_S, parent_fd=parent_fd, on_stop=lambda: None)
            asyncio.run(stopping)

    return run
