import pytest

from firstchair.catalog.token_counts import TokenCounts
from firstchair.core.errors import ConfigError
from firstchair.evals.spending import Call
from firstchair.gateway.control.ledger import insert_records
from firstchair.gateway.control.slots import Route
from firstchair.gateway.control.spending import compare_spending
from firstchair.gateway.records import CallRecord, Outcome

SMALL, CLAUDE = Route(provider="local", model="small"), Route(provider="anthropic", model="claude")
HOUR_US = 3_600_000_000


def call(call_id: str, route: Route, session: str, **fields: object) -> CallRecord:
    return CallRecord(
        **{
            "call_id": call_id,
            "received_us": HOUR_US,
            "worker": "w",
            "slot": "desk",
            "dialect": "openai",
            "requested_model": "desk",
            "session": session,
            "provider": route.provider,
            "provider_model": route.model,
            "outcome": Outcome.OK,
            "status": 200,
            "latency_ms": 250.0 if route is CLAUDE else 50.0,
            "usage": TokenCounts(input=10, output=5),
            "cost_nano": 9_000 if route is CLAUDE else 1_000,
            **fields,
        }
    )


def compared(store, records, **options):
    with store.transaction() as connection:
        insert_records(connection, records)
    with store.reading() as connection:
        return compare_spending(connection, "desk", SMALL, CLAUDE, **options)


def test_whole_sessions_of_the_one_stand_against_whole_sessions_of_the_other(store):
    found = compared(
        store,
        [
            *(call(f"a{n}", CLAUDE, "s1") for n in range(2)),
            call("b", SMALL, "s2", variant="canary"),
            call("mixed1", SMALL, "s3", variant="canary"),
            call("mixed2", CLAUDE, "s3", variant="fallback"),
            call("nameless", SMALL, "", variant="canary"),
            call("broken", SMALL, "s2", outcome=Outcome.FAILED),
            call("copy", SMALL, "s1", variant="shadow", shadow_of="a0"),
            call("elsewhere", SMALL, "s4", slot="notes"),
            call("third", Route(provider="openai", model="gpt"), "s5"),
        ],
    )
    assert found.how == "served"
    assert found.baseline.calls == (Call("s1", 9e-6, 0.25),) * 2
    assert found.candidate.calls == (Call("s2", 1e-6, 0.05),)
    assert found.candidate.excluded == {
        "ended failed": 1,
        "session that others served too": 1,
        "no session": 1,
        "a shadow": 1,
    }
    assert found.baseline.excluded == {"session that others served too": 1}


def test_a_shadow_stands_against_the_very_call_that_it_copied(store):
    found = compared(
        store,
        [
            *(call(f"a{n}", CLAUDE, f"s{n // 2}") for n in range(4)),
            call("c1", SMALL, "", variant="shadow", shadow_of="a1"),
            call("c3", SMALL, "", variant="shadow", shadow_of="a3", cost_nano=None),
            call("stray", SMALL, "", variant="shadow", shadow_of="gone"),
        ],
    )
    assert found.how == "shadowed"
    assert found.candidate.calls == (Call("s0", 1e-6, 0.05), Call("s1", None, 0.05))
    assert found.baseline.calls == (Call("s0", 9e-6, 0.25), Call("s1", 9e-6, 0.25))
    assert found.candidate.excluded == {"copied a call that the baseline did not answer": 1}
    assert found.baseline.excluded == {"not copied to the candidate": 2}


def test_only_calls_of_the_time_count_and_the_hash_is_of_those(store):
    early = [call("a", CLAUDE, "s1", received_us=0), call("b", SMALL, "s2", received_us=0)]
    late = [call("c", CLAUDE, "s3"), call("d", SMALL, "s4")]
    first = compared(store, [*early, *late], until_us=HOUR_US)
    assert (len(first.baseline.calls), len(first.candidate.calls)) == (1, 1)
    both = compared(store, [])
    assert len(both.candidate.calls) == 2
    assert compared(store, [], since_us=HOUR_US).sha256 != first.sha256 != both.sha256
    assert compared(store, [], until_us=HOUR_US).sha256 == first.sha256


def test_a_ledger_without_the_candidate_or_the_baseline_is_named(store):
    with pytest.raises(ConfigError, match="slot desk: no call of anthropic/claude that can be compared"):
        compared(store, [call("b", SMALL, "s2")])
    with pytest.raises(ConfigError, match="slot desk: no call of local/small"):
        compared(store, [call("a", CLAUDE, "s1")], since_us=HOUR_US, until_us=HOUR_US)
