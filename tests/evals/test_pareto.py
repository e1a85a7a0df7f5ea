from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firstchair.core.errors import DataError
from firstchair.core.jsonl import write_jsonl
from firstchair.data.orchestration.groups import Group
from firstchair.evals.pareto import RoutedTask, frontier, mean, pareto_points, read_routed
from firstchair.evals.pareto_report import NARROW, WIDE, Box, plot_of, render, usd
from firstchair.rollout.orchestration.task import OrchestrationTask
from firstchair.rollout.orchestration.trajectory import Dispatch, Trajectory, TrajectoryEnd


def outcomes(policy: str, right: int, cost: float | None, n: int = 40, **fields) -> list[RoutedTask]:
    return [
        RoutedTask(policy=policy, task_id=f"t{i}", correct=i < right, cost_usd=cost, latency_s=2.0, **fields)
        for i in range(n)
    ]


def test_the_frontier_is_what_no_other_point_beats_at_both():
    points = [(1.0, 0.5), (2.0, 0.5), (2.0, 0.9), (3.0, 0.8), (None, 1.0), (4.0, None), (2.0, 0.9)]
    assert frontier(points) == [True, False, True, False, False, False, True]


@settings(max_examples=40)
@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=8))
def test_every_point_off_the_frontier_is_beaten_by_one_that_is_on_it(points):
    on = [point for point, best in zip(points, frontier(points), strict=True) if best]
    assert on
    for cost, accuracy in points:
        assert any(other <= cost and share >= accuracy for other, share in on)


def test_a_point_is_made_of_what_is_known_and_counts_the_rest():
    rows = outcomes("a", 30, 0.02, lambda_cost=0.2)
    rows[0] = msgspec.structs.replace(rows[0], correct=None)
    rows[1] = msgspec.structs.replace(rows[1], cost_usd=None)
    (point,) = pareto_points(rows)
    assert point.accuracy.value == pytest.approx(29 / 39)
    assert point.accuracy.low < point.accuracy.value < point.accuracy.high
    assert (point.cost_usd.value, point.cost_usd.n) == (pytest.approx(0.02), 39)
    assert (point.ungraded, point.unpriced, point.lambda_cost) == (1, 1, 0.2)


def test_runs_of_several_seeds_over_the_same_tasks_do_not_narrow_an_interval():
    values = [(f"t{i}", float(i)) for i in range(20)]
    once, thrice = mean(values), mean(values * 3)
    assert (once.value, once.low, once.high) == (thrice.value, thrice.low, thrice.high)
    assert thrice.n == 60


def test_policies_come_cheapest_first_and_one_of_unknown_cost_last_and_undrawn():
    points = pareto_points(
        [*outcomes("dear", 36, 0.06, kind="rule"), *outcomes("cheap", 28, 0.001), *outcomes("free?", 40, None)]
    )
    assert [point.policy for point in points] == ["cheap", "dear", "free?"]
    assert [point.frontier for point in points] == [True, True, False]
    assert [mark.number for mark in plot_of(points, WIDE).marks] == [1, 2]
    bound = pareto_points([*outcomes("oracle", 40, 0.0, kind="bound"), *outcomes("cheap", 28, 0.001)])
    assert [point.frontier for point in bound] == [False, True]
    page = render(points, title="Routing")
    assert "free?: 40 without a known cost. They are in no figure." in page
    assert page.count("<circle cx") == 2  # the trained one, wide and narrow; the fixed rule is a square
    legend = {"policy of a model", "fixed rule", "what no policy can reach"}
    assert {words for words in legend if words in page} == {"policy of a model", "fixed rule"}
    page = render(
        pareto_points([*outcomes("oracle", 40, 0.0, kind="bound"), *outcomes("r", 28, 0.001, kind="rule")]), title=""
    )
    assert {words for words in legend if words in page} == {"fixed rule", "what no policy can reach"}
    assert "a task, 1 policy." in page
    assert "the same tasks" not in page


def test_policies_that_were_given_other_tasks_are_named():
    points = pareto_points([*outcomes("some", 20, 0.01, n=30, lambda_cost=0.5), *outcomes("all", 20, 0.02)])
    assert [point.missed for point in points] == [10, 0]
    assert "may be one of tasks: some, λ = 0.5, lacks 10.</p>" in render(points, title="")


def test_trajectories_are_read_with_what_experts_and_policy_cost(tmp_path: Path):
    asked = Dispatch(step=0, label="model_ab12", name="solo", kind="model", cost_nano=30_000_000)
    one = Trajectory(
        task_id="t", sample=0, messages=(), tools=(), end=TrajectoryEnd.ANSWERED, dispatches=(asked,), correct=True
    )
    unknown = msgspec.structs.replace(asked, cost_nano=None)
    trajectories = (
        msgspec.structs.replace(one, policy_cost_nano=5_000_000),
        msgspec.structs.replace(one, dispatches=(asked, unknown), correct=None),
    )
    group = Group(task=OrchestrationTask(task_id="t", problem="?"), trajectories=trajectories)
    write_jsonl(tmp_path / "mine.jsonl", [msgspec.to_builtins(group)])
    found = read_routed(tmp_path / "mine.jsonl")
    assert [(one.policy, one.correct, one.cost_usd) for one in found] == [("mine", True, 0.035), ("mine", None, None)]


def test_a_line_that_is_neither_is_named_with_its_place(tmp_path: Path):
    write_jsonl(tmp_path / "x.jsonl", [{"policy": "a"}])
    with pytest.raises(DataError, match=r"x\.jsonl:1: .*task_id.*expected"):
        read_routed(tmp_path / "x.jsonl")
    (tmp_path / "empty.jsonl").write_text("")
    with pytest.raises(DataError, match="found no line"):
        read_routed(tmp_path / "empty.jsonl")


@pytest.mark.parametrize(
    ("value", "text"), [(0.0, "$0.00"), (0.000393, "$0.000393"), (0.0617, "$0.0617"), (12.5, "$12.50"), (None, "–")]
)
def test_money_shows_three_digits(value, text):
    assert usd(value) == text


@pytest.mark.parametrize("frame", [WIDE, NARROW])
def test_numbers_of_points_near_all_right_are_whole_and_lie_on_no_other(frame):
    costs = (0.0001, 0.000101, 0.000102, 0.000103, 0.000104, 0.00031, 0.000312, 0.00032)
    rows = [one for n, cost in enumerate(costs) for one in outcomes(f"p{n}", 40 - n % 2, cost)]
    plot = plot_of(pareto_points(rows), frame)
    labels = [mark.label for mark in plot.marks]
    marks = [Box(mark.x - 5, mark.y - 5, mark.x + 5, mark.y + 5) for mark in plot.marks]
    room = Box(0, 0, frame.width, frame.height)
    for at, label in enumerate(labels):
        assert label.within(room)
        assert not any(label.meets(other) for other in (*labels[:at], *marks))
    assert [text for _, text in plot.x_ticks] == ["$0", "$0.0001", "$0.0002", "$0.0003", "$0.0004"]


def test_the_page_holds_no_markup_of_a_policy_and_loads_nothing():
    points = pareto_points(outcomes("<script>alert(1)</script>", 20, 0.01))
    page = render(points, title="<b>")
    assert "<script" not in page
    assert not re.search(r"""(src|href)=["']?http""", page)
