from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import orjson
import pytest

from firstchair.chat.messages import assistant_message
from firstchair.engines.base import Request
from firstchair.engines.scripted import ScriptedEngine
from firstchair.rewards.judge_client import JudgeClient
from firstchair.rewards.samples import Sample


def blocks_of(prompt: str) -> dict[str, str]:
    """Name → text of the fenced blocks of a judge's prompt, read by their own marks as a careful reader would."""
    mark = re.match(r"<<<prompt ([0-9a-f]+)>>>\n", prompt)
    assert mark
    found = re.findall(rf"<<<([^>\n]+?) {mark[1]}>>>\n(.*?)\n<<<end \1 {mark[1]}>>>", prompt, re.DOTALL)
    return dict(found)


def text_of(request: Request) -> dict[str, str]:
    return blocks_of(request.messages[1].text)


def says(value: Any) -> Any:
    return assistant_message(orjson.dumps(value).decode())


def picks(winner: str) -> Any:
    return says({"reason": "r", "winner": winner})


@pytest.fixture
def longer() -> ScriptedEngine:
    """A pairwise judge that prefers the longer answer."""

    def reply(request: Request) -> Any:
        shown = text_of(request)
        first, second = len(shown["answer A"]), len(shown["answer B"])
        return picks("A" if first > second else "B" if second > first else "tie")

    return ScriptedEngine(reply, model="longer")


@pytest.fixture
def client_of() -> Callable[..., JudgeClient]:
    return lambda reply, **options: JudgeClient(ScriptedEngine(reply), **options)


def sample(answer: str, number: int = 0, **fields: Any) -> Sample:
    return Sample(f"s{number}", fields.pop("group", "g"), "What?", answer, final_text=answer, **fields)
