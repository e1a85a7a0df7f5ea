"""From flags to the models of ``firstchair synth``: who writes, and who must fail and solve."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from firstchair.core.errors import ConfigError
from firstchair.core.jsonl import read_jsonl
from firstchair.engines.base import Engine, Request
from firstchair.engines.chat_engine import chat_engine
from firstchair.engines.http_engine import HttpOptions, key_from
from firstchair.engines.http_retry import RetryPolicy
from firstchair.engines.scripted import ScriptedEngine

_LONG = HttpOptions(retry=RetryPolicy(read_s=600.0, total_s=1800.0))
"""Rows of a table take a model minutes."""


@dataclass(frozen=True)
class ModelChoice:
    """A model on a server, or for ``scripted`` a file of what an author wrote before."""

    engine: Literal["openai", "anthropic", "scripted"]
    model: str
    base_url: str = ""
    api_key_env: str = ""
    """Environment variable that holds the key."""
    flag: str = "--"
    """What its flags begin with; for messages."""


def open_model(choice: ModelChoice) -> Engine:
    """The engine; close it. Raises ``ConfigError`` naming the flag that is missing or wrong."""
    if choice.engine == "scripted":
        return _scripted(Path(choice.model))
    if not choice.base_url:
        example = "http://127.0.0.1:8000" + ("/v1" if choice.engine == "openai" else "")
        raise ConfigError(f"{choice.flag}base-url: {choice.engine} needs the server's address, e.g. {example}")
    key = key_from(choice.api_key_env, field=f"{choice.flag}api-key-env")
    return chat_engine(choice.engine, choice.base_url, choice.model, api_key=key, options=_LONG)


def _scripted(path: Path) -> Engine:
    texts: dict[str, str] = {}
    for number, row in read_jsonl(path):
        if not (isinstance(row.get("stage"), str) and isinstance(row.get("text"), str)):
            raise ConfigError(
                f"{path}:{number}: expected {{stage, attempt, text}} in each line, as in the author.jsonl of "
                "`firstchair synth make`"
            )
        texts[f"{row['stage']}:{row.get('attempt', 0)}"] = row["text"]

    def reply(request: Request) -> str:
        if request.request_id not in texts:
            raise LookupError(
                f"{path} has no reply for {request.request_id}; give the --tasks and --batch that it was written with"
            )
        return texts[request.request_id]

    return ScriptedEngine(reply, model=str(path))
