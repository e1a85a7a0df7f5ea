from __future__ import annotations

import datetime
import json
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from firstchair.core.errors import ConfigError, DataError
from firstchair.core.jsonl import SkipBad
from firstchair.data.near_duplicates import Avoid
from firstchair.data.orchestration.rejection import Shard
from firstchair.data.similarity import shingles
from firstchair.data.task_sources.catalogue import open_streams
from firstchair.data.task_sources.pull import PullOptions, PullReport, pull
from firstchair.data.task_sources.rows import Region, parquet_rows
from firstchair.data.task_sources.task_file import read_tasks, write_tasks


def problem(seed: str) -> str:
    """Problems that have hardly three words in a row in common."""
    return " ".join(f"w{word}" for word in random.Random(seed).sample(range(1000), 8))


def thought(number: int, domain: str) -> dict[str, Any]:
    wrote = {"human": problem(f"{domain}{number}"), "gpt": rf"<think>hm</think>\boxed{{{number}}}"}
    turns = [{"from": role, "value": text} for role, text in wrote.items()]
    return {"conversations": turns, "domain": domain, "source": "s", "difficulty": None, "unused": "x" * 50}


def rows_of(**counts: int) -> list[dict[str, Any]]:
    return [thought(number, domain) for domain, count in counts.items() for number in range(count)]


def parquet(path: Path, rows: list[dict[str, Any]], group: int = 7) -> Path:
    pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=group)
    return path


def jsonl(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


def pulled(*sources: object, avoid: Avoid | None = None, allowed: int = 0, **options: Any):
    skip, report = SkipBad(allowed), PullReport()
    streams = [stream for source in sources for stream in open_streams(str(source), skip)]
    tasks = list(pull(streams, PullOptions(**options), report, skip=skip, avoid=avoid))
    return tasks, report, skip


SORTED = rows_of(code=20, math=40, science=10)


@pytest.fixture
def thoughts(tmp_path) -> str:
    directory = tmp_path / "open"
    directory.mkdir()
    parquet(directory / "train-00000.parquet", SORTED[:30])
    parquet(directory / "train-00001.parquet", SORTED[30:])
    return f"open_thoughts3={directory}"


def test_parquet_and_json_lines_give_the_same_tasks(tmp_path, thoughts):
    lines = jsonl(tmp_path / "all.jsonl", SORTED)
    ids = [{task.task_id for task in pulled(source)[0]} for source in (thoughts, f"open_thoughts3={lines}")]
    assert len(ids[0]) == 70
    assert ids[0] == ids[1]


def test_a_region_is_read_without_the_rest(tmp_path):
    path = parquet(tmp_path / "t.parquet", SORTED)
    read: list[int] = []

    class Watched:
        def __init__(self, handle):
            self.handle = handle
            self.closed = False

        def read(self, size=-1):
            data = self.handle.read(size)
            read.append(len(data))
            return data

        def __getattr__(self, name):
            return getattr(self.handle, name)

    def size_of(region: Region | None) -> tuple[int, list[int]]:
        read.clear()
        with path.open("rb") as handle:
            lines = [row.line for row in parquet_rows(Watched(handle), "t", ("conversations", "domain"), region)]
        return sum(read), lines

    whole, _ = size_of(None)
    part, lines = size_of(Region("domain", "science"))
    assert lines == list(range(61, 71))
    assert part < whole


def test_a_pull_takes_from_every_region_and_not_the_first_alone(thoughts):
    tasks, _, _ = pulled(thoughts, limit=9)
    assert [task.domain for task in tasks] == ["code", "math", "science"] * 3


def test_shards_are_disjoint_and_whole_and_each_has_its_part_of_every_domain(thoughts):
    shards = [pulled(thoughts, shard=Shard(number, 4))[0] for number in (1, 2, 3, 4)]
    ids = [task.task_id for tasks in shards for task in tasks]
    assert len(ids) == len(set(ids)) == 70
    for tasks in shards:
        domains = [task.domain for task in tasks]
        assert (domains.count("code"), domains.count("math")) == (5, 10)
        assert domains.count("science") in (2, 3)


def test_a_balanced_pull_takes_a_quarter_of_each_of_four_domains(tmp_path, thoughts):
    general = [
        {
            "question": problem(f"medical{number}"),
            "prev_messages": None,
            "reference_answer": "x",
            "model_answer": "",
            "question_source": "NHSQA",
        }
        for number in range(30)
    ]
    source = f"general_thought={jsonl(tmp_path / 'g.jsonl', general)}"
    four = ("math", "code", "science", "medical")
    tasks, report, _ = pulled(thoughts, source, limit=40, balance=True, domains=four)
    assert {domain: sum(task.domain == domain for task in tasks) for domain in four} == dict.fromkeys(four, 10)
    assert report.short == {}
    tasks, report, _ = pulled(thoughts, source, limit=82, balance=True, domains=four)
    # 82 in four shares: 21, 21, 20, 20; science has 10, and nobody fills its place.
    assert len(tasks) == 21 + 20 + 10 + 20
    assert report.short == {"code": 1, "science": 10}


def test_a_balanced_pull_stops_reading_when_it_has_enough(tmp_path):
    broken = [*SORTED, *["{"] * 3]
    source = f"open_thoughts3={jsonl(tmp_path / 'o.jsonl', broken)}"
    assert len(pulled(source, limit=30, balance=True)[0]) == 30
    with pytest.raises(DataError, match=r"o\.jsonl:71"):
        pulled(source)


def test_shares_need_a_limit_and_domains(tmp_path, thoughts):
    with pytest.raises(ConfigError, match="--limit"):
        pulled(thoughts, balance=True)
    own = jsonl(tmp_path / "own.jsonl", [{"problem": "Why?"}])
    with pytest.raises(ConfigError, match="--domain"):
        pulled(own, balance=True, limit=4)


def test_duplicates_are_left_out_across_sources_and_counted(tmp_path, thoughts):
    again = jsonl(tmp_path / "again.jsonl", [thought(3, "math"), thought(99, "math"), thought(99, "math")])
    tasks, report, _ = pulled(f"open_thoughts3={again}", thoughts)
    assert len(tasks) == 71
    assert report.left_out == {"duplicate": 2}
    assert report.first == {"duplicate": f"{again}:3"}
    assert report.tasks == {("OpenThoughts3-1.2M", d): n for d, n in (("code", 20), ("math", 41), ("science", 10))}


def test_the_second_answer_to_a_problem_counts_when_the_first_is_unusable(tmp_path):
    cut = thought(1, "math")
    cut["conversations"][1]["value"] = "<think>still thinking"
    path = jsonl(tmp_path / "o.jsonl", [cut, thought(1, "math")])
    tasks, report, _ = pulled(f"open_thoughts3={path}")
    assert [task.gold_answer for task in tasks] == ["1"]
    assert report.first == {"its reasoning never ends": f"{path}:1"}


def test_bad_records_are_errors_with_their_place_or_passed_over_and_counted(tmp_path):
    path = jsonl(tmp_path / "o.jsonl", [thought(1, "math"), "{", {"domain": 5}, thought(2, "math")])
    with pytest.raises(DataError, match=r"o\.jsonl:2: not strict JSON"):
        pulled(f"open_thoughts3={path}")
    tasks, _, skip = pulled(f"open_thoughts3={path}", allowed=2)
    assert len(tasks) == 2
    assert [(error.line, error.field) for error in skip.skipped] == [(2, None), (3, "domain")]


def test_a_bad_row_of_a_parquet_file_is_named_by_its_number(tmp_path):
    rows = [{"question": "Why?", "reference_answer": "x", "question_source": "s"}] * 3
    path = parquet(tmp_path / "g.parquet", rows)
    with pytest.raises(DataError, match=r"g\.parquet:1: model_answer: missing"):
        pulled(f"general_thought={path}")
    path.write_bytes(b"PAR1 and then nothing")
    with pytest.raises(DataError, match="not a readable Parquet file"):
        pulled(f"general_thought={path}")


def test_tasks_that_resemble_what_is_to_be_avoided_are_left_out_with_the_pair(thoughts):
    other = f"please {problem('math7')}"
    tasks, report, _ = pulled(thoughts, avoid=Avoid([("held", shingles(other))]))
    assert len(tasks) == 69
    assert report.left_out == {"resembles what is to be avoided": 1}
    assert [pair.left for pair in report.avoided] == ["held"]


def test_types_of_parquet_that_json_lacks_become_text(tmp_path):
    when = datetime.datetime(2025, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)
    rows = [{"when": when, "n": 1, "raw": b"ab", "list": [datetime.date(2025, 1, 2)]}]
    path = parquet(tmp_path / "t.parquet", rows)
    with path.open("rb") as handle:
        (row,) = parquet_rows(handle, "t")
    assert row.fields == {"when": "2025-01-02T03:04:05+00:00", "n": 1, "raw": "ab", "list": ["2025-01-02"]}


def test_own_tasks_are_written_and_read_back_in_either_format(tmp_path):
    rows = [{"problem": "Why?", "domain": "misc", "meta": {"a": 1}}, {"problem": "Who?", "choices": ["x", "y"]}]
    tasks = list(read_tasks(jsonl(tmp_path / "own.jsonl", rows)))
    write_tasks(tmp_path / "again.jsonl", tasks)
    assert list(read_tasks(tmp_path / "again.jsonl")) == tasks
    assert list(read_tasks(tmp_path / "again.jsonl", {tasks[1].task_id})) == tasks[1:]
    plain = [{"problem": "Why?", "gold_answer": "x", "tests": ["pass"]}, {"problem": "Who?", "gold_answer": None}]
    read = list(read_tasks(parquet(tmp_path / "own.parquet", plain)))
    assert [(task.gold_answer, task.tests) for task in read] == [("x", ("pass",)), (None, ())]


def test_an_id_that_comes_twice_is_named(tmp_path):
    path = jsonl(tmp_path / "own.jsonl", [{"problem": "Why?", "task_id": "a"}, {"problem": "Who?", "task_id": "a"}])
    with pytest.raises(DataError, match=r"own\.jsonl:2: task_id: 'a' comes twice"):
        list(read_tasks(path))
    with pytest.raises(DataError, match=r"own\.jsonl:2: task_id: 'a' is the id of another problem"):
        pulled(path)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("open_thoughts=x", "no source 'open_thoughts'; expected one of general_thought"),
        ("nowhere.jsonl", "nothing there"),
    ],
)
def test_an_unknown_source_names_the_known(text, said):
    with pytest.raises(ConfigError, match=said):
        open_streams(text, SkipBad())


def test_a_file_of_tasks_may_have_any_name_and_no_source_is_meant_by_it(tmp_path):
    path = jsonl(tmp_path / "lr=0.1.jsonl", [{"task_id": "a", "problem": "x"}])
    assert [task.task_id for task in read_tasks(path)] == ["a"]
    with pytest.raises(ConfigError, match="general_thought: no such file; check the path"):
        list(read_tasks(Path("general_thought")))


def test_a_directory_without_rows_is_an_error(tmp_path):
    (tmp_path / "notes.txt").write_text("x")
    for path in (tmp_path, tmp_path / "notes.txt"):
        with pytest.raises(DataError, match=r"\.jsonl"):
            open_streams(f"tool_scale={path}", SkipBad())
