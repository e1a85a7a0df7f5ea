"""What is kept of a group, its rewards, and which records a training run takes."""

import msgspec
import pytest

from firstchair.core.errors import DataError
from firstchair.data.orchestration.groups import Group
from firstchair.data.orchestration.selection import chosen_records, judge_group, left_out_because
from firstchair.data.orchestration.serialize import training_records
from firstchair.data.orchestration.stats import trajectory_stats
from firstchair.rollout.orchestration.task import OrchestrationTask
from firstchair.testing.trajectories import clean_trajectory, dispatched, trajectory_groups

TASK = OrchestrationTask(task_id="t", problem="What is 6 times 7?", gold_answer="42")
GOOD = {"correct": True, "clean": True, "routed": True, "unclean": []}


def costing(sample, nano, **changes):
    return clean_trajectory(sample=sample, dispatches=(dispatched(cost_nano=nano),), **changes)


def group(*trajectories):
    numbered = [msgspec.structs.replace(one, sample=place) for place, one in enumerate(trajectories)]
    return Group(task=TASK, trajectories=tuple(numbered))


def test_the_cheapest_correct_and_clean_trajectory_is_kept_and_no_other():
    wrong, dear, cheap, unclean, ungraded = (
        costing(0, 1, correct=False),
        costing(0, 900),
        costing(0, 500),
        costing(0, 2, final_answer="THE ANSWER IS +"),
        costing(0, 3, correct=None),
    )
    judged = judge_group(group(wrong, dear, cheap, unclean, ungraded))
    assert [one.kept for one in judged] == [False, False, True, False, False]
    assert [one.clean for one in judged] == [True, True, True, False, True]
    assert [one.reward for one in judged] == [None, -900e-9, -500e-9, -2e-9, None]
    assert not any(one.kept for one in judge_group(group(wrong, unclean, ungraded)))


def test_an_unknown_cost_is_dearer_than_any_and_has_no_reward():
    unknown, dear = costing(0, None), costing(0, 10**12)
    judged = judge_group(group(unknown, dear))
    assert [one.kept for one in judged] == [False, True]
    assert [one.reward for one in judged] == [None, -1000.0]
    assert [one.kept for one in judge_group(group(unknown, unknown))] == [True, False]


def test_equal_costs_are_told_apart_by_calls_and_then_by_number():
    one, two = costing(0, 100), clean_trajectory(dispatches=(dispatched(cost_nano=60), dispatched(cost_nano=40)))
    assert [judged.kept for judged in judge_group(group(two, one, one))] == [False, True, False]


def test_the_policy_counts_where_it_has_a_price_and_free_is_a_reward_of_zero():
    priced, free = costing(0, 100, policy_cost_nano=7), costing(0, 0)
    judged = judge_group(group(priced, free))
    assert [one.cost_nano for one in judged] == [107, 0]
    assert str(judged[1].reward) == "0.0"


@pytest.mark.parametrize(
    ("meta", "which", "clean_only", "why"),
    [
        (GOOD, "correct_routed", True, None),
        (GOOD | {"correct": False}, "correct", False, "wrong"),
        (GOOD | {"correct": None}, "correct", False, "not graded"),
        (GOOD | {"correct": None}, "all", False, None),
        (GOOD | {"routed": False}, "correct_routed", False, "no model was asked"),
        (GOOD | {"routed": False}, "correct", True, None),
        (GOOD | {"clean": False, "unclean": ["cut", "capitals"]}, "all", True, "unclean: cut"),
        (GOOD | {"clean": False, "unclean": ["cut"]}, "correct", False, None),
        ({}, "all", False, None),
    ],
)
def test_which_records_training_takes(meta, which, clean_only, why):
    assert left_out_because(meta, which, clean_only=clean_only) == why


def test_a_record_that_does_not_say_what_is_asked_is_refused():
    with pytest.raises(DataError, match=r"meta\.correct: found nothing; expected true or false"):
        left_out_because({}, "correct", clean_only=False)
    with pytest.raises(DataError, match=r"meta\.clean: found 1; expected"):
        left_out_because({"clean": 1}, "all", clean_only=True)


def test_statistics_account_for_every_trajectory():
    groups = trajectory_groups(20, seed=3)
    stats = trajectory_stats(groups)
    total = stats.total
    everything = [judged for group in groups for judged in judge_group(group)]
    assert (total.tasks, total.trajectories) == (20, 160)
    assert total.correct + total.wrong + total.ungraded + total.broken == 160 == sum(stats.ends.values())
    assert min(total.correct, total.wrong, total.broken, total.routed, total.clean) > 5
    assert total.kept == sum(one.kept for one in everything) <= total.solved <= 20
    assert total.clean == sum(one.clean for one in everything)
    assert sum(tally.trajectories for tally in stats.domains.values()) == 160
    assert sum(use.calls for use in stats.tools.values()) == sum(len(one.trajectory.dispatches) for one in everything)
    assert sum(use.cost_nano for use in stats.tools.values()) == sum(one.cost_nano or 0 for one in everything)
    assert stats.kept_cost_nano == sum(one.cost_nano or 0 for one in everything if one.kept)
    assert next(iter(stats.tools)) == "claude_opus_4_8"
    assert stats.unclean["error_observation"] >= stats.unclean_correct["error_observation"] > 0
    assert stats.nudges["no_delegation"] > 0


def test_an_ungraded_trajectory_that_ended_well_is_not_broken():
    stats = trajectory_stats([group(costing(0, None, correct=None))])
    assert (stats.total.ungraded, stats.total.broken, stats.unpriced) == (1, 0, 1)
    assert stats.tools["qwen3_5_9b"].unpriced == 1


def test_chosen_records_are_those_that_training_takes_and_the_others_are_counted():
    records = list(training_records(trajectory_groups(8)))
    left_out: dict[str, int] = {}
    chosen = list(chosen_records(records, "correct_routed", clean_only=True, left_out=left_out, path="sft.jsonl"))
    assert chosen == [r for r in records if r.meta["correct"] and r.meta["routed"] and r.meta["clean"]]
    assert len(chosen) + sum(left_out.values()) == len(records)
    assert {"wrong", "unclean: repeated_line", "no model was asked"} <= left_out.keys()
    wrong = [record for record in records if record.meta["correct"] is False]
    said = rf"sft\.jsonl: every record is left out: wrong \({len(wrong)}\); take more with --which or --no-clean"
    with pytest.raises(DataError, match=said):
        list(chosen_records(wrong, "correct", clean_only=True, left_out={}, path="sft.jsonl"))
    bare = [msgspec.structs.replace(records[0], meta={})]
    said = (
        r"sft\.jsonl: record made-0:0: meta\.correct: found nothing; .* --which all --no-clean takes records without"
    )
    with pytest.raises(DataError, match=said):
        list(chosen_records(bare, "correct", clean_only=False, left_out={}, path="sft.jsonl"))
