"""What is told of shadows, and how figures are shown."""

import subprocess
import sys
import time

import pytest
from tests.gateway.console.traffic import CLAUDE, SMALL

from firstchair.evals.stats import rate, wilson
from firstchair.gateway.console.insight import shadow_agreement
from firstchair.gateway.console.ledger_page import midnight
from firstchair.gateway.console.render import bar, clock, columns, count, many, middle, ms, usd, when
from firstchair.gateway.control.ledger import insert_records, set_sessions
from firstchair.gateway.control.store import ControlStore
from firstchair.gateway.records import Attempt, CallRecord, Outcome


def call(number, variant="primary", outcome=Outcome.OK, first=CLAUDE, **more):
    attempt = Attempt(provider=first.provider, model=first.model)
    return CallRecord(
        call_id=f"c{number}",
        received_us=number,
        worker="w",
        slot="desk",
        slot_version=more.pop("version", 2),
        dialect="openai",
        requested_model="desk",
        variant=variant,
        provider=first.provider,
        provider_model=first.model,
        attempts=(attempt,),
        outcome=outcome,
        status=200,
        **more,
    )


def agreed(database, records, found=()):
    """What is told of the shadows of these calls; ``found``: sessions that came out after the calls were written."""
    with ControlStore.open(database) as store:
        with store.transaction() as connection:
            insert_records(connection, records)
            set_sessions(connection, dict(found))
        with store.reading() as connection:
            return shadow_agreement(connection)


def shadows(words, sessions):
    """Copies of calls c0, c1, ... and those calls themselves."""
    copies = [
        call(100 + n, "shadow", first=SMALL, shadow_of=f"c{n}", session=session, agreement=word, cost_nano=5)
        for n, (word, session) in enumerate(zip(words, sessions, strict=True))
    ]
    return [*copies, *(call(n, session=session) for n, session in enumerate(sessions))]


def test_agreement_is_of_the_calls_that_could_be_compared(tmp_path):
    (line,) = agreed(
        tmp_path / "gateway.db", shadows(("same", "same", "different", "unscored", ""), ["a", "b", "c", "d", "e"])
    )
    assert (line.route, line.calls, line.cost_nano, line.sessions) == (str(SMALL), 5, 25, 3)
    assert (line.same.value, line.same.n) == (2 / 3, 3)
    assert line.counts == {"same": 2, "same_tool": 0, "different": 1, "unscored": 2}
    with ControlStore.open(tmp_path / "gateway.db") as store, store.reading() as connection:
        assert shadow_agreement(connection, since_us=1000) == []
        assert shadow_agreement(connection, slot="notes") == []


def test_the_interval_of_agreement_takes_sessions_as_what_varies(tmp_path):
    # 40 calls in 4 sessions, in each all alike: what is known is 2 of 4, whatever the number of calls.
    words = [("same", "different")[n // 10 % 2] for n in range(40)]
    (line,) = agreed(tmp_path / "gateway.db", shadows(words, [f"s{n // 10}" for n in range(40)]))
    assert line.same == rate([word == "same" for word in words], [1] * 40, [n // 10 for n in range(40)])
    low, high = wilson(20, 40)
    assert line.same.low < low - 0.1
    assert line.same.high > high + 0.1
    assert line.sessions == 4


def test_a_session_that_was_found_out_later_counts_and_an_unknown_one_is_one_call(tmp_path):
    words = ["same"] * 6 + ["different"] * 6
    stitched = {f"c{n}": f"found-{n // 6}" for n in range(12)}
    (line,) = agreed(tmp_path / "a.db", shadows(words, [""] * 12), stitched)
    assert line.sessions == 2
    (line,) = agreed(tmp_path / "b.db", shadows(words, [""] * 12))
    assert line.sessions == 12
    assert (line.same.low, line.same.high) == pytest.approx(wilson(6, 12), abs=0.01)


def test_postgresql_tells_the_same(gateway_postgres, tmp_path):
    records = shadows(["same", "same_tool", "unscored", "same"] * 5, [f"s{n % 3}" for n in range(20)])
    stitched = {"c1": "s9", "c2": "s9"}
    assert agreed(gateway_postgres, records, stitched) == agreed(tmp_path / "gateway.db", records, stitched)


def test_a_worker_that_shadows_loads_no_statistics():
    code = "import sys, firstchair.gateway.app, firstchair.gateway.console.app; print('numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_figures_are_words_that_people_read():
    assert [usd(n) for n in (0, 1_234_500_000_000, 12_340_000, 1, -2_000_000_000, None)] == [
        "$0.00",
        "$1,234.50",
        "$0.0123",
        "< $0.0001",
        "−$2.00",
        "–",
    ]
    assert (count(12_345), count(1_234_567), ms(812.4), ms(None)) == ("12,345", "1.23 M", "812 ms", "–")


def test_ids_are_cut_in_the_middle_and_times_of_other_days_have_their_date():
    assert middle("desk/2026-07-15/conversation-17", 12) == "desk/…ion-17"
    assert middle("desk/17", 12) == "desk/17"
    assert [many(n, "call") for n in (0, 1, 1234)] == ["0 calls", "1 call", "1,234 calls"]
    now = time.time_ns() // 1000
    assert clock(now) in (when(now)[11:], when(now))  # at midnight it may be yesterday's already
    assert clock("2026-01-31T12:00:00Z") == "2026-01-31 12:00:00"


def test_charts_escape_and_stay_in_their_frame():
    assert 'width="50.00"' in bar(5, 10)
    assert 'width="100.00"' in bar(50, 10)
    drawn = columns([("<b>", 2.0, "two"), ("b", 4.0, "four")], 'a "chart"')
    assert "<b>" not in drawn
    assert 'height="20.000"' in drawn
    assert "&#34;chart&#34;" in drawn


def test_a_period_begins_at_midnight():
    from datetime import date

    assert midnight(1, date(1970, 1, 2)) == 86_400_000_000
    assert midnight(2, date(1970, 1, 2)) == 0
    assert midnight(0) is None
