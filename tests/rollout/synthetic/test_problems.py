"""What is wrong with a domain or a task is named by kind and place."""

import copy

import msgspec
import pytest
from tests.rollout.synthetic.kennel import MULTI, READ, REFUSAL, ROWS, TABLES, TOOLS, kennel

from firstchair.core.errors import DataError
from firstchair.rollout.synthetic.domain import Table, ToolSpec, domain_text, parse_domain
from firstchair.rollout.synthetic.problems import (
    date_problems,
    domain_problems,
    row_problems,
    table_problems,
    task_problems,
    tool_problems,
)


def tables(change=lambda found: None):
    found = copy.deepcopy(TABLES)
    change(found)
    return msgspec.convert(found, tuple[Table, ...])


def tool(**changes):
    return msgspec.convert({**TOOLS[1], **changes}, ToolSpec)


def shown(faults):
    return [str(fault) for fault in faults]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t: t.append(t[0]), "tables: name: dogs stands there 2 times"),
        (lambda t: t[0]["columns"].append(t[0]["columns"][0]), "table dogs: name: id stands there 2 times"),
        (lambda t: t[0].update(key=["nobody"]), "table dogs: key: key nobody is no column of it"),
        (lambda t: t[0].update(key=["name"], generated=True), "table dogs: key: a generated key is one integer"),
        (lambda t: t[1]["columns"][1].update(references="cats.id"), "dog_id: reference: found 'cats.id'"),
        (lambda t: t[1]["columns"][1].update(references="dogs.name"), "dog_id: reference: found 'dogs.name'"),
        (lambda t: t[0]["columns"][0].update(values=["1"]), "column id: name: values are for columns of type text"),
        (lambda t: t[0]["columns"][3].update(references="stays.id"), "reference: the references of"),
        (lambda t: t[0].update(name="sqlite_x"), "names that begin with sqlite"),
    ],
)
def test_tables(change, words):
    assert words in "\n".join(shown(table_problems(tables(change))))


@pytest.mark.parametrize(
    ("table", "row", "words"),
    [
        ("dogs", [1, "Rex", "small", None], "UNIQUE constraint failed: dogs.id"),
        ("dogs", [99, "Rex", "giant", None], "CHECK constraint failed"),
        ("dogs", [99, 7, "small", None], None),  # SQLite writes a number into a text column as text
        ("dogs", ["x", "Rex", "small", None], "datatype mismatch"),
        ("bills", [99, 1, "x"], "cannot store TEXT value in INTEGER column"),
        ("dogs", [99, None, "small", None], "NOT NULL constraint failed"),
        ("dogs", [99, "Rex", "small"], "rows [20] have not 4 values"),
        ("stays", [99, 99, "2026-01-01", None], "FOREIGN KEY constraint failed"),
        ("cats", [1], "cats: name: no such table"),
        (None, None, "dogs: rows: 20 rows; expected 30 to 60"),
    ],
)
def test_rows(table, row, words):
    rows = copy.deepcopy(ROWS)
    if table:
        rows.setdefault(table, []).append(row)
    found = "\n".join(shown(row_problems(tables(), rows, least=30 if table is None else 1, most=60)))
    assert (words or "") in found
    assert bool(found) == (words is not None)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"reads": "SELECT id FROM nobody"}, "sql: 'SELECT id FROM nobody': no such table: nobody"),
        ({"reads": "DELETE FROM stays"}, "expected a SELECT"),
        ({"writes": ["SELECT 1"]}, "expected an INSERT, UPDATE or DELETE"),
        ({"writes": ["DROP TABLE dogs"]}, "expected an INSERT"),
        ({"reads": "SELECT date('now')"}, "not authorized to use function: date"),
        ({"reads": "SELECT id FROM stays WHERE id = :other"}, "other"),
        ({"conditions": [{"sql": "SELECT 1", "otherwise": "no {cat}"}]}, "names {cat}, which is no parameter"),
        ({"parameters": [{"name": "today", "type": "text"}]}, "today stands there 2 times"),
        ({"parameters": [*TOOLS[1]["parameters"], {"name": "x", "type": "text"}]}, "parameter x is used by no"),
        ({"parameters": [], "conditions": [], "writes": [], "reads": ""}, "result: it neither reads nor writes"),
    ],
)
def test_tools(changes, words):
    assert words in "\n".join(shown(tool_problems(tables(), [tool(**changes)])))


def turn(task, number=0, **changes):
    made = copy.deepcopy(task)
    made["turns"][number].update(changes)
    return made


LATE = {"tool": "book", "arguments": {"dog_id": 1, "first": "2025-01-01"}}


@pytest.mark.parametrize(
    ("task", "words"),
    [
        (turn(READ, calls=[{"tool": "fly"}]), "turn 0: name: no tool fly"),
        (turn(READ, calls=[LATE]), "depth: read with 0 calls that read and 1 that write"),
        ({**MULTI, "depth": "write"}, "depth: write with 1 calls that read and 4 that write"),
        ({**REFUSAL, "depth": "multi"}, "depth: multi with 1"),
        (turn({**MULTI, "depth": "multi"}, calls=[*MULTI["turns"][0]["calls"], LATE]), "golden: 2025-01-01 is over"),
        (turn(READ, convey=[]), "it changes nothing and tells nothing that must be looked up"),
        (turn(READ, reply="Rex weighs 11.5 kg. All right?"), "reply: the reply asks something"),
        (turn(READ, reply="Rex is heavy."), "convey: the reply says none of ['11.5']"),
        (turn(READ, user="Does Rex weigh 11.5 kg?"), "the user says one of ['11.5'] already"),
        (
            turn(MULTI, facts=[*MULTI["turns"][0]["facts"]] * 2),
            "facts: a question about 'name' asks for facts [0, 1]",
        ),
        (
            {**MULTI, "assertions": [{"says": "x", "sql": "SELECT 1 FROM dogs WHERE id = 99"}]},
            "it does not hold after",
        ),
        ({**MULTI, "assertions": [{"says": "x", "sql": "SELECT 1"}]}, "all assertions hold before anything is done"),
        ({**MULTI, "assertions": [{"says": "x", "sql": "PRAGMA x"}]}, "assertion 0: assertion: 'PRAGMA x'"),
    ],
)
def test_tasks(task, words):
    opened = kennel(task)
    assert words in "\n".join(shown(task_problems(opened, opened.domain.tasks[0])))


def test_what_is_sound_has_no_problems_and_reads_back():
    opened = kennel(READ, MULTI, REFUSAL)
    assert domain_problems(opened.domain) == []
    assert [task_problems(opened, task) for task in opened.domain.tasks] == [[], [], []]
    text = domain_text(opened.domain)
    assert parse_domain(text, source="x") == opened.domain
    assert domain_text(parse_domain(text, source="x")) == text
    assert date_problems("2026-02-31")[0].kind == "date"


def test_a_file_that_is_no_domain_names_the_field():
    text = domain_text(kennel().domain)
    for broken, words in {
        text.replace('"title"', '"titel"'): "kennel.json: Object contains unknown field `titel`",
        text.replace('"integer"', '"blob"'): r"Invalid enum value 'blob' - at `\$.tables",
        text[:-5]: "kennel.json: ",
    }.items():
        with pytest.raises(DataError, match=words):
            parse_domain(broken, source="kennel.json")
    with pytest.raises(DataError, match="kennel: tool book: sql: 'SELECT 1 FROM cats': no such table"):
        kennel(tools=[{**TOOLS[1], "reads": "SELECT 1 FROM cats"}])
    rows = {**ROWS, "dogs": [[1, "Rex", "giant", None]]}
    with pytest.raises(DataError, match="kennel: rows: dogs: row 0"):
        kennel(rows=rows)
