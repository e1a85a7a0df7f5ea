"""A domain by an author: stages read strictly and repaired once, all that was written kept, a broken run resumed."""

import asyncio
import json

import pytest
from tests.rollout.synthetic.kennel import MULTI, READ, REFUSAL, ROWS, TABLES, TOOLS

from firstchair.chat.messages import text_message
from firstchair.core.errors import ConfigError, RunFailed, UpstreamError
from firstchair.engines.base import ErrorKind, Generation, Stop
from firstchair.engines.scripted import ScriptedEngine
from firstchair.rollout.synthetic.author import Author, AuthorFailed, AuthorLog, Stage, Why, read_log, schema_of
from firstchair.rollout.synthetic.domain import read_domain
from firstchair.rollout.synthetic.filters import Solver
from firstchair.rollout.synthetic.making import make_domain
from firstchair.rollout.synthetic.players import Refuser
from firstchair.rollout.synthetic.stages import Brief, RowsDraft, TasksDraft
from firstchair.rollout.teacher_policy import TeacherPolicy


def number(value):
    return ["too few"] if len(value.rows) < 2 else []


STAGE = Stage("rows x", (text_message("user", "Write rows."),), RowsDraft, number)
GOOD = json.dumps({"rows": [[1], [2]]})


def written(*replies, stage=STAGE, log=None):
    engine = ScriptedEngine(list(replies))
    author = Author(engine, log or AuthorLog())
    return author, engine, lambda: asyncio.run(author.write(stage))


@pytest.mark.parametrize(
    ("first", "why", "words"),
    [
        ("", "empty", "empty"),
        ("Here you are: {}", "bad_json", "not one JSON value"),
        ("```json\n" + GOOD + "\n```", "bad_json", "not one JSON value"),
        ('{"rows": [[1]], "rows": [[1]]}', "bad_json", "stands twice"),
        ('{"rows": [[1]], "more": 1}', "bad_schema", "unknown field `more`"),
        ('{"rows": [[{}]]}', "bad_schema", "at `$.rows[0][0]`"),
        ('{"rows": [[1]]}', "invalid", "too few"),
        (Generation("x", Stop.LENGTH, text='{"rows": ['), "truncated", "length limit"),
        (Generation("x", Stop.REFUSAL, text="I will not."), "refused", "I will not."),
    ],
)
def test_what_cannot_be_used_is_repaired_once_with_its_problems(first, why, words):
    author, engine, write = written(first, GOOD)
    assert write().rows == ((1,), (2,))
    assert author.repaired == 1
    question = engine.seen[1].messages[-1].text
    assert why in question
    assert words in question
    assert [row["why"] for row in author.log.rows] == [why, None]
    author, engine, write = written(first, first)
    with pytest.raises(AuthorFailed, match=f"author: rows x: {why} after one repair") as caught:
        write()
    assert caught.value.why is Why(why)
    assert len(engine.seen) == len(author.log.rows) == 2


def test_a_tolerant_stage_takes_what_can_be_read():
    stage = Stage("rows x", STAGE.messages, RowsDraft, number, tolerant=True)
    few = '{"rows": [[1]]}'
    assert written(few, few, stage=stage)[2]().rows == ((1,),)
    assert written(few, "nonsense", stage=stage)[2]().rows == ((1,),)
    with pytest.raises(AuthorFailed):
        written("nonsense", "nonsense", stage=stage)[2]()


def test_a_broken_engine_is_no_reply_and_what_was_written_is_not_asked_again(tmp_path):
    path = tmp_path / "author.jsonl"
    lost = Generation("x", Stop.ERROR, error="connection: reset", error_kind=ErrorKind.CONNECTION)
    _, _, write = written("nonsense", lost, log=AuthorLog(path))
    with pytest.raises(UpstreamError, match="rows x:1: connection: reset; run again") as caught:
        write()
    assert caught.value.retryable
    with path.open("a") as file:
        file.write('{"asked": "half a li')
    _, engine, write = written(GOOD, log=AuthorLog(path))
    assert write().rows == ((1,), (2,))
    assert [request.request_id for request in engine.seen] == ["rows x:1"]
    _, engine, write = written(log=AuthorLog(path))
    assert write().rows == ((1,), (2,))
    assert engine.seen == []
    assert [row["text"] for row in read_log(path)] == ["nonsense", GOOD]


def test_a_schema_is_an_object_that_allows_nothing_else():
    schema = schema_of(TasksDraft)
    assert (schema["type"], schema["additionalProperties"]) == ("object", False)


MAX = [{"tool": "find_dog", "arguments": {"name": "Max"}}]
BROKEN = {**READ, "turns": [{**READ["turns"][0], "user": "And Max?", "calls": MAX, "reply": "I do not know."}]}
BRIEF = Brief("kennel", "A kennel for dogs.", tasks=5, batch=2)


def kennel_author(lose=""):
    """Writes the kennel; the second batch of tasks has a broken one, the third is no JSON, both repairs too."""

    def reply(request):
        stage = request.request_id.rpartition(":")[0]
        if stage == lose:
            raise ConnectionError("lost")
        if stage == "tables":
            return json.dumps({"title": "the kennel", "today": "2026-02-01", "rules": ["Be kind."], "tables": TABLES})
        if stage.startswith("rows"):
            return json.dumps({"rows": ROWS[stage.split()[1]]})
        if stage == "tools":
            return json.dumps({"tools": TOOLS})
        return {"0": json.dumps({"tasks": [READ, MULTI]}), "1": json.dumps({"tasks": [REFUSAL, BROKEN]}), "2": "no"}[
            stage.split()[1]
        ]

    return ScriptedEngine(reply, model="kennel-author")


def test_a_domain_is_made_kept_and_resumed(tmp_path):
    with pytest.raises(UpstreamError, match="tools:0"):
        asyncio.run(make_domain(BRIEF, kennel_author(lose="tools"), tmp_path))
    engine, seen = kennel_author(), []
    report = asyncio.run(make_domain(BRIEF, engine, tmp_path, progress=seen.append))
    assert [request.request_id for request in engine.seen] == [
        "tools:0",
        "tasks 0:0",
        "tasks 1:0",
        "tasks 1:1",
        "tasks 2:0",
        "tasks 2:1",
    ]
    assert seen[:4] == ["tables", "rows dogs", "rows stays", "rows bills"]
    assert (report.written, report.kept, report.drops, report.repaired) == (4, 3, {"invalid": 1}, 2)
    assert list(report.failed_batches) == ["tasks 2"]
    assert report.replies == 10
    domain = read_domain(tmp_path / "domain.json")
    assert [task.depth for task in domain.tasks] == ["read", "multi", "refusal"]
    assert json.loads((tmp_path / "report.json").read_text())["author"] == "kennel-author"
    again = kennel_author()
    assert asyncio.run(make_domain(BRIEF, again, tmp_path)).kept == 3
    assert again.seen == []
    with pytest.raises(ConfigError, match="holds the domain kennel, of another description"):
        asyncio.run(make_domain(Brief("kennel", "A kennel for cats."), again, tmp_path))
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.txt").write_text("mine")
    with pytest.raises(ConfigError, match=r"thesis is a directory with other things in it .*; choose another --out"):
        asyncio.run(make_domain(BRIEF, again, tmp_path / "thesis"))
    assert [path.name for path in (tmp_path / "thesis").iterdir()] == ["chapter.txt"]


def test_a_domain_without_tasks_is_an_error_and_a_solver_is_not_asked_twice(tmp_path):
    class Counting(TeacherPolicy):
        asked = 0

        async def act(self, requests):
            Counting.asked += len(requests)
            return await super().act(requests)

    policy = Counting(Refuser(), name="refuser")
    asked = []
    for trials in (2, 2, 1):  # another number of trials is another question
        with pytest.raises(RunFailed, match=r"none of 4 tasks was kept: \{'invalid': 1, 'never_solved': 3\}"):
            asyncio.run(make_domain(BRIEF, kennel_author(), tmp_path, solver=Solver(policy, trials=trials)))
        asked.append(Counting.asked)
    assert asked == [8, 8, 12]  # three tasks with four turns in all
    assert not (tmp_path / "domain.json").exists()
