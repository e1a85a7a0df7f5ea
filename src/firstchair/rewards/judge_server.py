"""Where a judge is and how it is asked: the section ``judge`` of a reward's YAML."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

from pydantic import Field, field_validator

from firstchair.core.config import Strict
from firstchair.core.errors import ConfigError
from firstchair.engines.base import Sampling
from firstchair.engines.http_engine import HttpOptions, key_from
from firstchair.engines.http_retry import RetryPolicy
from firstchair.engines.openai_engine import OpenAIEngine
from firstchair.rewards.judge_client import JudgeClient
from firstchair.rewards.verdict_cache import VerdictCache


class JudgeServer(Strict):
    """A model behind any server of OpenAI's chat API."""

    base_url: str
    """With its ``/v1``; no user, password or query: those would stand in messages."""
    model: str = Field(min_length=1)
    """The served name. Verdicts are kept under it, so another model needs another name."""
    api_key_env: str = ""
    """Environment variable that holds the key."""
    temperature: float = Field(default=0.0, ge=0)
    max_tokens: int = Field(default=512, ge=16)
    """Longest verdict, its reason included."""
    concurrency: int = Field(default=16, ge=1)
    requests_per_minute: float | None = Field(default=None, gt=0)
    tries: int = Field(default=4, ge=1)
    """Of one question when the server is busy (429), fails (5xx) or cannot be reached."""
    try_s: float = Field(default=60.0, gt=0)
    """Longest wait for one answer."""
    question_s: float = Field(default=180.0, gt=0)
    """All tries, pauses and the repair of one question together."""
    batch_s: float = Field(default=900.0, gt=0)
    """All questions about the samples that are graded together: a judge that hangs costs a run no more than this."""
    cache: Path | None = None
    """SQLite file of verdicts, which several processes may share; kept in memory when not given."""

    @field_validator("base_url")
    @classmethod
    def _is_plain(cls, url: str) -> str:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("expected an address such as http://127.0.0.1:8000/v1")
        return url


def open_judge(server: JudgeServer) -> JudgeClient:
    """A client of ``server``; close it.

    Raises ``ConfigError`` for a key that is not set or an unusable cache file."""
    parts = urlsplit(server.base_url)
    # Here and not in the model, whose errors repeat what they found.
    if parts.username is not None or parts.query:
        raise ConfigError(
            "judge.base_url: found a user or a query in it; leave them out and name the key's variable in api_key_env"
        )
    key = key_from(server.api_key_env, field="judge.api_key_env")
    policy = RetryPolicy(tries=server.tries, read_s=server.try_s, total_s=server.question_s)
    engine = OpenAIEngine(
        server.base_url,
        server.model,
        api_key=key,
        mode="chat",
        concurrency=server.concurrency,
        options=HttpOptions(retry=policy),
    )
    return JudgeClient(
        engine,
        sampling=Sampling(max_new_tokens=server.max_tokens, temperature=server.temperature),
        cache=VerdictCache(server.cache),
        concurrency=server.concurrency,
        question_s=server.question_s,
        requests_per_minute=server.requests_per_minute,
        secrets=(key,) if key else (),
    )
