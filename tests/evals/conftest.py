from __future__ import annotations

import random

import pytest

from firstchair.chat.actions import Action
from firstchair.chat.messages import ToolCall
from firstchair.data.golden import BuildOptions, GoldenSet, build
from firstchair.engines.scripted import ScriptedEngine
from firstchair.evals.replay import replay
from firstchair.testing.sessions import trip_session, trip_tools


@pytest.fixture
def golden(tmp_path) -> GoldenSet:
    """Twelve small sessions of five decisions; gold is what was observed."""
    path = tmp_path / "golden"
    options = BuildOptions(name="trips", created_at="2026-02-03T00:00:00Z")
    build([trip_session(number) for number in range(12)], lambda _: trip_tools(), path, options)
    return GoldenSet.load(path, draft=True)


@pytest.fixture
def runs(golden, tmp_path):
    """Two finished runs of the golden set: a clumsy candidate before, a better one after."""
    return (
        replay(golden, ScriptedEngine(candidate(golden, 0.5), model="base"), None, tmp_path / "before"),
        replay(golden, ScriptedEngine(candidate(golden, 0.1), model="tuned"), None, tmp_path / "after"),
    )


def candidate(golden: GoldenSet, mistakes: float):
    """A candidate that goes wrong at a share of the decisions, in every way there is."""
    gold = {decision.dp_id: decision.gold for decision in golden.decisions}
    wrongs = (
        lambda request: Action(kind="final_reply", text="Done."),
        lambda request: Action(kind="tool_call", calls=(ToolCall.of("c", "book", {"trip_id": "T1", "people": 1}),)),
        lambda request: Action(kind="tool_call", calls=(ToolCall.of("c", "find_trips", {"city": "Nowhere"}),)),
        lambda request: Action(kind="tool_call", calls=(ToolCall(id="c", name="book", arguments="{"),)),
        lambda request: Action(kind="tool_call", calls=(ToolCall.of("c", "dance", {}),)),
    )

    def reply(request):
        rng = random.Random(request.request_id)
        if rng.random() >= mistakes:
            return gold[request.request_id]
        return rng.choice(wrongs)(request)

    return reply
