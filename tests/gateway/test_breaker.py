"""A provider that fails is left alone, probed, and taken back; what clients do wrong does not count."""

import pytest

from firstchair.gateway.breaker import TRIPS, Breaker, BreakerRules, BreakerState
from firstchair.gateway.dialects.base import FailureKind

RULES = BreakerRules(failures=3, window_s=10, open_s=5, max_open_s=12)


def opened(at: float = 0.0) -> Breaker:
    breaker = Breaker(RULES)
    for _ in range(3):
        breaker.failed(FailureKind.SERVER_ERROR, at)
    assert breaker.state(at) is BreakerState.OPEN
    return breaker


def test_it_opens_after_so_many_failures_in_a_row():
    breaker = Breaker(RULES)
    breaker.failed(FailureKind.CONNECT, 0)
    breaker.failed(FailureKind.TIMEOUT, 1)
    assert breaker.allows(1)
    breaker.failed(FailureKind.OVERLOADED, 2)
    assert not breaker.allows(2)
    assert breaker.wait_s(3) == 4


def test_an_answer_in_between_starts_the_count_anew():
    breaker = Breaker(RULES)
    for _ in range(4):
        breaker.failed(FailureKind.SERVER_ERROR, 0)
        breaker.answered()
        breaker.failed(FailureKind.SERVER_ERROR, 0)
        assert breaker.allows(0)
        breaker.answered()


def test_failures_spread_over_more_than_the_window_do_not_open_it():
    breaker = Breaker(RULES)
    for at in (0, 6, 12, 18, 24):
        breaker.failed(FailureKind.SERVER_ERROR, at)
        assert breaker.allows(at)


@pytest.mark.parametrize("kind", sorted(set(FailureKind) - TRIPS))
def test_what_is_not_the_providers_fault_never_opens_it(kind: FailureKind):
    breaker = Breaker(RULES)
    for at in range(100):
        breaker.failed(kind, at)
        assert breaker.allows(at)


def test_half_open_lets_one_probe_through_at_a_time():
    breaker = opened()
    assert breaker.state(5) is BreakerState.HALF_OPEN
    assert breaker.allows(5)
    assert not breaker.allows(5)
    breaker.answered()
    assert breaker.state(5) is BreakerState.CLOSED
    assert breaker.allows(5)
    assert breaker.allows(5)


def test_a_failed_probe_doubles_the_pause_up_to_its_limit():
    breaker, now = opened(), 0.0
    for pause in (5, 10, 12, 12):
        assert breaker.wait_s(now) == pause
        now += pause
        assert breaker.allows(now)
        breaker.failed(FailureKind.CONNECT, now)
    breaker.allows(now + 12)
    breaker.answered()
    for _ in range(3):
        breaker.failed(FailureKind.CONNECT, now)
    assert breaker.wait_s(now) == 5


def test_calls_that_were_running_when_it_opened_do_not_make_the_pause_longer():
    breaker = opened()
    breaker.failed(FailureKind.SERVER_ERROR, 4)
    assert breaker.wait_s(4) == 1


def test_a_probe_whose_client_went_away_can_be_repeated():
    breaker = opened()
    assert breaker.allows(5)
    breaker.abandoned()
    assert breaker.allows(5)


def test_a_probe_that_never_reports_does_not_lock_the_provider_out():
    breaker = opened()
    assert breaker.allows(5)
    assert not breaker.allows(16)
    assert breaker.allows(17)


def test_a_refused_request_of_the_probe_closes_it():
    breaker = opened()
    assert breaker.allows(5)
    breaker.failed(FailureKind.BAD_REQUEST, 5)
    assert breaker.state(5) is BreakerState.CLOSED
