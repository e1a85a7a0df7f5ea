import asyncio

import pytest

from firstchair.chat.messages import assistant_message, text_message
from firstchair.core.errors import DataError
from firstchair.data.dagger_records import lesson_records, new_records, replay_slice
from firstchair.data.sft import SftRecord, read_sft, write_sft
from firstchair.rollout.dagger import DaggerPlan, run_dagger
from firstchair.rollout.dagger_teacher import DaggerTeacher
from firstchair.rollout.desk.environment import DeskEnvironment
from firstchair.rollout.desk.tasks import make_tasks
from firstchair.rollout.desk.teacher import Teacher
from firstchair.rollout.teacher_policy import TeacherPolicy


@pytest.fixture(scope="module")
def records():
    learner, teacher = TeacherPolicy(Teacher(mistake_rate=0.4, seed=5)), DaggerTeacher(TeacherPolicy(Teacher()))
    plan = DaggerPlan(beta=0.1, seed=0)
    episodes = asyncio.run(run_dagger(DeskEnvironment, make_tasks(4, 31), learner, teacher, plan))
    return [
        record
        for episode in episodes
        for record in lesson_records(episode, round_number=1, policy="me", teacher="expert")
    ]


def test_a_record_says_why_it_is_there_and_by_whom(records):
    assert {record.meta["why"] for record in records} == {"derailed", "recovery", "agreed"}
    assert len({record.id for record in records}) == len(records)
    for record in records:
        assert record.meta["agreed"] is (record.meta["why"] == "agreed")
        assert (record.meta["policy"], record.meta["teacher"], record.meta["round"]) == ("me", "expert", 1)
        assert (record.meta["derailed_at"] is None) is record.meta["agreed"]
        assert record.meta["n_trained_spans"] == record.trained_spans > 0


def test_the_loss_is_on_the_teachers_actions_alone(records):
    (derailed, *_) = [record for record in records if record.meta["why"] == "derailed"]
    assert derailed.loss == (*(False for _ in derailed.messages[:-1]), True)
    recovery = [record for record in records if record.meta["why"] == "recovery"]
    for record in recovery:
        # The mistake is in the context, before everything that is trained.
        first = record.loss.index(True)
        assert any(message.role == "assistant" for message in record.messages[:first])


def test_records_survive_their_file(records, tmp_path):
    write_sft(tmp_path / "records.jsonl", records)
    assert list(read_sft(tmp_path / "records.jsonl")) == records


def test_what_was_taught_before_is_left_out(records):
    seen: set[str] = set()
    first = list(new_records(records, seen))
    assert first
    assert list(new_records(records, seen)) == []
    renamed = SftRecord(id="other", messages=first[0].messages, loss=first[0].loss)
    assert list(new_records([renamed], seen)) == []
    otherwise = SftRecord(id="other", messages=first[0].messages, loss=tuple(False for _ in first[0].loss))
    assert list(new_records([otherwise], seen)) == [otherwise]


def corpus(path, count):
    messages = [(text_message("user", f"say {number}"), assistant_message(f"{number}!")) for number in range(count)]
    write_sft(path, (SftRecord(id=f"r{n}", messages=said, loss=(False, True)) for n, said in enumerate(messages)))
    return path


@pytest.mark.parametrize(("share", "wanted"), [(0.0, 0), (0.25, 10), (0.5, 30), (0.6, 45), (0.99, 50)])
def test_the_replayed_share_is_one_of_all_records(tmp_path, share, wanted):
    path = corpus(tmp_path / "train.jsonl", 50)
    found = replay_slice(path, lessons=30, share=share, seed=1)
    assert len({record.id for record in found}) == len(found) == wanted


def test_the_slice_is_random_and_repeats(tmp_path):
    path = corpus(tmp_path / "train.jsonl", 50)
    one, same, other = (
        [record.id for record in replay_slice(path, lessons=10, share=0.5, seed=seed)] for seed in (1, 1, 2)
    )
    assert one == same != other
    assert one != [f"r{number}" for number in range(10)]


def test_a_bad_line_of_the_replayed_file_is_named(tmp_path):
    path = corpus(tmp_path / "train.jsonl", 3)
    path.write_text(path.read_text() + "{}\n")
    with pytest.raises(DataError, match=r"train\.jsonl:4"):
        replay_slice(path, lessons=30, share=0.5, seed=1)
