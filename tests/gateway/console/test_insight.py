"""What is told of shadows, and how figures are shown."""

from tests.gateway.console.traffic import CLAUDE, SMALL

from firstchair.gateway.console.insight import shadow_agreement
from firstchair.gateway.console.ledger_page import midnight
from firstchair.gateway.console.render import bar, columns, count, ms, usd
from firstchair.gateway.control.ledger import insert_records
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


def test_agreement_is_of_the_calls_that_could_be_compared(tmp_path):
    words = ("same", "same", "different", "unscored", "")
    records = [call(n, "shadow", first=SMALL, agreement=word, cost_nano=5) for n, word in enumerate(words)]
    with ControlStore.open(tmp_path / "gateway.db") as store:
        with store.transaction() as connection:
            insert_records(connection, [*records, call(9)])
        with store.reading() as connection:
            (line,) = shadow_agreement(connection)
            assert shadow_agreement(connection, since_us=100) == []
    assert (line.route, line.calls, line.scored, line.cost_nano) == (str(SMALL), 5, 3, 25)
    assert line.share == 2 / 3


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
