"""The canary's judge and its rollback."""

import threading

import httpx
import pytest

from firstchair.core.config import validate
from firstchair.gateway.canary import CanaryWatch, Window, canary_states, judge, mixed_sessions
from firstchair.gateway.control.ledger import insert_records
from firstchair.gateway.control.slots import Bands, SlotConfig
from firstchair.gateway.control.store import ControlStore
from firstchair.gateway.dialects.base import FailureKind
from firstchair.gateway.records import Attempt, CallRecord, Outcome
from firstchair.testing.gateway_server import provider, running_gateway
from firstchair.testing.scripted_upstream import Fault, Reply, Script

NOW_US = 1_000_000_000_000
BANDS = Bands(error_rate=0.05, malformed_rate=0.1, p95_ms=1000, min_calls=20)


def window(calls, errors=0, malformed=0, latencies=None):
    return Window(calls, errors, malformed, [100.0] * (calls - errors) if latencies is None else latencies)


@pytest.mark.parametrize(
    ("canary", "action", "words"),
    [
        (window(20), "keep", "within"),
        (window(0), "keep", "0 of 20"),
        (window(20, errors=1), "keep", "within"),  # 5 %: at the edge, not beyond it
        (window(20, errors=2), "roll back", "error rate 10.0%"),
        (window(2, errors=2), "roll back", "error rate 10.0% of 2 calls"),  # 18 good ones would not save it
        (window(1, errors=1), "keep", "1 of 20"),
        (window(20, malformed=3), "roll back", "malformed rate 15.0%"),
        (window(20, malformed=2), "keep", "within"),
        (window(20, latencies=[100.0] * 18 + [5000.0] * 2), "roll back", "slower than 1000 ms"),
        (window(20, latencies=[100.0] * 19 + [5000.0]), "keep", "within"),  # p95 is 100 ms
    ],
)
def test_a_canary_is_judged_by_its_bands(canary, action, words):
    decision = judge(canary, window(0), BANDS)
    assert decision.action == action
    assert words in decision.reason


def test_a_canary_stays_when_the_primary_is_no_better():
    bad = window(40, errors=20)
    assert judge(bad, window(40, errors=20), BANDS).action == "keep"
    assert judge(bad, window(40, errors=4), BANDS).action == "roll back"
    assert judge(bad, window(5, errors=5), BANDS).action == "roll back"  # too few calls to be a measure


def test_p95_is_the_nearest_rank():
    assert Window(latencies_ms=[float(number) for number in range(1, 101)]).p95_ms == 95
    assert Window().p95_ms is None


def slot_with(percent=50.0, **canary):
    data = {
        "slot": "main",
        "primary": {"provider": "up", "model": "big"},
        "canary": {"route": {"provider": "new", "model": "small"}, "percent": percent, **canary},
    }
    return validate(SlotConfig, data, source="test")


def record(number, variant="canary", outcome=Outcome.OK, **more):
    failed = outcome is not Outcome.OK
    return CallRecord(
        call_id=f"call_{number}",
        slot="main",
        dialect="openai",
        requested_model="main",
        outcome=outcome,
        status=502 if failed else 200,
        variant=variant,
        failure=FailureKind.SERVER_ERROR if failed else None,
        **{"worker": "w0", "received_us": NOW_US - 1_000_000, "slot_version": 1, "latency_ms": 10.0, **more},
    )


@pytest.fixture
def store(tmp_path):
    with ControlStore.open(tmp_path / "gateway.db") as opened:
        opened.put_slot(slot_with(bands={"min_calls": 10}), who="test")
        yield opened


def keep(store, *records):
    with store.transaction() as connection:
        insert_records(connection, records)


def test_a_failing_canary_is_rolled_back_once_however_many_watch(store):
    keep(store, *(record(number, outcome=Outcome.FAILED, worker=f"w{number}") for number in range(3)))
    rolled, barrier = [], threading.Barrier(4)

    def watch():
        watching = CanaryWatch(store)
        barrier.wait()
        rolled.extend(watching.check(NOW_US))

    threads = [threading.Thread(target=watch) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [state.slot for state in rolled] == ["main"]
    last = store.history("main")[-1]
    assert (last.version, last.action, last.who) == (2, "rollback", "canary")
    assert last.config.canary is None
    assert [entry.who for entry in store.audit_log()] == ["canary", "test"]
    assert "error rate 30.0% of 3 calls" in store.audit_log()[0].why
    assert CanaryWatch(store).check(NOW_US) == []


def test_the_rest_of_the_slot_stays_and_an_equal_earlier_version_is_the_one_restored(tmp_path):
    with ControlStore.open(tmp_path / "gateway.db") as store:
        plain = slot_with().model_copy(update={"canary": None})
        store.put_slot(plain, who="test")
        store.put_slot(slot_with(percent=1), who="test")
        store.put_slot(slot_with(percent=50), who="test")
        keep(store, *(record(number, outcome=Outcome.FAILED, slot_version=3) for number in range(50)))
        assert len(CanaryWatch(store).check(NOW_US)) == 1
        last = store.history("main")[-1]
        assert (last.config, last.restores) == (plain, 1)


def test_a_window_belongs_to_one_version_and_ends(store):
    failed = [record(number, outcome=Outcome.FAILED, slot_version=7) for number in range(50)]
    early = {"received_us": NOW_US - 3_600_000_000}
    old = [record(100 + number, outcome=Outcome.FAILED, **early) for number in range(50)]
    keep(store, *failed, *old)
    (state,) = canary_states(store, now_us=NOW_US)
    assert state.window.calls == 0


def test_what_a_fallback_answered_is_an_error_of_the_variant_it_was_meant_for(store):
    small = Attempt(provider="new", model="small", failure=FailureKind.SERVER_ERROR)
    big = Attempt(provider="up", model="big", failure=FailureKind.RATE_LIMIT)
    good = Attempt(provider="up", model="big")
    wrong = Attempt(provider="new", model="small", failure=FailureKind.BAD_REQUEST)
    malformed = Attempt(provider="new", model="small", failure=FailureKind.MALFORMED_CALL)
    keep(
        store,
        record(1, "fallback", attempts=(small, good)),
        record(2, "fallback", attempts=(big, Attempt(provider="new", model="small"))),
        record(3, "fallback", attempts=(wrong, good)),
        record(4, "fallback", attempts=(malformed, good)),
        record(5, "shadow", outcome=Outcome.FAILED),
        record(6, "canary", malformed_calls=2),
        record(7, "canary", outcome=Outcome.CLIENT_DISCONNECTED),
        record(8, "primary"),
    )
    (state,) = canary_states(store, now_us=NOW_US)
    assert (state.window.calls, state.window.errors, state.window.malformed) == (3, 1, 2)
    assert (state.baseline.calls, state.baseline.errors) == (2, 1)


def test_a_session_that_saw_both_variants_is_flagged(store):
    keep(
        store,
        record(1, "primary", session="both"),
        record(2, "canary", session="both"),
        record(3, "canary", session="one"),
        record(4, "fallback", session="one"),
        record(5, "shadow", session="one"),
        record(6, "primary"),
        record(7, "canary"),
    )
    with store.reading() as connection:
        assert mixed_sessions(connection, "main", 0) == ("both",)
    assert canary_states(store, now_us=NOW_US)[0].mixed_sessions == ("both",)


def test_a_canary_at_zero_is_left_alone(tmp_path):
    with ControlStore.open(tmp_path / "gateway.db") as store:
        store.put_slot(slot_with(percent=0), who="test")
        assert canary_states(store, now_us=NOW_US) == []


def test_a_broken_canary_goes_and_no_client_notices(tmp_path, upstream, backup):
    """From calls to rollback: the canary fails, the primary answers instead, the slot is set back."""
    backup.script = Script((Reply(fault=Fault("status", status=500)),))
    slot = slot_with(percent=100, bands={"min_calls": 10}).model_dump()
    slot |= {"retries": {"attempts": 1}}
    providers = {"up": provider(upstream.base_url), "new": provider(backup.base_url)}
    with running_gateway(tmp_path, providers, [slot]) as gateway:

        def ask():
            body = {"model": "main", "messages": [{"role": "user", "content": "Hi"}]}
            headers = {"authorization": f"Bearer {gateway.key}"}
            return httpx.post(gateway.url + "/v1/chat/completions", json=body, headers=headers, timeout=60)

        assert [ask().status_code for _ in range(3)] == [200] * 3
        records = gateway.records(3)
        keep(gateway.store, *records)
        (rolled,) = CanaryWatch(gateway.store).check(records[-1].received_us + 1)
        assert (rolled.window.calls, rolled.window.errors) == (3, 3)
        gateway.wait_until(lambda: gateway.worker.snapshot.slot_for("main").canary is None)
        assert ask().status_code == 200
        assert gateway.records(4)[3].variant == "primary"
