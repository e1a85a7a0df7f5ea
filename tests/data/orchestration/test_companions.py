"""The page, the transcript and the JSON file beside a file of records; the page in a real browser."""

import json
from pathlib import Path

import msgspec
import pytest
from tests.chromium import chromium

from firstchair.chat.messages import Tool, assistant_message, text_message
from firstchair.core.errors import ConfigError, DataError
from firstchair.core.jsonl import write_jsonl
from firstchair.data.orchestration.companions import page_of, text_limit, transcript, write_companions
from firstchair.data.orchestration.groups import Group, encode_group
from firstchair.data.orchestration.serialize import training_records
from firstchair.data.orchestration.views import Said, View, group_views, money, session_view, views_of
from firstchair.data.sft import SftRecord, write_sft
from firstchair.rollout.orchestration.task import OrchestrationTask
from firstchair.testing.sessions import trip_session
from firstchair.testing.trajectories import clean_trajectory, trajectory_groups

HOSTILE = '</script><script>document.title="pwned"</script><img src=x onerror="document.title=1">\u2028<!-- x < 3'
RULES = (Path(__file__).parents[2] / "gateway" / "console" / "accessible.js").read_text(encoding="utf-8")
LISTED = "document.querySelectorAll('#list details').length"
FOUND = "document.getElementById('found').textContent"
STATE = "document.getElementById('state').textContent"


def write_groups(path, groups):
    path.write_bytes(b"".join(encode_group(group) + b"\n" for group in groups))
    return path


def hostile_view(**changes):
    return View(
        id=HOSTILE,
        task=HOSTILE,
        domain=HOSTILE,
        difficulty=HOSTILE,
        correct=True,
        clean=False,
        kept=True,
        reasons=((HOSTILE, HOSTILE),),
        experts=(HOSTILE,),
        problem=HOSTILE,
        answer=HOSTILE,
        gold=HOSTILE,
        names={HOSTILE: HOSTILE},
        facts={HOSTILE: HOSTILE},
        uses=((HOSTILE,) * 8,),
        messages=(
            Said(
                role="assistant",
                text=HOSTILE,
                thinking=HOSTILE,
                calls=((HOSTILE, HOSTILE), (HOSTILE, '{"a": "<b>"}')),
            ),
            Said(role="tool", name=HOSTILE, text=HOSTILE * 30, failed=True),
        ),
        tools=(Tool(name=HOSTILE, description=HOSTILE),),
        **changes,
    )


@pytest.fixture(scope="module")
def tab(tmp_path_factory):
    with chromium(tmp_path_factory.mktemp("browser")) as opened:
        opened.show(width=1280, dark=False)
        yield opened


def show(tab, folder, views, title="made"):
    path = folder / "view.html"
    path.write_text("".join(page_of(iter(views), title=title, limit=8000)), encoding="utf-8")
    tab.said.clear()
    tab.open(f"file://{path}")


def choose(tab, name, value):
    """Set a filter as a person does, and wait for the list."""
    tab.run(
        f"{{const field = document.getElementById('{name}'); field.value = {json.dumps(value)};"
        "field.dispatchEvent(new Event('input', {bubbles: true})); field.form.requestSubmit();}"
    )
    tab.wait_for(f"!{STATE}.includes('searching')")


def test_stored_markup_stays_text_on_the_page(tab, tmp_path):
    show(tab, tmp_path, [hostile_view()], title=HOSTILE)
    tab.run("document.getElementById('all').click()")
    tab.wait_for("document.querySelectorAll('.said').length === 2")
    tab.run("document.querySelectorAll('#list button').forEach(button => button.click())")
    assert tab.said == []
    assert tab.run("document.title") == f"{HOSTILE}: records"
    assert tab.run("document.querySelectorAll('img, iframe, #list script').length") == 0
    assert tab.run("document.querySelectorAll('script').length") == 3
    said = tab.run("[...document.querySelectorAll('.what')].map(e => e.textContent)")
    assert said[0].count(HOSTILE) == 7
    assert said[1] == HOSTILE * 30
    choose(tab, "text", "<!-- X < 3")
    assert tab.run(STATE) == "1 in the file"
    choose(tab, "text", "<!-- x < 4")
    assert tab.run(STATE) == "0 of 1 match"


def test_the_page_asks_the_network_for_nothing():
    page = "".join(page_of(iter([hostile_view()]), title="made", limit=8000))
    assert "default-src 'none'" in page
    assert "@import" not in page
    assert "url(" not in page
    assert page.count('src="') == 0
    assert {part.split('"')[0] for part in page.split('href="')[1:]} == {"data:,", "#found"}


def test_search_and_filters_find_what_they_say(tab, tmp_path):
    groups = trajectory_groups(10)
    views = [view for group in groups for view in group_views(group)]
    show(tab, tmp_path, views)
    assert tab.run(LISTED) == 50
    assert tab.run(STATE) == "80 in the file"

    def count(**wanted):
        return sum(all(getattr(view, name) == value for name, value in wanted.items()) for view in views)

    for name, value, expected in (
        ("grade", "correct", count(correct=True)),
        ("grade", "broken", count(broken=True)),
        ("clean", "true", count(clean=True)),
        ("kept", "true", count(kept=True)),
        ("domain", "math", count(domain="math")),
        ("reason", "no_delegation", sum("no_delegation" in dict(view.reasons) for view in views)),
        ("expert", "qwen3_5_9b", sum("qwen3_5_9b" in view.experts for view in views)),
        (
            "text",
            "you have not asked ANY model",
            sum(any("You have not" in s.text for s in v.messages) for v in views),
        ),
        ("text", "made-3:", 8),
        ("text", "thinking", 0),
    ):
        choose(tab, name, value)
        assert 0 <= expected < 80
        assert tab.run(STATE) == f"{expected} of 80 match", name
        choose(tab, name, "")
    choose(tab, "grade", "correct")
    choose(tab, "clean", "true")
    assert tab.run(STATE) == f"{count(correct=True, clean=True)} of 80 match"
    tab.run("document.querySelector('#filters [type=reset]').click()")
    tab.wait_for(f"{STATE} === '80 in the file'")
    choose(tab, "order", "dear")
    dearest = max(views, key=lambda view: view.cost_usd or 0)
    assert tab.run("document.querySelector('#list .id').textContent") == dearest.id


def test_thousands_of_records_are_drawn_a_page_at_a_time_and_read_when_opened(tab, tmp_path):
    words = "so each crate holds as many parts as the one before it, " * 8
    views = (
        View(id=f"r{n}", problem=f"Problem {n}", messages=(Said(role="user", text=f"{words} number {n}"),))
        for n in range(5_000)
    )
    show(tab, tmp_path, views)
    assert (tab.run(LISTED), tab.run("document.querySelectorAll('.said').length")) == (50, 0)
    tab.run("document.querySelector('#list summary').click()")
    tab.wait_for("document.querySelectorAll('.said').length === 1")
    for is_open in (False, True):
        tab.run("document.querySelector('#list summary').click()")
        tab.wait_for(f"document.querySelector('#list details').open === {str(is_open).lower()}")
    tab.run("new Promise(requestAnimationFrame)")
    assert tab.run("document.querySelectorAll('.said').length") == 1
    tab.run("document.querySelectorAll('.pager button')[1].click()")
    assert tab.run(FOUND) == "Records 51–100 of 5,000"
    assert tab.run("document.activeElement.id") == "found"
    choose(tab, "text", "number 4999")
    assert tab.run(STATE) == "1 of 5,000 match"
    assert tab.run("document.querySelector('#list .id').textContent") == "r4999"
    assert tab.run("document.querySelectorAll('.pager button:enabled').length") == 0


def test_the_page_is_usable_without_mouse_or_sight_in_both_themes_and_on_a_phone(tab, tmp_path):
    views = [view for group in trajectory_groups(1, samples=3) for view in group_views(group)]
    show(tab, tmp_path, views)
    tab.run("document.getElementById('all').click()")
    tab.wait_for("document.querySelectorAll('.whole').length === 3")
    for dark in (False, True):
        for width in (1280, 320):
            tab.show(width=width, dark=dark)
            assert tab.run(RULES) == []
    clear, order = (f"document.querySelector('#filters {it}').getBoundingClientRect()" for it in ("button", "#order"))
    tab.show(width=700, dark=False)
    assert tab.run(f"{clear}.top") == tab.run(f"{order}.top")
    tab.show(width=1280, dark=False)
    named = {"button", "combobox", "searchbox", "heading", "search", "DisclosureTriangle"}
    for node in tab.send("Accessibility.getFullAXTree")["nodes"]:
        if not node.get("ignored") and node.get("role", {}).get("value") in named:
            assert node["name"]["value"].strip()
    show(tab, tmp_path, views)
    tab.send("Page.bringToFront")
    for _ in range(20):
        tab.press("Tab")
        if tab.run("document.activeElement.tagName") == "SUMMARY":
            break
    assert tab.run("parseFloat(getComputedStyle(document.activeElement).outlineWidth)") >= 2
    tab.press("Enter")
    tab.wait_for("document.querySelectorAll('.said').length > 0")
    assert tab.said == []


def test_the_files_say_the_same(tmp_path):
    path = write_groups(tmp_path / "groups.jsonl", trajectory_groups(3))
    written = write_companions(views_of(path), tmp_path / "view.html", title="groups.jsonl")
    views = list(views_of(path)())
    assert written.records == len(views) == 24
    rows = json.loads(written.json.read_text(encoding="utf-8"))
    assert [row["id"] for row in rows] == [view.id for view in views]
    assert msgspec.convert(rows, list[View]) == views
    text = written.text.read_text(encoding="utf-8")
    assert text.count("==== made-") == 24
    assert all(transcript(view) in text for view in views)
    with pytest.raises(ConfigError, match=r"view\.html exists"):
        write_companions(views_of(path), tmp_path / "view.html", title="again")
    write_companions(views_of(path), tmp_path / "view.html", title="again", force=True)


def test_a_file_whose_name_is_no_unicode_has_a_page(tmp_path):
    path = write_groups(tmp_path / "groups\udcff.jsonl", trajectory_groups(1, samples=1))
    written = write_companions(views_of(path), tmp_path / "view.html", title=path.name)
    assert "groups?.jsonl" in written.html.read_text(encoding="utf-8")


def test_a_transcript_reads_from_top_to_bottom():
    group = Group(
        task=OrchestrationTask(task_id="t", problem="6 x 7?", gold_answer="42"), trajectories=(clean_trajectory(),)
    )
    (view,) = group_views(group)
    text = transcript(view)
    for one, next_ in zip(
        lines := ["==== t:0 ====", "correct, clean, kept", "cost: $0", "answer: 42", "[system]", "-> qwen3_5_9b {"],
        lines[1:],
        strict=False,
    ):
        assert -1 < text.index(one) < text.index(next_)
    assert "[tool qwen3_5_9b]" in text


def test_a_bad_line_leaves_no_file(tmp_path):
    path = write_groups(tmp_path / "groups.jsonl", trajectory_groups(1))
    path.write_bytes(path.read_bytes() + b'{"task": {"task_id": "x"}, "trajectories": []}\n')
    with pytest.raises(DataError, match=r"groups\.jsonl:2: not a group"):
        write_companions(views_of(path), tmp_path / "view.html", title="x")
    assert [found.name for found in tmp_path.iterdir()] == ["groups.jsonl"]
    path.write_bytes(b"")
    with pytest.raises(DataError, match="no record in it"):
        views_of(path)


def test_training_records_show_what_is_trained_and_why_they_are_unclean(tmp_path):
    groups = trajectory_groups(4)
    write_sft(tmp_path / "sft.jsonl", training_records(groups))
    views = list(views_of(tmp_path / "sft.jsonl")())
    raw = {view.id: view for group in groups for view in group_views(group)}
    for view in views:
        other = raw[view.id]
        for name in ("correct", "clean", "kept", "experts", "cost_usd", "domain", "gold", "names", "uses", "problem"):
            assert getattr(view, name) == getattr(other, name), name
        assert [reason for reason, _ in view.reasons] == [reason for reason, _ in other.reasons]
    assert {said.trained for view in views for said in view.messages if said.role == "assistant"} == {True, False}
    plain = SftRecord(id="p", messages=(text_message("user", "hi"), assistant_message("ho")), loss=(False, True))
    write_sft(tmp_path / "plain.jsonl", [plain])
    (view,) = views_of(tmp_path / "plain.jsonl")()
    assert (view.correct, view.clean, view.kept, view.problem, view.answer) == (None, None, None, "hi", "ho")


def test_recorded_episodes_are_graded_samples_too(tmp_path):
    session = trip_session(1, labels={"task_id": "k", "completed": False, "category": "trips", "reward": 0.5})
    write_jsonl(tmp_path / "sessions.jsonl", [msgspec.to_builtins(session)])
    (view,) = views_of(tmp_path / "sessions.jsonl")()
    assert view == session_view(session)
    assert (view.id, view.task, view.domain, view.correct, view.clean) == ("trip-1", "k", "trips", False, None)
    assert view.facts["reward"] == "0.5"
    assert session_view(msgspec.structs.replace(session, labels={"error": "timeout: x"})).broken
    graded = session_view(msgspec.structs.replace(session, labels={"gold": "B", "graded answer": "C"}))
    assert (graded.answer, graded.gold, graded.facts.keys()) == ("C", "B", {"source", "recorded"})
    assert view.answer == session.messages[-1].text


def test_texts_are_cut_only_as_far_as_the_budget_needs():
    views = [View(id="a", messages=(Said(role="tool", text="x" * 5_000),)) for _ in range(10)]
    assert text_limit(iter(views), budget=50_000) == 8_000
    assert text_limit(iter(views), budget=49_999) == 4_000
    assert text_limit(iter(views), budget=1) == 600
    page = "".join(page_of(iter(views), title="x", limit=600))
    assert "x" * 600 + " … [4,400 more characters]" in page
    assert "x" * 601 not in page


def test_money_has_three_digits_and_unknown_is_said():
    assert [money(usd) for usd in (None, 0, 0.0000708, 0.00123, 0.012, 12.5)] == [
        *("unknown", "$0", "$0.0000708", "$0.00123", "$0.0120", "$12.5000")
    ]
