"""What calls are served with: providers, their keys, prices, redaction, limits.

worker.setup ──→ a call keeps the one that it began with
    ↑ replaced whole by a reload; the old one closes its connections behind its last call
"""

from __future__ import annotations

import copy

from firstchair.catalog.prices import PriceTable
from firstchair.gateway.breaker import Breaker, BreakerRules
from firstchair.gateway.config import GatewayConfig, Recording
from firstchair.gateway.context import PromptCounter
from firstchair.gateway.recorder import Recorder
from firstchair.gateway.redaction import Redactor, load_hook
from firstchair.gateway.spool import SpoolWriter
from firstchair.gateway.upstream import Upstream


class Setup:
    """One reading of the configuration. ``connect`` on the event loop, ``close`` behind the last call."""

    def __init__(self, config: GatewayConfig, spool: SpoolWriter, before: Setup | None = None):
        """Reads files and imports the redaction hook: off the event loop. Raises ``ConfigError``.

        ``before``: the setup in force; what it knows of providers that stay as they are is kept.
        """
        self.config = config
        self.prices = PriceTable.load(config.prices)
        self.recorder = Recorder(spool, redactor_of(config.recording), keep_content=config.recording.on)
        self.counting = {
            name: PromptCounter(provider.tokenizer)
            for name, provider in config.providers.items()
            if provider.tokenizer is not None
        }
        self.breakers = _breakers(config)
        if before is not None and before.config.breaker == config.breaker:
            known = before.config.providers
            kept = [name for name, provider in config.providers.items() if known.get(name) == provider]
            self.breakers |= {name: before.breakers[name] for name in kept}
        self._secrets = {name: provider.secret(name) for name, provider in config.providers.items()}
        self.upstreams: dict[str, Upstream] = {}
        self.calls = 0
        """Under way with this setup, shadow calls too."""
        self._lane: Setup | None = None

    def connect(self) -> None:
        """Make room for connections to every provider."""
        providers = self.config.providers
        self.upstreams = {name: Upstream(name, one, self._secrets[name]) for name, one in providers.items()}

    def lane(self) -> Setup:
        """The same with connections and breakers of its own: a candidate that is down takes no route from calls."""
        if self._lane is None:
            self._lane = copy.copy(self)
            self._lane.breakers = _breakers(self.config)
            self._lane.connect()
        return self._lane

    async def close(self) -> None:
        if self._lane is not None:
            await self._lane.close()
        for upstream in self.upstreams.values():
            await upstream.close()


def redactor_of(recording: Recording) -> Redactor | None:
    """What is taken out before anything is written; ``None``: nothing. Raises ``ConfigError``."""
    if not recording.redact:
        return None
    hook = load_hook(recording.redact_hook) if recording.redact_hook else None
    return Redactor(patterns=recording.patterns, hook=hook)


def _breakers(config: GatewayConfig) -> dict[str, Breaker]:
    rules = BreakerRules(**config.breaker.model_dump())
    return {name: Breaker(rules) for name in config.providers}
