import json
import re
from pathlib import Path

import pytest
from typer.main import get_command

from firstchair.cli.tasks import app
from firstchair.data.task_sources.catalogue import SOURCES
from firstchair.data.task_sources.task_file import read_tasks


def row(number: int, source: str = "Numina") -> dict[str, object]:
    words = " ".join(f"{source}{number}w{place}" for place in range(6))
    return {
        "question": f"{words}?",
        "prev_messages": None,
        "reference_answer": str(number),
        "model_answer": None,
        "question_source": source,
    }


@pytest.fixture
def thoughts(tmp_path) -> Path:
    rows = [row(number, source) for source in ("Numina", "TACO", "NHSQA", "OASST") for number in range(20)]
    rows += [{**row(0), "question": "Where?", "reference_answer": None}, row(0)]
    path = tmp_path / "thoughts.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in rows))
    return path


def test_from_a_source_to_a_split(run, thoughts, tmp_path):
    tasks, split = tmp_path / "tasks.jsonl", tmp_path / "split"
    code, out, _ = run("tasks", "import", f"general_thought={thoughts}", "--out", tasks)
    assert code == 0
    assert "80 tasks" in out
    assert f"left out, no answer: 1 (first {thoughts}:81)" in out
    assert f"left out, duplicate: 1 (first {thoughts}:82)" in out

    code, out, _ = run("tasks", "split", tasks, "--out", split, "--overfit", 5, "--json")
    assert code == 0
    counts = json.loads(out)["counts"]
    assert counts["holdout"]["strata"] == {"chat": 3, "code": 3, "math": 3, "medical": 3}
    assert (counts["train"]["sessions"], counts["overfit"]["sessions"]) == (68, 5)

    code, out, _ = run("tasks", "stats", tasks, "--split", split / "holdout", "--json")
    assert code == 0
    found = json.loads(out)
    assert found["tasks"] == 12
    assert {(one["domain"], one["way"]) for one in found["rows"]} == {
        ("chat", "text"),
        ("code", "text"),
        ("math", "math"),
        ("medical", "text"),
    }

    first = next(read_tasks(tasks))
    code, out, _ = run("tasks", "show", tasks, "--domain", "math", "--limit", 3)
    assert code == 0
    assert out.count("\n") in (5, 6)
    code, out, _ = run("tasks", "show", tasks, "--id", first.task_id)
    assert f"problem: {first.problem}" in out
    code, out, _ = run("tasks", "stats", tasks)
    assert "80 tasks" in out
    code, out, _ = run("tasks", "show", tasks, "--id", first.task_id, "--json")
    assert json.loads(out)["gold_answer"] == "0"


def test_the_help_names_every_domain_of_the_named_sources():
    (option,) = (one for one in get_command(app).commands["import"].params if "--domain" in one.opts)
    named = set(re.findall(r"\w+", option.help))
    assert {domain for source in SOURCES.values() for domain in source.domains} <= named


def test_a_balanced_import_in_json_and_without_what_is_held_out(run, thoughts, tmp_path):
    held = tmp_path / "held.jsonl"
    held.write_text(json.dumps({"problem": row(0)["question"]}) + "\n")
    arguments = ("--limit", 20, "--balance", "--domain", "math", "--domain", "code", "--avoid", held, "--json")
    code, out, _ = run("tasks", "import", f"general_thought={thoughts}", "--out", tmp_path / "t.jsonl", *arguments)
    assert code == 0
    found = json.loads(out)
    assert {one["domain"]: one["tasks"] for one in found["by"]} == {"math": 10, "code": 10}
    assert found["avoided"][0]["similarity"] == 1.0
    assert found["short"] == {}


def test_an_audit_compares_files_of_tasks(run, tmp_path):
    for name, numbers in (("a", (1, 2)), ("b", (2, 3))):
        rows = [{"problem": row(number)["question"], "task_id": f"{name}{number}"} for number in numbers]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows))
    code, out, _ = run("data", "audit", tmp_path / "a.jsonl", tmp_path / "b.jsonl", "--json")
    assert code == 1
    assert [(pair["left"], pair["right"]) for pair in json.loads(out)["pairs"]] == [("a2", "b2")]


def test_bad_records_are_listed_beside(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.jsonl").write_text('{"problem": "Why?"}\n{"problem": 5}\n{\n')
    code, _, err = run("tasks", "import", "own.jsonl", "--out", "tasks.jsonl")
    assert code == 2
    assert "own.jsonl:2: problem: found int; expected text" in err
    assert not (tmp_path / "tasks.jsonl").exists()
    code, _, err = run("tasks", "import", "own.jsonl", "--out", "tasks.jsonl", "--skip-bad", 2)
    assert code == 0
    assert "2 bad lines passed over, see tasks.jsonl.skipped.jsonl" in err
    listed = [json.loads(line) for line in (tmp_path / "tasks.jsonl.skipped.jsonl").read_text().splitlines()]
    assert [(one["path"], one["line"], one["field"]) for one in listed] == [
        ("own.jsonl", 2, "problem"),
        ("own.jsonl", 3, None),
    ]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("import", "nowhere", "--out", "t"), "expected a file of tasks, or one of general_thought"),
        (("import", "{thoughts}", "--out", "t", "--shard", "3/2"), "expected K/N with K from 1 to N"),
        (
            ("import", "general_thought={thoughts}", "--out", "t", "--domain", "law"),
            "--domain law: these sources have none; they have chat, code, math, medical, misc",
        ),
        (("import", "{own}", "--out", "t", "--domain", "law"), "no task in it: of domain misc (1, first "),
        (("import", "general_thought={thoughts}", "--out", "t", "--balance"), "--balance needs --limit"),
        (("show", "{own}", "--domain", "math"), "no task of domain math"),
        (("show", "{own}", "--id", "x"), "no task of id 'x'"),
        (("split", "{own}", "--out", "s"), "would be empty: 1 groups for 2 parts; give more sessions or tasks"),
        (("stats", "{empty}"), "empty.jsonl: no task in it; expected one a row"),
        (("stats", "{own}", "--split", "none/train"), "make one: firstchair data split, or tasks split"),
    ],
)
def test_what_a_user_gets_wrong_is_said(run, thoughts, tmp_path, monkeypatch, arguments, said):
    monkeypatch.chdir(tmp_path)
    own = tmp_path / "own.jsonl"
    own.write_text('{"problem": "Why?"}\n')
    (tmp_path / "empty.jsonl").write_text("")
    code, _, err = run("tasks", *(one.format(thoughts=thoughts, own=own, empty="empty.jsonl") for one in arguments))
    assert code == 2
    assert said in err
    assert not (tmp_path / "t").exists()
