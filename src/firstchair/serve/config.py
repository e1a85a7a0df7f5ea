"""``serve.yaml``: who leads, who may be asked, how far a request may go, and who may send one.

policy: {type: server, base_url: http://127.0.0.1:8000/v1, model: my-policy}
experts: [qwen3_5_9b, claude_opus_4_8]
tools: {tools: [{type: calculator}]}
budget_usd: 0.05
api_keys: [FIRSTCHAIR_SERVE_KEY]
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping

from pydantic import Field, model_validator

from firstchair.catalog.prices import ModelPrice
from firstchair.core.config import Strict
from firstchair.core.errors import ConfigError
from firstchair.rollout.orchestration.policy_spec import PolicySpec
from firstchair.rollout.orchestration.setup import RolloutParts


class Listen(Strict):
    """Where requests come in."""

    host: str = "127.0.0.1"
    """Any other than a loopback address needs ``api_keys``."""
    port: int = Field(default=8500, ge=0, le=65_535)
    """0 takes a free one."""


class ServeConfig(RolloutParts):
    """Everything of ``firstchair serve``. Experts, tools, offer and limits are as in a run of ``orchestrate``."""

    listen: Listen = Listen()
    model: str = Field(default="orchestrator", min_length=1)
    """What clients ask for."""
    policy: PolicySpec
    """The model that leads."""
    policy_price: ModelPrice | None = None
    """USD per million of its tokens; none: by the price table, and 0 for a model that is loaded here."""
    max_steps: int = Field(default=8, ge=1)
    """Actions until a request is cut; a request may ask for fewer."""
    budget_usd: float | None = Field(default=None, gt=0, le=1_000_000)
    """Of a request that names none; none: no budget."""
    preference: dict[str, float] = Field(default_factory=dict)
    """Of a request that names none: ``accuracy``, ``cost``, ``latency`` or a tool's name → weight."""
    api_keys: tuple[str, ...] = ()
    """Environment variables that hold a key each; empty: anyone who can connect may ask."""
    concurrency: int = Field(default=64, ge=1)
    """Requests under way; one more is told to come again (429)."""
    answer_after_s: float = Field(default=480.0, gt=0)
    """From then on no step is begun any more: what has been found is the answer."""
    timeout_s: float = Field(default=600.0, gt=0)
    """Longest that a request may take; then it is ended without an answer (504)."""
    max_body_bytes: int = Field(default=4 * 1024 * 1024, ge=1024)
    """A longer request is refused (413)."""
    drain_s: float = Field(default=30.0, ge=1)
    """How long requests under way may go on after SIGTERM."""

    @model_validator(mode="after")
    def _fits_together(self) -> ServeConfig:
        if self.answer_after_s > self.timeout_s:
            raise ValueError(
                f"answer_after_s ({self.answer_after_s:g}) is above timeout_s ({self.timeout_s:g}); lower the first"
            )
        if not self.api_keys and not _is_loopback(self.listen.host):
            raise ValueError(f"listen.host {self.listen.host!r} can be reached from elsewhere; name api_keys")
        return self


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def keys_of(config: ServeConfig, environ: Mapping[str, str]) -> tuple[str, ...]:
    """The keys that clients may send. Raises ``ConfigError`` for a variable that holds none."""
    missing = [name for name in config.api_keys if not environ.get(name)]
    if missing:
        raise ConfigError(f"api_keys: the environment variable {missing[0]} is not set")
    return tuple(environ[name] for name in config.api_keys)
