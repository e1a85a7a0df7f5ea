"""Trajectories as SFT records: what is taught, what stays context, and what the record says of itself."""

import msgspec
import pytest

from firstchair.chat.messages import TRUNCATED, ToolCall, assistant_message, text_message, tool_result
from firstchair.data.orchestration.groups import Group
from firstchair.data.orchestration.selection import judge_group
from firstchair.data.orchestration.serialize import taught_messages, training_records
from firstchair.data.sft import read_sft, write_sft
from firstchair.rollout.orchestration.task import OrchestrationTask
from firstchair.rollout.orchestration.trajectory import TrajectoryEnd
from firstchair.testing.trajectories import NUDGE, clean_trajectory, trajectory_groups

TASK = OrchestrationTask(
    task_id="t", problem="What is 6 times 7?", gold_answer="42", domain="math", area="arithmetic", difficulty="easy"
)
FIELDS = (
    *("task_id", "domain", "area", "difficulty", "dataset", "gold_answer", "correct", "clean", "kept", "reward"),
    *("metrics", "gen_model", "anonymised"),
)


def record_of(trajectory):
    (record,) = training_records([Group(task=TASK, trajectories=(trajectory,))])
    return record


def with_messages(*messages, **changes):
    made = clean_trajectory()
    return clean_trajectory(messages=(*made.messages[:2], *messages), **changes)


def test_the_way_to_the_answer_is_taught_and_the_answer_is_a_bare_line():
    trajectory = clean_trajectory()
    record = record_of(trajectory)
    assert record.messages[-1] == text_message("assistant", "FINAL_ANSWER: 42")
    assert [message.role for message in record.messages] == [message.role for message in trajectory.messages]
    assert list(record.loss) == [message.role == "assistant" for message in record.messages]
    assert record.messages[:2] == trajectory.messages[:2]
    assert record.tools == trajectory.tools
    step = record.messages[2]
    assert step.thinking == "Multiply."
    assert step.tool_calls == trajectory.messages[2].tool_calls
    assert [m for m in record.messages if m.role == "tool"] == [m for m in trajectory.messages if m.role == "tool"]


def test_a_record_has_every_field_that_selection_and_analysis_need():
    made = clean_trajectory(labels={"model_ab12": "qwen3_5_9b"}, policy_cost_nano=5)
    meta = record_of(made).meta
    assert set(FIELDS) <= meta.keys()
    assert (meta["task_id"], meta["domain"], meta["area"], meta["difficulty"]) == ("t", "math", "arithmetic", "easy")
    assert (meta["correct"], meta["clean"], meta["kept"], meta["routed"]) == (True, True, True, True)
    assert meta["anonymised"] == {"model_ab12": "qwen3_5_9b"}
    assert meta["gen_model"] == "made-policy"
    assert meta["reward"] == -meta["metrics"]["cost_usd"] < 0
    expert = meta["metrics"]["tools"]["qwen3_5_9b"]
    assert expert["calls"] == 1
    assert meta["metrics"]["cost_usd"] == pytest.approx(expert["cost_usd"] + 5e-9)
    assert {"prompt_tokens", "completion_tokens", "latency_s", "parse_failures", "nudges"} <= meta["metrics"].keys()


def test_an_unknown_price_is_unknown_and_not_zero():
    made = clean_trajectory()
    blank = tuple(msgspec.structs.replace(one, cost_nano=None) for one in made.dispatches[:1])
    meta = record_of(clean_trajectory(dispatches=blank)).meta
    assert meta["reward"] is None
    assert meta["metrics"]["cost_usd"] is None
    assert meta["metrics"]["tools"]["qwen3_5_9b"]["cost_usd"] is None


def test_one_record_a_trajectory_right_or_wrong_and_the_kept_ones_alone_on_request():
    groups = trajectory_groups(12)
    broken: list[str] = []
    records = list(training_records(groups, left_out=broken))
    assert len(records) + len(broken) == 96
    assert 0 < len(broken) == sum(one.end is TrajectoryEnd.FAILED for group in groups for one in group.trajectories)
    assert len({record.id for record in records}) == len(records)
    kept = list(training_records(groups, kept_only=True))
    assert kept == [record for record in records if record.meta["kept"]]
    assert 0 < len(kept) == sum(one.kept for group in groups for one in judge_group(group)) <= 12


def test_records_survive_the_file_and_keep_their_tools(tmp_path):
    records = list(training_records(trajectory_groups(5)))
    counts = write_sft(tmp_path / "sft.jsonl", records)
    assert list(read_sft(tmp_path / "sft.jsonl")) == records
    assert counts.records == len(records)
    assert any(record.tools[0].name.startswith("model_") for record in records)


def test_a_reply_before_a_nudge_stays_in_the_context_and_leaves_the_loss():
    made = clean_trajectory()
    rest = made.messages[2:]
    nudged = with_messages(assistant_message("It is 42."), text_message("user", NUDGE), *rest)
    messages, loss = taught_messages(nudged)
    assert messages[2].text == "It is 42."
    assert loss[2] is False
    assert loss[4] is loss[-1] is True


def test_calls_that_cannot_be_read_or_name_no_tool_are_not_taught():
    made = clean_trajectory()
    unknown = ToolCall.of("u", "oracle", {"input": "x"})
    broken = ToolCall(id="b", name="calculator", arguments="{")
    cut = assistant_message("so", calls=(ToolCall.of("c", "calculator", {"expression": "1"}),))
    cut = msgspec.structs.replace(cut, extra={TRUNCATED: True})
    steps = [
        *(assistant_message(calls=(unknown,)), tool_result(unknown, "no such tool", is_error=True)),
        *(assistant_message(calls=(broken,)), tool_result(broken, "not JSON", is_error=True)),
        *(cut, tool_result(cut.tool_calls[0], "1")),
    ]
    messages, loss = taught_messages(with_messages(*steps, *made.messages[2:]))
    assert [place for place, message in enumerate(messages) if message.role == "assistant" and not loss[place]] == [
        *(2, 4, 6)
    ]
    assert messages[4].tool_calls == (broken,)


def test_a_salvaged_answer_replaces_a_call_that_was_never_answered():
    call = ToolCall.of("x", "calculator", {"expression": "1"})
    made = clean_trajectory()
    steps = [*made.messages[2:-1], assistant_message("once more", calls=(call,))]
    messages, loss = taught_messages(with_messages(*steps, salvaged=True, end=TrajectoryEnd.MAX_STEPS))
    assert messages[-1].text == "FINAL_ANSWER: 42"
    assert all(call not in message.tool_calls for message in messages)
    assert loss[-1] is True


def test_without_an_answer_nothing_at_the_end_is_taught():
    messages, loss = taught_messages(with_messages(assistant_message("I give up."), final_answer=" "))
    assert messages[-1].text == "I give up."
    assert not any(loss)
    assert not list(training_records([Group(task=TASK, trajectories=(with_messages(final_answer=""),))]))


def test_answers_keep_their_lines_and_lose_their_boxes():
    code = "def f(x):\n    return x < 3"
    assert taught_messages(clean_trajectory(final_answer=code))[0][-1].text == f"FINAL_ANSWER: {code}"
    boxed = clean_trajectory(final_answer="FINAL_ANSWER: \\boxed{\\frac{1}{2}}<|im_end|>")
    assert taught_messages(boxed)[0][-1].text == "FINAL_ANSWER: \\frac{1}{2}"
