"""The demo's last stage: the trained model takes over the desk's traffic, fails, and is rolled back.

    before promote ──promote──► after promote ──its server stops, in the middle of a session──► during outage
         incumbent                candidate                       incumbent, as the fallback         │ rollback
                                                                                                     ▼
                                                                                          after rollback: incumbent

All the time the harness asks one URL for one model name. Who answered is read back from the ledger.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, aclosing, contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from firstchair.catalog.token_counts import NANO
from firstchair.chat.trained import trained_renderer
from firstchair.cli.demo_gates import promotion_of
from firstchair.cli.demo_gateway import (
    CANDIDATE,
    INCUMBENT,
    SESSION_HEADER,
    SLOT,
    GatewayFiles,
    RunningGateway,
    ledger_rows,
    recorded_sessions,
    running_gateway,
)
from firstchair.cli.demo_record import Recording, check_counts
from firstchair.core.errors import RunFailed
from firstchair.evals.gate_record import GateRecord
from firstchair.gateway.control.ledger import report
from firstchair.gateway.control.store import Change, ControlStore
from firstchair.rollout.desk.environment import DeskEnvironment
from firstchair.rollout.desk.server import running_app, running_teacher
from firstchair.rollout.desk.task import DeskTask
from firstchair.rollout.episodes import Episode, Policy, run_episodes
from firstchair.rollout.policy import PolicyReply, PolicyRequest
from firstchair.rollout.recording import FastOpenAIPolicy
from firstchair.traces.store import TraceStore

CUT_AFTER = 2
"""Calls of the session in whose middle the candidate's server stops. A task of the desk takes three at least."""
MAX_STEPS = 30


@dataclass(frozen=True)
class LivePlan:
    """The sessions of each phase."""

    before: Sequence[DeskTask]
    promoted: Sequence[DeskTask]
    cut: DeskTask
    outage: Sequence[DeskTask]
    rolled_back: Sequence[DeskTask]


def live_sessions(episodes: int) -> tuple[int, int, int, int]:
    """How many sessions each phase gets (beside the one that is cut), in a demo of so many episodes."""
    return (min(2, episodes), min(8, episodes), min(3, episodes), 1)


def live_plan(tasks: Sequence[DeskTask], episodes: int) -> LivePlan:
    """Deal ``tasks``, of which there must be enough."""
    deck = iter(tasks)
    before, promoted, outage, back = ([next(deck) for _ in range(count)] for count in live_sessions(episodes))
    return LivePlan(before=before, promoted=promoted, cut=next(deck), outage=outage, rolled_back=back)


@dataclass
class Live:
    """What came of it."""

    episodes: list[Episode] = field(default_factory=list)
    starts: list[tuple[str, int]] = field(default_factory=list)
    """The phases, each with its first microsecond since the epoch. No call is under way at any of them."""
    seconds: dict[str, float] = field(default_factory=dict)

    def begin(self, phase: str) -> None:
        """From now on."""
        self.starts.append((phase, time.time_ns() // 1000))

    @property
    def calls(self) -> int:
        """What the harness asked."""
        return sum(len(episode.session.calls) for episode in self.episodes)


def run_live(
    model: Path, plan: LivePlan, files: GatewayFiles, gates: GateRecord, *, mistake_rate: float, seed: int
) -> Live:
    """Run the stage, the promotion by what the gates found; when this returns every call is in the ledger and in a
    session.

    Raises ``RunFailed`` when the harness saw an error.
    """
    live = Live()
    began = time.monotonic()
    with running_teacher(mistake_rate=mistake_rate, seed=seed) as teacher, ExitStack() as stack:
        candidate = stack.enter_context(served_model(model))
        files.write({INCUMBENT.provider: teacher.openai_url, CANDIDATE.provider: candidate})
        with running_gateway(files) as gateway:
            live.seconds["start"] = round(time.monotonic() - began, 2)
            asyncio.run(_phases(live, plan, gateway, gates, stack.close))
            live.seconds["sessions"] = round(time.monotonic() - began - live.seconds["start"], 2)
            ended = time.monotonic()
    live.seconds["drain"] = round(time.monotonic() - ended, 2)
    return live


@contextmanager
def served_model(model: Path) -> Iterator[str]:
    """A trained model behind HTTP for the length of the block; its OpenAI URL. After the block nobody listens."""
    from firstchair.engines.base import Sampling
    from firstchair.engines.openmp import compute_threads
    from firstchair.engines.transformers_engine import TransformersEngine
    from firstchair.rollout.actor_app import build_app
    from firstchair.rollout.engine_actor import EngineActor

    renderer = trained_renderer(model)
    with compute_threads(1):
        engine = TransformersEngine(model, renderer)
        try:
            actor = EngineActor(engine, renderer, Sampling(max_new_tokens=96))
            with running_app(build_app(actor, CANDIDATE.model), model=CANDIDATE.model) as server:
                yield server.openai_url
        finally:
            asyncio.run(engine.close())


async def _phases(
    live: Live, plan: LivePlan, gateway: RunningGateway, gates: GateRecord, stop_candidate: Callable[[], None]
) -> None:
    policy = FastOpenAIPolicy(gateway.openai_url, INCUMBENT.model, session_header=SESSION_HEADER)

    async def outage() -> None:
        await asyncio.to_thread(stop_candidate)
        live.begin("during_outage")

    async with policy:
        live.begin("before_promote")
        await _play(live, policy, plan.before)
        await asyncio.to_thread(gateway.make, lambda store: _promote(store, gates))
        live.begin("after_promote")
        await _play(live, policy, plan.promoted)
        await _play(live, _Cut(policy, outage, after=CUT_AFTER), [plan.cut])
        await _play(live, policy, plan.outage)
        await asyncio.to_thread(gateway.make, _rollback)
        live.begin("after_rollback")
        await _play(live, policy, plan.rolled_back)
    await asyncio.to_thread(gateway.wait_for_rows, live.calls)


def _promote(store: ControlStore, gates: GateRecord) -> Change:
    return store.promote(SLOT, CANDIDATE, who="demo", **promotion_of(gates))


def _rollback(store: ControlStore) -> Change:
    return store.rollback(SLOT, who="demo", why="the candidate cannot be reached")


async def _play(live: Live, policy: Policy, tasks: Sequence[DeskTask]) -> None:
    run = run_episodes(
        DeskEnvironment, tasks, policy, concurrency=len(tasks), max_steps=MAX_STEPS, source="production"
    )
    async with aclosing(run) as episodes:
        async for episode in episodes:
            if episode.error is not None:
                raise RunFailed(f"session {episode.task_id}: the harness saw {episode.error}")
            live.episodes.append(episode)


class _Cut:
    """A policy for one session in whose middle something happens."""

    def __init__(self, policy: Policy, happens: Callable[[], Awaitable[None]], *, after: int):
        self.name, self._policy, self._happens, self._left = policy.name, policy, happens, after

    async def act(self, requests: Sequence[PolicyRequest]) -> list[PolicyReply]:
        """Ask on; before the call that follows ``after`` others, wait for it to have happened."""
        if self._left == 0:
            await self._happens()
        self._left -= 1
        return await self._policy.act(requests)


# --- read back --------------------------------------------------------------------------------------------------


def gateway_summary(files: GatewayFiles, live: Live, recording: Recording) -> dict[str, Any]:
    """The ``gateway`` of ``summary.json``, from ledger, audit log and recorded sessions.

    Raises ``RunFailed`` unless these agree with the harness. Money is pretended: see ``prices.yaml``.
    """
    with TraceStore.open(files.traces, must_exist=True) as store:
        sessions = recorded_sessions(store, live.episodes, source="production")
    with ControlStore.open(files.database, must_exist=True) as control:
        calls, rows = recording.calls + live.calls, ledger_rows(control)
        check_counts(calls, rows, sessions, before=recording.calls)
        promoted = next(entry for entry in control.audit_log(target=SLOT) if entry.action == "slot.promote")
        return {
            "calls": calls,
            "ledger_rows": rows,
            "recorded_sessions": recording.sessions + len(sessions),
            "served_by": served_by(control, live.starts),
            "harness_errors": sum(episode.error is not None for episode in live.episodes),
            "override": promoted.details.get("override"),
            "pretend_usd": money(control),
            "seconds": {"record": recording.seconds, "live": live.seconds},
        }


def served_by(store: ControlStore, starts: Sequence[tuple[str, int]]) -> dict[str, dict[str, int]]:
    """Calls by phase and by provider that answered, as the ledger has them."""
    ends: list[tuple[str, int | None]] = [*starts, ("", None)]
    found: dict[str, dict[str, int]] = {}
    with store.reading() as connection:
        for (phase, since_us), (_, until_us) in pairwise(ends):
            lines = report(connection, "provider", since_us=since_us, until_us=until_us, slot=SLOT).lines
            found[phase] = {line.name: line.calls for line in lines}
    return found


def money(store: ControlStore) -> dict[str, dict[str, float | int]]:
    """By provider and in all: calls, their cost, and how much more the incumbent would have cost."""
    with store.reading() as connection:
        found = report(connection, "provider", slot=SLOT)
    rows = {**{line.name: line for line in found.lines}, "total": found.total}
    return {
        name: {
            "calls": line.calls,
            "cost_usd": line.cost_nano / NANO,
            "saved_usd": line.saved_nano / NANO,
        }
        for name, line in rows.items()
    }
