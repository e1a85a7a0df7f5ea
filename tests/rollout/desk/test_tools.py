import pytest

from firstchair.catalog.policy import lint_policy
from firstchair.rollout.desk.definitions import desk_catalog, desk_policy, desk_tools, tool_fields
from firstchair.rollout.desk.skills import SCRIPTS
from firstchair.rollout.desk.tools import TOOLS, execute
from firstchair.rollout.desk.web import build_web
from firstchair.rollout.desk.world import HEAD, LARGE, Contact, Event, Mail, World, WorldSeed


def world() -> World:
    seed = WorldSeed(
        date="2026-03-04",
        time="09:15",
        web=3,
        files={
            "notes/a.txt": "owner: Ana. code: K1.",
            "p/c.pdf": "owner: Ben. rent: 10.",
            "d/t.csv": "a,1\nb,20",
            "v/x.mp4": "",
        },
        contacts=(Contact("Ana Silva", "ana@harbor.org", "555-0142"),),
        mail=(Mail("Ben Hill", "the door is open"),),
        events=(Event("budget review", "2026-03-05", "10:00", "11:00"),),
    )
    return World.start(seed)


def test_the_catalog_lists_exactly_the_tools_and_skills_that_have_code():
    assert {*TOOLS, "AskUser"} == {tool.name for tool in desk_tools()} == tool_fields().keys()
    assert len(desk_tools()) == 21
    skills = {skill.name: {script.name for script in skill.scripts} for skill in desk_catalog().skills}
    assert skills == {name: set(scripts) for name, scripts in SCRIPTS.items()}


def test_the_policy_has_no_contradictions_and_reaches_every_tool_and_skill():
    catalog = desk_catalog()
    tools, skills = [tool.name for tool in catalog.tools], [skill.name for skill in catalog.skills]
    assert lint_policy(desk_policy(), tools=tools, skills=skills) == ()


@pytest.mark.parametrize(
    ("tool", "arguments", "text"),
    [
        ("Read", {"path": "./notes//a.txt"}, "owner: Ana. code: K1."),
        ("Read", {"path": "p/c.pdf"}, "error: binary file: p/c.pdf"),
        ("Read", {"path": "notes"}, "error: notes is a folder"),
        ("Read", {"path": "../x"}, "error: bad argument: ../x is outside the workspace"),
        ("Write", {"path": "contacts.txt", "content": "x"}, "error: read-only: contacts.txt"),
        ("Write", {"path": "notes", "content": "x"}, "error: notes is a folder"),
        ("Edit", {"path": "notes/a.txt", "old": "Z", "new": "Y"}, "error: text not found in notes/a.txt"),
        ("Edit", {"path": "notes/a.txt", "old": "K1", "new": "K2"}, "edited notes/a.txt"),
        ("Glob", {"pattern": "**/a.txt"}, "notes/a.txt"),
        ("Glob", {"pattern": "*.txt"}, "calendar.txt\ncontacts.txt\nmemory.txt"),
        ("Glob", {"pattern": "*.zip"}, "error: no file matches *.zip"),
        (
            "Grep",
            {"pattern": "ana silva", "path": "contacts.txt"},
            "contacts.txt: Ana Silva, ana@harbor.org, 555-0142",
        ),
        ("Grep", {"pattern": "Ben Hill", "path": "mail"}, "mail/01.txt: from Ben Hill: the door is open"),
        (
            "Grep",
            {"pattern": "2026-03-05", "path": "calendar.txt"},
            "calendar.txt: 2026-03-05 10:00-11:00 budget review",
        ),
        ("Grep", {"pattern": "zebra", "path": "."}, "error: no match for zebra"),
        ("ShareFile", {"path": "nothing.txt"}, "error: no such file: nothing.txt"),
        ("SetReminder", {"text": "x", "time": "27:15"}, "error: bad argument: time 27:15"),
        ("phone_call", {"number": "Ana", "message": "x"}, "error: bad argument: number Ana"),
        ("send_message", {"to": "Ana Silva", "body": "x"}, "error: bad argument: to Ana Silva"),
        ("MemoryRewrite", {"content": " "}, "error: bad argument: empty content"),
        ("WebFetch", {"url": "https://nowhere.org/x"}, "error: 404, no page at https://nowhere.org/x"),
        ("web_search", {"query": "zzz"}, "error: no results"),
        ("tool_result_load", {"result_id": "r1"}, "error: no such result: r1"),
        ("skill", {"name": "cooking"}, "error: no such skill: cooking"),
        ("skill_script", {"skill": "docx", "script": "create", "input": "x"}, "error: skill not loaded: docx"),
        (
            "calendar_event",
            {"title": "t", "date": "2026-03-05", "start": "10:30", "end": "12:00"},
            "error: clash with budget review",
        ),
        (
            "calendar_event",
            {"title": "t", "date": "2026-03-05", "start": "12:30", "end": "12:00"},
            "error: bad argument: time 12:30-12:00",
        ),
        (
            "calendar_event",
            {"title": "t", "date": "5 March", "start": "12:30", "end": "13:00"},
            "error: bad argument: date 5 March",
        ),
    ],
)
def test_a_tool_answers_from_the_state(tool, arguments, text):
    result = execute(world(), tool, arguments)
    assert result.text == text
    assert result.is_error == text.startswith("error:")


@pytest.mark.parametrize(
    ("skill", "script", "text", "starts"),
    [
        ("docx", "create", "golden harbor", "saved out/harbor-"),
        ("spreadsheet", "create", "golden harbor", "saved out/harbor-"),
        ("spreadsheet", "sum", "d/t.csv", "sum: 21"),
        ("spreadsheet", "sum", "p/c.pdf", "error: bad argument: p/c.pdf is not a .csv file"),
        ("pdf-reading", "text", "p/c.pdf", "owner: Ben. rent: 10."),
        ("pdf-reading", "text", "../c.pdf", "error: ../c.pdf is outside"),
        ("web-search", "compare", "nothing at all", "error: nothing found"),
        ("voice-calling", "converse", "555-0142: a refund", "they agreed; confirmation K"),
        ("voice-calling", "converse", "Ana", "error: bad argument"),
        ("video-from-video", "extend", "v/x.mp4", "saved videos/x-"),
        ("video-from-video", "reverse", "v/y.mp4", "error: no such file"),
        ("reminders", "repeat", "water the tulip at 08:30", "repeats daily"),
        ("reminders", "repeat", "water the tulip", "error: bad argument"),
        ("reminders", "list", "all", "no reminders"),
        ("platform-help", "lookup", "share a file", "to share a file, open menu"),
        ("platform-help", "lookup", "fly", "error: no help about fly"),
        ("docx", "print", "x", "error: no such script: print"),
    ],
)
def test_a_loaded_skill_runs_its_scripts(skill, script, text, starts):
    here = world()
    assert not execute(here, "skill", {"name": skill}).is_error
    result = execute(here, "skill_script", {"skill": skill, "script": script, "input": text})
    assert result.text.startswith(starts)
    assert result.is_error == starts.startswith("error")


def test_a_large_result_is_cut_and_the_rest_is_loaded():
    here = world()
    text = " ".join(f"key{number}: value." for number in range(20))
    here.files["big.txt"] = text
    shown = execute(here, "Read", {"path": "big.txt"}).text
    head, _, result_id = shown.partition(" …cut; result_id=")
    assert len(text) > LARGE
    assert len(head) <= HEAD
    rest = execute(here, "tool_result_load", {"result_id": result_id}).text
    assert f"{head} {rest}" == text


def test_a_new_value_of_a_fact_takes_the_place_of_the_old_one():
    here = world()
    for fact in ("my hat size is 7", "I work with Ana Silva", "my hat size is 8"):
        execute(here, "MemoryRewrite", {"content": fact})
    assert here.memory == ["I work with Ana Silva", "my hat size is 8"]


def test_what_a_tool_made_keeps_its_own_name():
    here = world()
    first, second = (execute(here, "ImageGenerator", {"prompt": "logo"}).text for _ in range(2))
    assert first != second
    assert len(here.artifacts) == 2


def test_a_web_is_a_function_of_its_number_and_every_page_is_found_by_its_title():
    build_web.cache_clear()
    web = build_web(5)
    build_web.cache_clear()
    assert web == build_web(5)
    assert 24 <= len(web.pages) <= 60
    for page in web.pages.values():
        assert page in web.find(f"{page.title} {page.facts[0][0]}")


def test_the_agent_writes_a_report_with_what_the_web_knows():
    here = world()
    page = next(iter(here.web.pages.values()))
    path = execute(here, "Agent", {"task": page.title}).text.removeprefix("saved ")
    assert page.text in here.files[path]
