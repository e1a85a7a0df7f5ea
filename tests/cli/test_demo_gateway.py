"""The demo's gateway in small: real processes, the shipped base model as the candidate, one session a phase."""

import asyncio
import dataclasses
import os
import signal
import subprocess
import sys
import time

import msgspec
import pytest

from firstchair.chat.messages import text_message
from firstchair.cli.demo_gateway import CANDIDATE, SLOT, GatewayFiles, recorded_sessions, running_gateway
from firstchair.cli.demo_live import gateway_summary, live_plan, live_sessions, run_live
from firstchair.cli.demo_record import Recording, check_counts, record
from firstchair.core.errors import RunFailed
from firstchair.evals.gate_record import opened
from firstchair.rollout.desk.environment import DeskEnvironment
from firstchair.rollout.desk.tasks import make_tasks
from firstchair.rollout.desk.teacher import Teacher
from firstchair.rollout.episodes import run_episodes
from firstchair.rollout.teacher_policy import TeacherPolicy
from firstchair.testing.gate_records import gate_record
from firstchair.traces.session import Session
from firstchair.traces.store import TraceStore
from firstchair.train.base_model import copy_base_model

NOTHING = Recording(calls=0, sessions=0, seconds={})


@pytest.mark.parametrize("failing", ["", "stop"])
def test_an_outage_in_the_middle_of_a_session_is_answered_by_the_fallback_and_the_harness_sees_nothing(
    tmp_path, failing
):
    files, model = GatewayFiles(tmp_path), copy_base_model(tmp_path / "model")
    plan = live_plan(make_tasks(5, seed=3), episodes=1)
    gates = opened(gate_record(str(CANDIDATE), SLOT, failing=failing), "promotion")
    live = run_live(model, plan, files, gates, mistake_rate=0.0, seed=0)
    through = gateway_summary(files, live, NOTHING)
    assert through["override"] == ("demo: stop fail; nobody is served" if failing else None)
    cut = next(episode for episode in live.episodes if episode.task_id == plan.cut.task_id)
    assert through["harness_errors"] == 0
    assert [episode.error for episode in live.episodes] == [None] * 5
    assert through["calls"] == through["ledger_rows"] == live.calls
    served = through["served_by"]
    calls = {episode.task_id: len(episode.session.calls) for episode in live.episodes}
    assert served == {
        "before_promote": {"incumbent": calls[plan.before[0].task_id]},
        "after_promote": {"candidate": calls[plan.promoted[0].task_id] + 2},
        "during_outage": {"incumbent": calls[plan.outage[0].task_id] + len(cut.session.calls) - 2},
        "after_rollback": {"incumbent": calls[plan.rolled_back[0].task_id]},
    }
    # The oracle finishes what it began; nothing of the candidate's failure reached it.
    assert all(episode.completed for episode in live.episodes if episode.task_id == plan.outage[0].task_id)


def test_the_phases_share_the_tasks_out_so_that_no_task_is_played_twice():
    tasks = make_tasks(15, seed=1)
    plan = live_plan(tasks, episodes=60)
    assert [*plan.before, *plan.promoted, *plan.outage, *plan.rolled_back, plan.cut] == tasks
    assert live_sessions(60) == (2, 8, 3, 1)


async def played(tasks):
    run = run_episodes(DeskEnvironment, tasks, TeacherPolicy(Teacher()), source="scripted")
    return [episode async for episode in run]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    files = GatewayFiles(tmp_path_factory.mktemp("recorded"))
    sessions, recording = record(
        {0: make_tasks(3, seed=5), 1: make_tasks(2, seed=6)}, files, mistake_rate=0.0, seed=0
    )
    return files, sessions, recording


def test_what_the_gateway_recorded_comes_back_by_purpose_with_the_labels_of_the_harness(recorded):
    files, sessions, recording = recorded
    assert [session.session_id for session in sessions[0]] == ["desk-5-0", "desk-5-1", "desk-5-2"]
    assert [session.session_id for session in sessions[1]] == ["desk-6-0", "desk-6-1"]
    assert recording.sessions == 5
    assert recording.calls == sum(len(session.calls) for some in sessions.values() for session in some)
    with TraceStore.open(files.traces, must_exist=True) as store:
        stored = {session.session_id: session for session in store.sessions(labels={"completed": True})}
    for session in (*sessions[0], *sessions[1]):
        assert stored[session.session_id] == session
        assert session.labels["task_id"] == session.session_id
        assert session.labels["slot"] == "orchestrator"
        assert {call.provider for call in session.calls} == {"incumbent"}
        assert all(call.cost_usd for call in session.calls)


def test_a_session_that_is_not_what_the_harness_saw_is_told_with_the_message(recorded, tmp_path):
    _, sessions, _ = recorded
    episodes = asyncio.run(played(make_tasks(1, seed=5)))
    episode, found = episodes[0], sessions[0][0]
    assert episode.session.messages == found.messages

    def fails(stored: list[Session], match: str) -> None:
        with TraceStore.open(tmp_path / f"{len(list(tmp_path.iterdir()))}.db") as store:
            store.add(stored, {episode.session.catalog_id: episode.tools})
            with pytest.raises(RunFailed, match=match):
                recorded_sessions(store, [episode], source="scripted")

    raw = msgspec.structs.replace(found, source="production")
    other = msgspec.structs.replace(raw, messages=(text_message("system", "other"), *raw.messages[1:]))
    fails([], "desk-5-0: not recorded; the harness saw")
    fails([other], "desk-5-0: message 0 is not recorded as the harness saw it")
    fails([msgspec.structs.replace(raw, calls=raw.calls[1:])], r"desk-5-0: \d+ calls recorded")
    fails([raw, msgspec.structs.replace(raw, session_id="desk-5-0#1")], "recorded desk-5-0#1 beside its session: 1")


def test_a_call_that_is_missing_in_ledger_or_sessions_is_told(recorded):
    _, sessions, recording = recorded
    every = [*sessions[0], *sessions[1]]
    check_counts(recording.calls, recording.calls, every)
    with pytest.raises(RunFailed, match="rows in the ledger"):
        check_counts(recording.calls, recording.calls - 1, every)
    with pytest.raises(RunFailed, match="calls in sessions"):
        check_counts(recording.calls, recording.calls, every[1:])


def test_the_gateway_ends_when_the_demo_is_killed(tmp_path):
    files = GatewayFiles(tmp_path)
    files.write({"incumbent": "http://127.0.0.1:9/v1"})
    code = (
        "import sys, time; from pathlib import Path\n"
        "from firstchair.cli.demo_gateway import GatewayFiles, running_gateway\n"
        "with running_gateway(GatewayFiles(Path(sys.argv[1]))) as gateway:\n"
        "    print(gateway.openai_url, flush=True); time.sleep(600)\n"
    )
    demo = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    try:
        assert demo.stdout.readline().startswith("http://127.0.0.1:")
    finally:
        os.kill(demo.pid, signal.SIGKILL)
        demo.wait()
        demo.stdout.close()
    deadline = time.monotonic() + 60
    while '"event":"stopped"' not in files.log.read_text():
        assert time.monotonic() < deadline, files.log.read_text()
        time.sleep(0.05)


def test_a_gateway_that_cannot_start_says_why(tmp_path):
    files = GatewayFiles(tmp_path)
    files.write({"incumbent": "no URL"})
    with pytest.raises(RunFailed, match=r"before it listened.*http"), running_gateway(files):
        pass


def test_figures_of_the_recording_are_told_in_one_sentence():
    told = str(dataclasses.replace(NOTHING, calls=1234, sessions=56))
    assert told.startswith(
        "1,234 calls of the harness = 1,234 rows in the ledger = 1,234 calls in 56 recorded sessions"
    )
