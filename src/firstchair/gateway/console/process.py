"""The admin port's own process: what it does holds up no call."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING

from firstchair.gateway.config import GatewayConfig

if TYPE_CHECKING:
    from firstchair.gateway.control.snapshot import Budget
    from firstchair.gateway.control.store import ControlStore

STOP_S = 5.0
"""How long a request under way may take to finish."""


class _InForce:
    """What the admin process takes from a reload: which providers a slot may name, what shadows may cost."""

    def __init__(self, store: ControlStore, config: GatewayConfig):
        self._store = store
        self._shadow_budget = config.shadow.budget
        self._next: GatewayConfig | None = None

    async def prepare(self, config: GatewayConfig) -> None:
        self._next = config

    def use(self) -> None:
        if self._next is not None:
            self._store.use_providers(self._next.providers)
            self._shadow_budget = self._next.shadow.budget
            self._next = None

    async def drop(self) -> None:
        self._next = None

    def shadow_budget(self) -> Budget | None:
        return self._shadow_budget


def admin_main(listener: socket.socket, other: socket.socket) -> Callable[[GatewayConfig, int, socket.socket], None]:
    """The process that answers on ``listener``; ``other``, the call port, is not its own and is closed in it."""

    def run(config: GatewayConfig, parent_fd: int, line: socket.socket) -> None:
        from firstchair.gateway.console.app import admin_app
        from firstchair.gateway.control.store import ControlStore
        from firstchair.gateway.http_server import run_server
        from firstchair.gateway.reload import heed

        other.close()
        with ControlStore.open(config.database, providers=config.providers) as store:
            in_force = _InForce(store, config)
            app = admin_app(
                store,
                traces=config.recording.store,
                spool=config.spool,
                shadow_budget=in_force.shadow_budget,
                require_keys=config.auth.require_keys,
            )

            async def main() -> None:
                heeding = asyncio.create_task(heed(line, in_force))
                await run_server(app, listener, drain_s=STOP_S, parent_fd=parent_fd, on_stop=lambda: None)
                heeding.cancel()

            asyncio.run(main())

    return run
