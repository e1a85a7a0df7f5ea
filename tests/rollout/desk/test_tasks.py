import msgspec
import pytest

from firstchair.core.errors import ConfigError
from firstchair.rollout.desk.definitions import desk_policy
from firstchair.rollout.desk.parsing import candidates, parse
from firstchair.rollout.desk.phrases import ROW_OF, TEMPLATES
from firstchair.rollout.desk.plans import PLANS
from firstchair.rollout.desk.routing import REASONS
from firstchair.rollout.desk.task import DeskTask
from firstchair.rollout.desk.tasks import DRAWN, LEADS, make_tasks, rows_of
from firstchair.rollout.desk.words import DISTRACTORS


def test_equal_seeds_give_equal_bytes_and_other_seeds_other_tasks():
    first, again, other = (msgspec.json.encode(make_tasks(50, seed)) for seed in (4, 4, 5))
    assert first == again
    assert first != other
    assert make_tasks(50, 4)[:10] == make_tasks(10, 4)


def test_thousands_of_tasks_are_all_different():
    requests = {tuple(turn.user for turn in task.turns) for task in make_tasks(2000, 1)}
    assert len(requests) == 2000


def test_a_task_survives_json():
    for task in make_tasks(40, 2):
        assert msgspec.json.decode(msgspec.json.encode(task), type=DeskTask) == task


def test_every_row_of_the_policy_is_exercised_and_no_other():
    counts = rows_of(make_tasks(300, 3))
    assert counts.keys() == {row.id for row in desk_policy().rows}
    assert min(counts.values()) >= 3
    assert set(LEADS) == set(DRAWN)


def test_tasks_are_several_turns_long_and_short_in_words():
    tasks = make_tasks(500, 6)
    turns = [turn for task in tasks for turn in task.turns]
    assert all(3 <= len(task.turns) <= 7 for task in tasks)
    assert max(len(turn.user.split()) for turn in turns) <= 25


def test_every_intent_has_a_plan_a_row_and_eight_wordings():
    assert PLANS.keys() == TEMPLATES.keys() == ROW_OF.keys()
    assert all(len(set(templates)) >= 8 for templates in TEMPLATES.values())
    assert {row.id for row in desk_policy().rows} <= REASONS.keys()


def test_a_request_is_read_the_way_it_was_meant():
    for task in make_tasks(500, 7):
        for turn in task.turns:
            read = {ROW_OF[intent.name] for intent in parse(turn.user)}
            meant = {"read_file": "ask_file", "pdf_question": "ask_file"}.get(turn.rows[-1], turn.rows[-1])
            assert meant in read, turn.user
            assert len(read) == 1 + ("preference" in turn.rows and turn.rows[-1] != "preference"), turn.user


def test_no_distractor_is_a_request():
    assert [aside for aside in DISTRACTORS if candidates(aside)] == []


def test_foreign_text_is_read_as_nothing_in_bounded_time():
    assert parse("a-" * 100_000) == ()
    assert parse("Put " + "into a new file " * 5000) == ()
    assert parse("") == ()


def test_a_negative_number_of_tasks_is_refused():
    with pytest.raises(ConfigError, match="n: found -1"):
        make_tasks(-1, 0)
