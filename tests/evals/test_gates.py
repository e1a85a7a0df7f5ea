from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.evals.rows import row

from firstchair.core.config import load_recipe
from firstchair.core.errors import ConfigError, DataError
from firstchair.core.jsontext import dumps
from firstchair.evals.gate_record import GATES, GateVerdict, gate_verdict, verdict_of
from firstchair.evals.gate_thresholds import Thresholds
from firstchair.evals.gates import Evidence, six_gates
from firstchair.evals.metrics import Prices
from firstchair.evals.played import Played, paired, read_played
from firstchair.evals.spending import Call, Spending, spending_of_run
from firstchair.testing.sessions import trip_session

PASS, FAIL, UNDECIDED, NOT_RUN = GateVerdict.PASS, GateVerdict.FAIL, GateVerdict.UNDECIDED, GateVerdict.NOT_RUN
KINDS = {"mine": "convention", "t": "universal"}


def alone(number: int, *args, **fields):
    """A row that is the only one of its session."""
    return row(5 * number, *args, **fields)


def calls(count: int, right: int, tool: str = "t", start: int = 0, **fields):
    """``count`` decisions for ``tool``, of which ``right`` are right and the rest call another."""
    return [
        alone(start + n, (tool,), (tool,) if n < right else ("u",), "pass" if n < right else "wrong_tool", **fields)
        for n in range(count)
    ]


def stops(count: int, right: int, start: int = 1000):
    """``count`` stops, of which ``right`` are where gold stops."""
    return [
        alone(start + n, () if n < right else ("t",), (), "pass" if n < right else "premature_stop")
        for n in range(count)
    ]


def played(count: int, completed: int, failed: int = 0, **fields) -> list[Played]:
    """Episodes of ``count`` tasks; a call failed in the first ``failed``."""
    return [
        Played(task_id=f"task-{n:03}", completed=n < completed, call_failed=n < failed, **fields)
        for n in range(count)
    ]


def spent(sessions: int, usd: float, latency_s: float = 0.2, calls_each: int = 2) -> Spending:
    return Spending(
        calls=tuple(
            Call(f"{usd}-{session}", usd, latency_s) for session in range(sessions) for _ in range(calls_each)
        )
    )


def good(**changes) -> Evidence:
    """Evidence on which every gate passes."""
    candidate = [
        *calls(40, 40),
        *calls(40, 40, "mine", 100),
        *calls(20, 20, "t", 200, tags=("recovery",)),
        *stops(800, 800),
    ]
    baseline = [
        *calls(40, 40),
        *calls(40, 10, "mine", 100),
        *calls(20, 2, "t", 200, tags=("recovery",)),
        *stops(800, 800),
    ]
    fields = {
        "candidate": candidate,
        "kinds": KINDS,
        "baseline": baseline,
        "episodes": played(100, 90, 50),
        "baseline_episodes": played(100, 60, 100),
        "spending": spent(40, 0.001),
        "baseline_spending": spent(40, 0.010, 0.3),
    }
    return Evidence(**{**fields, **changes})


def gates_of(evidence: Evidence, thresholds: Thresholds | None = None, **options):
    return {gate.name: gate for gate in six_gates(evidence, thresholds or Thresholds(), **options)}


def check_of(gate, metric: str, of: str = ""):
    (found,) = [check for check in gate.checks if (check.metric, check.of) == (metric, of)]
    return found


# --- verdicts ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "bound", "low", "value", "high", "verdict"),
    [
        (">=", 0.8, 0.8, 0.9, 0.95, PASS),
        (">=", 0.8, 0.79, 0.9, 0.95, UNDECIDED),
        (">=", 0.8, 0.5, 0.7, 0.8, UNDECIDED),
        (">=", 0.8, 0.5, 0.7, 0.79, FAIL),
        (">", 0.0, 0.0, 0.1, 0.2, UNDECIDED),
        (">", 0.0, 0.01, 0.1, 0.2, PASS),
        (">", 0.0, -0.2, -0.1, 0.0, FAIL),
        ("<=", 0.005, 0.0, 0.0, 0.005, PASS),
        ("<=", 0.005, 0.0, 0.0, 0.006, UNDECIDED),
        ("<=", 0.005, 0.006, 0.01, 0.02, FAIL),
        ("<", 0.0, -2.0, -1.0, 0.0, UNDECIDED),
        ("<", 0.0, -2.0, -1.0, -0.1, PASS),
        ("<", 0.0, 0.0, 1.0, 2.0, FAIL),
        (">=", 0.8, None, None, None, UNDECIDED),
        # The interval misses its own point, as a percentile interval of a skewed ratio may.
        (">=", 0.8, 0.81, 0.79, 0.9, UNDECIDED),
    ],
)
def test_an_interval_keeps_to_a_bound_breaks_it_or_does_not_say(rule, bound, low, value, high, verdict):
    assert verdict_of(rule, bound, value, low, high) is verdict


def test_a_gate_without_a_check_shows_nothing():
    assert gate_verdict(()) is UNDECIDED


# --- each gate --------------------------------------------------------------------------------------------------


def test_a_good_candidate_passes_all_six():
    found = gates_of(good())
    assert tuple(found) == GATES["promotion"]
    assert {name: gate.verdict for name, gate in found.items()} == dict.fromkeys(found, PASS)


@pytest.mark.parametrize(
    ("count", "right", "verdict", "low", "needed"),
    [
        # Wilson of n of n begins at n/(n + 3.8415).
        (16, 16, PASS, 0.80640, None),
        (15, 15, UNDECIDED, 0.79612, 16),
        # 9 of 40: p = 0.225, design effect 40/39, so n = 39: (0.225 + 0.04925)/1.0985 − 0.12745.
        (40, 9, FAIL, 0.12221, None),
    ],
)
def test_routing_passes_on_the_bound_of_the_interval(count, right, verdict, low, needed):
    evidence = good(candidate=calls(count, right), baseline=calls(count, 0), kinds={})
    gate = gates_of(evidence)["routing"]
    found = check_of(gate, "tool_name")
    assert (found.verdict, found.n, found.needed) == (verdict, count, needed)
    assert found.low == pytest.approx(low, abs=1e-5)
    assert gate.verdict is verdict


def test_each_convention_tool_has_a_bound_of_its_own():
    rows = [*calls(400, 400), *calls(40, 20, "mine", 500)]
    gate = gates_of(good(candidate=rows, baseline=[]))["routing"]
    assert check_of(gate, "tool_name").verdict is PASS
    assert check_of(gate, "convention_tool", "mine").verdict is FAIL
    assert gate.verdict is FAIL


def test_a_convention_tool_that_the_golden_set_never_asks_for_is_undecided():
    gate = gates_of(good(kinds={**KINDS, "rare": "convention"}))["routing"]
    found = check_of(gate, "convention_tool", "rare")
    assert (found.verdict, found.n, found.needed, found.value) == (UNDECIDED, 0, 16, None)
    assert gate.verdict is UNDECIDED


def test_only_tools_that_the_baseline_had_may_not_regress():
    before = [*calls(40, 40), *calls(40, 29, "weak", 100)]
    after = [*calls(40, 36), *calls(40, 0, "weak", 100)]
    gate = gates_of(good(candidate=after, baseline=before, kinds={}))["routing"]
    assert [check.of for check in gate.checks if check.metric == "no_regression"] == ["t"]
    found = check_of(gate, "no_regression", "t")
    # 36 of 40 less 40 of 40; no correlation can be told. Wilson of 36 of 40, design effect 40/39: 0.7667 to 0.9613.
    assert found.value == pytest.approx(-0.1)
    assert found.low == pytest.approx(-0.1 - (0.9 - 0.7667), abs=2e-3)
    assert (found.method, found.verdict) == ("newcombe", UNDECIDED)
    worse = gates_of(good(candidate=calls(40, 20), baseline=calls(40, 40), kinds={}))["routing"]
    assert check_of(worse, "no_regression", "t").verdict is FAIL


def test_arguments_count_where_the_tool_is_right():
    rows = [*calls(60, 30), *(alone(200 + n, ("t",), ("t",), "wrong_args") for n in range(3))]
    found = check_of(gates_of(good(candidate=rows))["argument_quality"], "argument_quality")
    assert (found.n, found.value) == (33, pytest.approx(30 / 33))
    assert found.verdict is UNDECIDED


def test_stopping_has_two_bounds():
    gate = gates_of(good(candidate=[*stops(500, 480), *calls(300, 300)]))["stop"]
    assert check_of(gate, "stop_precision").value == pytest.approx(0.96)
    malformed = check_of(gate, "malformed")
    # None of 800: up to 3.8415/803.84 = 0.00478. Of 700 it would be 0.00546.
    assert (malformed.verdict, malformed.high) == (PASS, pytest.approx(0.00478, abs=1e-5))
    fewer = check_of(gates_of(good(candidate=calls(700, 700)))["stop"], "malformed")
    assert (fewer.verdict, fewer.needed) == (UNDECIDED, 765)
    broken = [*calls(700, 700), *(alone(2000 + n, verdict="malformed") for n in range(30))]
    assert check_of(gates_of(good(candidate=broken))["stop"], "malformed").verdict is FAIL


@pytest.mark.parametrize(("completed", "verdict"), [(60, PASS), (54, UNDECIDED), (30, FAIL)])
def test_completion_may_be_below_the_baseline_by_the_margin_alone(completed, verdict):
    evidence = good(episodes=played(100, completed), baseline_episodes=played(100, 60))
    found = check_of(gates_of(evidence)["completion"], "completed")
    assert found.value == pytest.approx((completed - 60) / 100)
    assert (found.bound, found.verdict) == (-0.05, verdict)


def test_two_equal_models_are_equal_and_no_gate_fails():
    rows, episodes = good().candidate, played(100, 90, 50)
    same = good(baseline=rows, baseline_episodes=episodes, episodes=episodes, baseline_spending=spent(40, 0.001))
    found = gates_of(same)
    for metric, gate in (("completed", "completion"), ("recovery", "recovery"), ("recovered_episodes", "recovery")):
        assert check_of(found[gate], metric).value == 0.0
    assert check_of(found["cost_latency"], "usd_per_call").value == 0.0
    assert FAIL not in {found[name].verdict for name in ("routing", "completion", "recovery", "stop")}
    assert found["recovery"].verdict is UNDECIDED  # it is not shown to be better
    relaxed = load_recipe(Thresholds, None, ["recovery.margin=-0.3"])
    assert gates_of(same, relaxed)["recovery"].verdict is PASS


def test_recovery_is_over_decisions_and_over_episodes_in_which_a_call_failed():
    gate = gates_of(good())["recovery"]
    decisions, alive = check_of(gate, "recovery"), check_of(gate, "recovered_episodes")
    assert (decisions.value, decisions.n) == (pytest.approx(18 / 20), 20)
    # Of the first 50 of 100 tasks all; of 100, 60.
    assert (alive.value, alive.note) == (pytest.approx(1.0 - 0.6), "60 of 100 before, 50 of 50 now")


def test_episodes_without_a_counterpart_are_listed_and_may_not_be_many():
    before = played(100, 60)
    lost = [msgspec.structs.replace(one, completed=None, error="timeout") for one in before[:2]]
    gate = gates_of(good(episodes=played(97, 90), baseline_episodes=[*lost, *before[2:]]))["completion"]
    found = check_of(gate, "unpaired")
    assert (found.value, found.n, found.verdict) == (0.05, 100, FAIL)
    assert {part.reason: part.count for part in gate.excluded} == {
        "no episode of the candidate": 3,
        "not judged for the baseline: timeout": 2,
    }


def test_episodes_that_began_differently_are_no_pair():
    found = paired(played(3, 3, seed=1), played(3, 3, seed=2))
    assert (found.pairs, found.total, found.left_out) == ([], 3, {"begun from different seeds": 3})


def test_decisions_that_the_engine_failed_at_are_listed_and_may_not_be_many():
    rows = [*calls(90, 90), *(alone(500 + n, verdict="error", rule="server", stop="error") for n in range(10))]
    gate = gates_of(good(candidate=rows, baseline=rows, kinds={}))["routing"]
    assert check_of(gate, "candidate_errors").value == pytest.approx(0.1)
    assert (check_of(gate, "candidate_errors").verdict, gate.verdict) == (FAIL, FAIL)
    assert {(part.what, part.reason, part.count) for part in gate.excluded} == {
        ("candidate's decisions", "server", 10),
        ("baseline's decisions", "server", 10),
    }


# --- cost and latency -------------------------------------------------------------------------------------------


def test_cheaper_is_per_call_and_per_session():
    found = gates_of(good())["cost_latency"]
    per_call, per_session = (check_of(found, f"usd_per_{unit}") for unit in ("call", "session"))
    assert (per_call.value, per_call.n) == (pytest.approx(-0.009), 80)
    assert (per_session.value, per_session.n) == (pytest.approx(-0.018), 40)
    assert per_call.note == "$0.010000 before, $0.001000 now"
    # Cheaper calls, and so many more of them.
    chatty = gates_of(good(spending=spent(40, 0.001, calls_each=30)))["cost_latency"]
    assert check_of(chatty, "usd_per_call").verdict is PASS
    assert check_of(chatty, "usd_per_session").verdict is FAIL


def test_few_sessions_say_nothing_of_cost():
    found = check_of(gates_of(good(spending=spent(9, 0.001)))["cost_latency"], "usd_per_session")
    assert (found.verdict, found.low, found.value) == (UNDECIDED, None, pytest.approx(-0.018))
    assert "at least 10 are needed" in found.note


def test_sessions_that_both_served_are_compared_with_each_other():
    # Dear sessions and cheap ones; the candidate saves a tenth on each, far less than they differ by.
    sides = [
        Spending(calls=tuple(Call(f"s{n}", factor * (1.0 if n % 2 else 0.01), 0.1) for n in range(40)))
        for factor in (1.0, 0.9)
    ]
    found = check_of(gates_of(good(baseline_spending=sides[0], spending=sides[1]))["cost_latency"], "usd_per_session")
    assert found.verdict is PASS
    apart = Spending(calls=tuple(Call(f"other-{call.session}", call.usd, 0.1) for call in sides[1].calls))
    found = check_of(gates_of(good(baseline_spending=sides[0], spending=apart))["cost_latency"], "usd_per_session")
    assert found.verdict is UNDECIDED


def test_calls_without_a_price_are_counted_and_may_not_be_many():
    some = spent(40, 0.001)
    unpriced = Spending(calls=(*some.calls, *(Call("x", None, 0.2) for _ in range(20))))
    gate = gates_of(good(spending=unpriced))["cost_latency"]
    assert (check_of(gate, "candidate_unpriced").value, gate.verdict) == (0.2, FAIL)
    assert [(part.what, part.reason, part.count) for part in gate.excluded] == [("candidate's calls", "no price", 20)]


def test_slow_calls_are_those_beyond_the_baselines_percentile_or_the_one_that_is_set():
    latencies = [0.1] * 190 + [1.0] * 10
    slow = Spending(calls=tuple(Call(f"s{n // 2}", 0.001, latency) for n, latency in enumerate(latencies)))
    found = check_of(gates_of(good(spending=slow))["cost_latency"], "slow_calls")
    assert (found.value, found.n, found.verdict) == (0.05, 200, UNDECIDED)
    assert found.note == "slower than 300 ms (the baseline's own); p95 145 ms"
    for p95_ms, verdict in ((1000, PASS), (99, FAIL)):
        asked = load_recipe(Thresholds, None, [f"cost_latency.p95_ms={p95_ms}"])
        found = check_of(gates_of(good(spending=slow), asked)["cost_latency"], "slow_calls")
        assert (found.verdict, "as asked" in found.note) == (verdict, True)


def test_a_runs_tokens_have_a_price_where_they_are_known():
    rows = [
        row(0, prompt_tokens=1000, cached_tokens=400, output_tokens=10, latency_s=0.5),
        row(1, prompt_tokens=0, output_tokens=10, latency_s=0.1),
        row(2, verdict="error", rule="server", stop="error"),
    ]
    found = spending_of_run(rows, Prices(input=3.0, output=15.0, cached=0.3))
    assert found.calls[0] == Call("s0", pytest.approx((600 * 3 + 400 * 0.3 + 10 * 15) / 1e6), 0.5)
    assert found.calls[1].usd is None
    assert found.excluded == {"no answer": 1}


# --- inputs -----------------------------------------------------------------------------------------------------


def test_a_missing_input_names_its_gate_its_option_and_its_command():
    with pytest.raises(ConfigError) as caught:
        gates_of(Evidence(good().candidate, KINDS))
    for words in (
        "routing needs the baseline's run: --baseline RUN; made by: firstchair eval replay",
        "completion needs the candidate's episodes: --episodes FILE; made by: firstchair desk play",
        "recovery needs the baseline's episodes: --baseline-episodes FILE",
        "cost_latency needs what calls cost: --ledger DATABASE (or --prices FILE",
        "--allow-missing routing",
    ):
        assert words in str(caught.value)
    assert "stop needs" not in str(caught.value)


def test_a_gate_that_may_lack_its_input_is_not_run_and_one_that_has_it_is():
    names = ("routing", "completion", "recovery", "cost_latency", "stop")
    found = gates_of(Evidence(good().candidate, KINDS), allow_missing=names)
    assert [gate.verdict for gate in found.values()] == [NOT_RUN, PASS, NOT_RUN, NOT_RUN, PASS, NOT_RUN]
    assert found["cost_latency"].why == "without what calls cost"
    with pytest.raises(ConfigError, match="--allow-missing speed: expected one of routing, "):
        gates_of(good(), allow_missing=["speed"])


def test_the_recipe_holds_the_defaults():
    path = Path(__file__).parents[2] / "recipes" / "gates.yaml"
    assert load_recipe(Thresholds, path) == Thresholds()
    with pytest.raises(ConfigError, match="did you mean tool_name"):
        load_recipe(Thresholds, path, ["routing.tool_nam=0.5"])


def test_episodes_are_read_from_the_labels_of_sessions(tmp_path):
    path = tmp_path / "episodes.jsonl"
    labels = [
        {"task_id": 7, "completed": True},
        {"task_id": 7, "trial": 1, "completed": False},
        {"task_id": "b", "error": "connection: refused"},
    ]
    sessions = [trip_session(n, labels=said, meta={"seed": 3, "policy": "p"}) for n, said in enumerate(labels)]
    write(path, sessions)
    assert read_played(path) == (
        Played(task_id="7", completed=True, call_failed=True, seed=3, policy="p"),
        Played(task_id="7", trial=1, completed=False, call_failed=True, seed=3, policy="p"),
        Played(task_id="b", completed=None, call_failed=True, seed=3, policy="p", error="connection"),
    )


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        ([{"completed": True}], r"episodes\.jsonl:1: labels\.task_id: missing"),
        ([{"task_id": "a"}], r"episodes\.jsonl:1: labels\.completed: missing; expected true or false, or `error`"),
        ([{"task_id": "a", "completed": 1}], r"labels\.completed: found 1; expected true or false"),
        ([{"task_id": "a", "completed": True, "trial": "x"}], r"labels\.trial: found 'x'"),
        (
            [{"task_id": "a", "completed": True}] * 2,
            r"episodes\.jsonl:2: labels\.trial: task 'a', trial 0 stands twice",
        ),
        ([], "no episode in it"),
    ],
)
def test_a_bad_episode_is_named_by_line_and_label(tmp_path, labels, words):
    path = tmp_path / "episodes.jsonl"
    write(path, [trip_session(number, labels=said) for number, said in enumerate(labels)])
    with pytest.raises(DataError, match=words):
        read_played(path)


def write(path, sessions):
    path.write_text("".join(dumps(msgspec.to_builtins(session)) + "\n" for session in sessions), encoding="utf-8")


# --- improving a candidate --------------------------------------------------------------------------------------

MISTAKES = {"t": ("wrong_args", "wrong_tool", "premature_stop", "malformed"), "": ("failed_to_stop", "malformed")}
ACTS = {"wrong_args": ("t",), "wrong_tool": ("u",), "premature_stop": (), "failed_to_stop": ("t",), "malformed": ()}


@st.composite
def decisions(draw):
    """Gold and what a candidate makes of it, for some sessions of five decisions."""
    count = draw(st.integers(5, 60))
    mistakes = draw(st.floats(0, 0.6))
    rng = draw(st.randoms(use_true_random=False))
    made = []
    for number in range(count):
        gold = rng.choice(["t", "mine", ""])
        wrong = rng.choice(MISTAKES["t" if gold else ""]) if rng.random() < mistakes else "pass"
        made.append((number, gold, wrong, ("recovery",) if rng.random() < 0.3 else ()))
    return made


def made_row(number, gold, verdict, tags):
    tools = (gold,) if gold else ()
    made = tools if verdict in ("pass", "wrong_args") else ACTS[verdict]
    return row(number, tools, made, verdict, tags=tags)


def verdicts(rows, baseline, episodes, baseline_episodes):
    found = gates_of(good(candidate=rows, baseline=baseline, episodes=episodes, baseline_episodes=baseline_episodes))
    checks = {(gate.name, check.metric, check.of): check.verdict for gate in found.values() for check in gate.checks}
    return {**checks, **{name: gate.verdict for name, gate in found.items()}}


@given(decisions(), st.data())
@settings(max_examples=15, deadline=None)
def test_improving_a_candidate_never_turns_a_pass_into_a_fail(made, data):
    baseline = [
        made_row(n, gold, data.draw(st.sampled_from(["pass", "malformed"])), tags) for n, gold, _, tags in made
    ]
    outcomes = data.draw(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=len(made), max_size=len(made)))
    episodes = [
        Played(task_id=f"{n:03}", completed=done, call_failed=failed) for n, (done, failed) in enumerate(outcomes)
    ]
    before = verdicts([made_row(*one) for one in made], baseline, episodes, played(len(made), len(made) // 2, 30))
    wrong = [place for place, one in enumerate(made) if one[2] != "pass"]
    mended = set(data.draw(st.lists(st.sampled_from(wrong), unique=True))) if wrong else set()
    better = [
        (n, gold, "pass" if place in mended else made_as, tags) for place, (n, gold, made_as, tags) in enumerate(made)
    ]
    done = data.draw(st.sets(st.integers(0, len(made) - 1)))
    livelier = [
        msgspec.structs.replace(one, completed=one.completed or place in done) for place, one in enumerate(episodes)
    ]
    after = verdicts([made_row(*one) for one in better], baseline, livelier, played(len(made), len(made) // 2, 30))
    turned = [name for name, verdict in before.items() if verdict is PASS and after[name] is FAIL]
    assert not turned
