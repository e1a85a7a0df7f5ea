"""``gateway.yaml``: what a gateway process needs before its database can be asked.

Providers stand only here, never in the database, so that nobody who may edit slots can make the gateway call a URL
of their choice. Secrets stand only in the environment or in files: this file can be committed.
"""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, model_validator

from firstchair.catalog.token_counts import NANO
from firstchair.core.config import Strict, load_fields, load_recipe, validate
from firstchair.core.errors import ConfigError
from firstchair.gateway.control.slots import Name, Route, SlotConfig
from firstchair.gateway.control.snapshot import Budget, BudgetPeriod
from firstchair.gateway.dialects.base import DialectName
from firstchair.gateway.spool import FsyncPolicy

ProviderType = Literal["anthropic", "openai", "openai-compatible"]

_SPOKEN: Mapping[ProviderType, tuple[DialectName, ...]] = {
    "anthropic": ("anthropic",),
    "openai": ("openai", "responses"),
    "openai-compatible": ("openai",),
}
_PATHS: Mapping[DialectName, str] = {
    "openai": "/chat/completions",
    "responses": "/responses",
    "anthropic": "/messages",
}
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_HEADER_VALUE = re.compile(r"[\x20-\x7e]*")
_SECRET_HEADERS = frozenset({"authorization", "x-api-key", "api-key", "cookie", "proxy-authorization"})
_OWN_HEADERS = frozenset({"host", "content-length", "content-type", "transfer-encoding", "connection"})


def _check_url(text: str) -> str:
    try:
        url = urlsplit(text)
        port = url.port
    except ValueError as error:
        raise ValueError(f"is no URL: {error}") from None
    if "@" in url.netloc:
        return text  # the provider refuses it: the error of a field would repeat the password
    if url.scheme not in ("http", "https") or not url.hostname:
        raise ValueError("expected http://host[:port][/path] or https://…")
    if port == 0:
        raise ValueError("port 0 is no port to call")
    if url.query or url.fragment:
        raise ValueError("a base URL has neither ? nor #; leave them out")
    return text.rstrip("/")


Url = Annotated[str, AfterValidator(_check_url)]


class Provider(Strict):
    """One place that answers calls."""

    type: ProviderType
    base_url: Url
    """As the vendors' SDKs take it: ``https://api.anthropic.com``, ``https://api.openai.com/v1``,
    ``http://127.0.0.1:8000/v1``. A missing ``/v1`` is added when the URL has no path."""
    api_key_env: str | None = None
    """The environment variable that holds the key."""
    api_key_file: Path | None = None
    """A file that holds the key and nothing else."""
    headers: Mapping[str, str] = Field(default_factory=dict)
    """Sent with every call; no place for secrets."""
    speaks: tuple[DialectName, ...] = ()
    """Wire formats the server understands, best first; empty: what ``type`` always understands."""
    context_window: int | None = Field(default=None, ge=1)
    """Tokens of prompt and answer together, where known: longer prompts go to the next route at once."""
    tokenizer: Path | None = None
    """Folder with the model's ``tokenizer.json``; with ``context_window`` it counts prompts before they are sent."""
    max_tokens_field: Literal["max_tokens", "max_completion_tokens"] | None = None
    """How the server calls the token limit; ``None``: ``max_completion_tokens`` for openai, else ``max_tokens``."""
    call_ids: Literal["openai", "anthropic", "mistral"] | None = None
    """Whose rule tool-call ids must fit, where it is not that of the wire format: ``mistral`` wants nine letters or
    digits. Ids that do not fit go out as others, alike in every turn; the client keeps its own."""
    want_tokens: bool = False
    """Ask an OpenAI-compatible server for token ids and logprobs (``return_token_ids``), for training."""
    template_hash: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = None
    """How an OpenAI-compatible server of a trained model must render prompts: ``template_hash`` of the model's
    ``model/firstchair.json``. Kept with every call that it serves; ``promote`` takes only gates of the same hash."""
    max_connections: int = Field(default=512, ge=1)
    """Open connections of one worker to this provider; further calls wait their turn."""

    @model_validator(mode="after")
    def _check(self) -> Provider:
        if "@" in urlsplit(self.base_url).netloc:
            raise ValueError("base_url: a URL may not hold credentials; put the key into api_key_env or api_key_file")
        if self.api_key_env is not None and self.api_key_file is not None:
            raise ValueError("api_key_env and api_key_file are both given; keep one")
        if self.api_key_env is not None and not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", self.api_key_env):
            # Someone pasted the key itself, so it is not repeated.
            raise ValueError("api_key_env must be the NAME of an environment variable, not the key")
        for name, value in self.headers.items():
            if not _HEADER_NAME.fullmatch(name) or not _HEADER_VALUE.fullmatch(value):
                raise ValueError(f"headers.{name!r}: not a header that can be sent; use printable ASCII")
            if name.lower() in _SECRET_HEADERS:
                raise ValueError(f"headers.{name}: holds a secret; use api_key_env or api_key_file")
            if name.lower() in _OWN_HEADERS:
                raise ValueError(f"headers.{name}: is set by the gateway itself; leave it out")
        if self.tokenizer is not None and self.context_window is None:
            raise ValueError("tokenizer is given without context_window; add the window or leave the tokenizer out")
        if self.want_tokens and self.type != "openai-compatible":
            raise ValueError(f"want_tokens: {self.type} returns no token ids; only openai-compatible servers do")
        if self.template_hash is not None and self.type != "openai-compatible":
            raise ValueError(f"template_hash: nobody knows how {self.type} renders prompts; leave it out")
        return self

    @property
    def dialects(self) -> tuple[DialectName, ...]:
        return self.speaks or _SPOKEN[self.type]

    def dialect_for(self, inbound: DialectName) -> DialectName:
        """The wire format to speak: the client's own if the server knows it, so that nothing is translated."""
        return inbound if inbound in self.dialects else self.dialects[0]

    def url(self, dialect: DialectName) -> str:
        """Where a request of ``dialect`` goes."""
        base = self.base_url
        if dialect == "anthropic":
            base = base.removesuffix("/v1") + "/v1"
        elif not urlsplit(base).path:
            base += "/v1"
        return base + _PATHS[dialect]

    def secret(self, name: str) -> str | None:
        """The key, or ``None`` for a server that wants none. Raises ``ConfigError``, which never holds the key."""
        if self.api_key_env is not None:
            value = os.environ.get(self.api_key_env, "").strip()
            if not value:
                raise ConfigError(
                    f"providers.{name}.api_key_env: {self.api_key_env} is not set; export it before the start, "
                    "or take the provider and its routes out of the file"
                )
            where = self.api_key_env
        elif self.api_key_file is not None:
            where = str(self.api_key_file)
            try:
                value = self.api_key_file.read_text(encoding="utf-8").strip()
            except (OSError, UnicodeDecodeError) as error:
                reason = error.strerror if isinstance(error, OSError) else "is not text"
                raise ConfigError(f"providers.{name}.api_key_file: {where}: {reason}") from None
        else:
            return None
        if not value or not value.isascii() or not value.isprintable() or " " in value:
            raise ConfigError(f"providers.{name}: the key in {where} is empty or no single printable word")
        return value


class Listen(Strict):
    """Where the gateway can be reached."""

    host: str = "127.0.0.1"
    port: int = Field(default=8400, ge=0, le=65535)
    """0: any free one, told in the log."""
    admin_host: str = "127.0.0.1"
    admin_port: int = Field(default=8401, ge=0, le=65535)
    """Slots, keys, metrics and the console; its keys need the scope ``admin``."""

    @model_validator(mode="after")
    def _check(self) -> Listen:
        if self.port and self.port == self.admin_port:
            raise ValueError(f"port and admin_port are both {self.port}; calls and administration need one each")
        return self


class Auth(Strict):
    """Who may call."""

    require_keys: bool = True
    """Off only for a gateway that nobody else can reach: it listens on loopback then."""
    on_unreadable_budget: Literal["allow", "refuse"] = "refuse"
    """What happens to calls of a key with a budget while the database cannot be read. Counted either way."""


class Limits(Strict):
    """What one request may be."""

    max_body_mb: float = Field(default=64.0, gt=0, le=1024)
    max_bodies_mb: float = Field(default=1024.0, gt=0, le=100_000)
    """Bodies of all calls that a worker has under way; further calls are refused (503, 529). Text takes twice
    its size in memory, very many short messages some fourteen times."""
    max_headers: int = Field(default=200, ge=16, le=10_000)
    max_header_bytes: int = Field(default=65_536, ge=1024, le=1_048_576)
    """All header names and values together."""
    max_depth: int = Field(default=64, ge=8, le=500)
    """Levels of JSON nesting."""
    max_answer_mb: float = Field(default=64.0, gt=0, le=1024)
    """A longer answer of a provider is a broken one."""
    body_timeout_s: float = Field(default=60.0, gt=0)
    """How long a client may take to send its request."""

    @cached_property
    def max_body_bytes(self) -> int:
        return int(self.max_body_mb * 1_000_000)

    @cached_property
    def max_bodies_bytes(self) -> int:
        return int(self.max_bodies_mb * 1_000_000)

    @cached_property
    def max_answer_bytes(self) -> int:
        return int(self.max_answer_mb * 1_000_000)

    @model_validator(mode="after")
    def _check(self) -> Limits:
        if self.max_bodies_mb < self.max_body_mb:
            raise ValueError(
                f"max_bodies_mb ({self.max_bodies_mb:g}) is below max_body_mb ({self.max_body_mb:g}); "
                "raise the first or lower the second"
            )
        return self


class BreakerConfig(Strict):
    """When a provider is left alone for a while."""

    failures: int = Field(default=5, ge=1)
    """So many failures in a row within ``window_s`` open it."""
    window_s: float = Field(default=30.0, gt=0)
    open_s: float = Field(default=10.0, gt=0)
    """First pause; every probe that fails doubles it, up to ``max_open_s``."""
    max_open_s: float = Field(default=120.0, gt=0)

    @model_validator(mode="after")
    def _check(self) -> BreakerConfig:
        if self.max_open_s < self.open_s:
            raise ValueError(
                f"max_open_s ({self.max_open_s:g}) is below open_s ({self.open_s:g}); raise it or lower open_s"
            )
        return self


class Recording(Strict):
    """What is kept of the calls."""

    on: bool = True
    """Off: the ledger still gets every call, but without its request and answer."""
    store: str = "traces.db"
    """The trace store, SQLite file or PostgreSQL URL."""
    blobs: Path | None = None
    """Folder of large bodies; ``None``: ``blobs`` in the spool folder."""
    redact: bool = True
    """Replace what looks like a credential before anything is written."""
    redact_hook: str | None = None
    """``package.module:function`` that gets one text and returns what is kept of it, after the built-in patterns."""
    patterns: tuple[str, ...] = ()
    """Further regular expressions to redact."""
    idle_s: float = Field(default=60.0, gt=0)
    """A session is written so long after its last call."""
    max_unsaved_s: float = Field(default=300.0, gt=0)
    """And at the latest so long after a call, while further ones arrive."""
    max_branches: int = Field(default=10_000, ge=1)
    """Open branches of sessions in memory; the least recently used are written first when there are more."""
    max_spool_gb: float = Field(default=4.0, gt=0, le=100_000)
    """Size of the whole spool folder's segments; beyond it records are lost, counted (``cap``), and calls go on."""
    fsync: FsyncPolicy = "never"
    """When the spool is made to reach the disk. A killed process loses nothing either way; a power cut may take
    what the kernel had not written yet, some 30 s (``never``), what came since ``fsync_interval_s`` (``interval``),
    or nothing (``always``: every call waits for the disk)."""
    fsync_interval_s: float = Field(default=1.0, gt=0, le=3600)
    keep_days: float | None = Field(default=None, gt=0)
    """How long calls are kept byte for byte beside their sessions; ``null``: for ever. Ledger and sessions stay."""


class ShadowConfig(Strict):
    """How much of each worker shadow calls may use, and what they may cost. What has no room, or no money left, is
    dropped and counted."""

    queue_calls: int = Field(default=256, ge=1)
    queue_mb: float = Field(default=64.0, gt=0)
    """Request bodies of the calls that wait or run."""
    at_once: int = Field(default=4, ge=1, le=256)
    budget_usd: float | None = Field(default=None, ge=0, le=1_000_000_000)
    """What the shadow calls of all slots and workers together may cost in one period; ``None``: no limit."""
    budget_period: BudgetPeriod = "day"
    """When what was spent counts anew, UTC."""

    @property
    def budget(self) -> Budget | None:
        return None if self.budget_usd is None else Budget(round(self.budget_usd * NANO), self.budget_period)


class Logs(Strict):
    """What is written to stderr, one JSON object a line."""

    calls: bool = True
    """One line for every call."""
    content: bool = False
    """The request and the answer in it, as they are recorded: redacted, and only where ``recording.on``."""


class GatewayConfig(Strict):
    """One gateway."""

    listen: Listen = Listen()
    workers: int = Field(default=1, ge=1, le=256)
    """Processes that answer calls."""
    database: str = "gateway.db"
    """Slots, keys, ledger: SQLite file or PostgreSQL URL."""
    spool: Path = Path("spool")
    """Folder where finished calls wait for the database; on a disk that outlives the process."""
    prices: Path | None = None
    """Price table; ``None``: the one that is shipped."""
    providers: dict[Name, Provider] = Field(min_length=1)
    slots: tuple[SlotConfig, ...] = ()
    """Written into a database that has none yet; afterwards the database decides."""
    auth: Auth = Auth()
    limits: Limits = Limits()
    breaker: BreakerConfig = BreakerConfig()
    recording: Recording = Recording()
    shadow: ShadowConfig = ShadowConfig()
    logs: Logs = Logs()
    drain_s: float = Field(default=30.0, ge=0)
    """How long running calls may take to finish after SIGTERM."""

    @property
    def blob_folder(self) -> Path:
        """Where large bodies lie."""
        return self.recording.blobs or self.spool / "blobs"

    @model_validator(mode="after")
    def _check(self) -> GatewayConfig:
        if not self.auth.require_keys:
            for field, host in (("host", self.listen.host), ("admin_host", self.listen.admin_host)):
                if not is_loopback(host):
                    raise ValueError(
                        f"listen.{field} is {host} while auth.require_keys is off: anyone could call at your cost; "
                        "turn keys on or listen on 127.0.0.1"
                    )
        names = [slot.slot for slot in self.slots]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"slots: {name} stands twice; slot names are unique")
        for slot in self.slots:
            check_providers(slot, self.providers)
        return self


def check_providers(slot: SlotConfig, providers: Mapping[str, Provider]) -> None:
    """Raise ``ValueError`` when ``slot`` names a provider that the configuration has not."""
    routes: list[tuple[str, Route]] = [("primary", slot.primary)]
    routes += [(f"fallbacks[{place}]", route) for place, route in enumerate(slot.fallbacks)]
    routes += [(f"shadow[{place}]", route) for place, route in enumerate(slot.shadow)]
    if slot.canary is not None:
        routes.append(("canary.route", slot.canary.route))
    for field, route in routes:
        if route.provider not in providers:
            known = ", ".join(sorted(providers))
            raise ValueError(
                f"slots.{slot.slot}.{field}: provider {route.provider} is unknown; expected one of {known}"
            )


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach ``host``."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def load_config(path: Path | None, overrides: tuple[str, ...] = ()) -> GatewayConfig:
    """``gateway.yaml``; relative paths count from the file's folder. Raises ``ConfigError``."""
    if path is not None and not path.exists():
        raise ConfigError(f"{path}: no such file; begin with the one in docs/gateway.md, or name yours with --config")
    config = load_recipe(GatewayConfig, path, overrides)
    return _anchored(config, path.parent) if path is not None else config


class _Slots(Strict):
    """A file of slots alone."""

    slots: tuple[SlotConfig, ...] = Field(min_length=1)


def load_slots(path: Path) -> tuple[SlotConfig, ...]:
    """The slots of a file: one as ``slots show`` prints it, several under ``slots``, or those of a ``gateway.yaml``.

    Raises ``ConfigError``.
    """
    fields = load_fields(path)
    if "slots" not in fields:
        return (validate(SlotConfig, fields, source=str(path)),)
    if "providers" in fields:
        return load_config(path).slots
    return validate(_Slots, fields, source=str(path)).slots


def _anchored(config: GatewayConfig, folder: Path) -> GatewayConfig:
    def path(value: Path | None) -> Path | None:
        return None if value is None else folder / value.expanduser()

    def url(value: str) -> str:
        return value if "://" in value else str(folder / Path(value).expanduser())

    recording = config.recording
    providers = {
        name: provider.model_copy(
            update={"api_key_file": path(provider.api_key_file), "tokenizer": path(provider.tokenizer)}
        )
        for name, provider in config.providers.items()
    }
    return config.model_copy(
        update={
            "database": url(config.database),
            "spool": path(config.spool),
            "prices": path(config.prices),
            "providers": providers,
            "recording": recording.model_copy(update={"store": url(recording.store), "blobs": path(recording.blobs)}),
        }
    )
