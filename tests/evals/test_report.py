import dataclasses
import json
import re
import resource
import shutil
import subprocess

import msgspec
import pytest
from tests.services import missing

from firstchair.chat.actions import Action
from firstchair.chat.messages import ToolCall, text_message
from firstchair.core.errors import ConfigError, RunFailed
from firstchair.core.html import script_json
from firstchair.engines.scripted import ScriptedEngine
from firstchair.evals.metrics import Prices, measure, undecided
from firstchair.evals.replay import replay
from firstchair.evals.report import interval, percent, plot, points, render, tone, write_report
from firstchair.evals.report_cases import report_cases
from firstchair.evals.report_data import Completion, report_data
from firstchair.evals.run_record import Run
from firstchair.evals.stats import Difference, Rate

HOSTILE = '</script><script>document.title="pwned"</script><img src=x onerror="document.title=1">\u2028<!--'


def render_of(run, golden, baseline=None):
    return render(report_data(run, golden, baseline), report_cases(run, golden, baseline))


@pytest.fixture
def page(golden, runs, tmp_path):
    out = tmp_path / "report.html"
    write_report(runs[1], golden, out, runs[0])
    return out.read_text(encoding="utf-8")


def test_the_json_file_holds_what_the_rows_give(golden, runs, tmp_path):
    write_report(runs[1], golden, tmp_path / "report.html", runs[0])
    data = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    rates = measure(runs[1].rows)
    assert data["lenient"] == msgspec.to_builtins(rates["lenient_pass"])
    assert {row["name"]: row["rate"] for row in data["metrics"]} == msgspec.to_builtins(rates)
    assert sum(data["verdicts"]["strict"].values()) == len(runs[1].rows)
    assert (
        data["comparison"]["metrics"]["lenient_pass"]["before"]["value"]
        == measure(runs[0].rows)["lenient_pass"].value
    )
    assert data["run"]["golden"]["set_sha256"] == golden.set_sha256


def test_the_page_shows_both_runs_every_metric_and_the_limits(page, runs):
    rates = measure(runs[1].rows)
    for name in ("strict_pass", "lenient_pass"):
        assert f'<div class="big">{percent(rates[name].value)}</div>' in page
    for text in ("base", "tuned", "Stop precision", "Failure map", "Where decisions went", "do not mean", "McNemar"):
        assert text in page
    assert page.count("<tr>") > 20


def test_the_page_asks_the_network_for_nothing(page):
    assert not re.findall(r'(?:src|href)\s*=\s*"(?!#|data:)[^"]*"', page)
    assert "@import" not in page
    assert "url(" not in page
    assert "default-src 'none'" in page


def test_undecided_decisions_are_counted_on_top_and_hatched(golden, runs, tmp_path):
    data = write_report(runs[1], golden, tmp_path / "r.html")
    page = (tmp_path / "r.html").read_text(encoding="utf-8")
    count = sum(data.undecided["lenient"].values())
    assert count == sum(map(undecided, runs[1].rows)) > 0
    assert f"<b>{count}</b> of 60 undecided: code cannot call them wrong" in page
    assert ' open" style="flex:' in page
    rows = tuple(msgspec.structs.replace(row, verified=True) for row in runs[1].rows)
    page = render_of(Run(runs[1].path, runs[1].record, rows), golden)
    assert "undecided: code" not in page
    assert ' open" style="flex:' not in page


def test_an_adapter_and_its_base_are_told_apart(golden, runs):
    served = msgspec.structs.replace(runs[1].record.candidate, model="base-model", adapter="/a/b/sft/model")
    lora = Run(runs[1].path, msgspec.structs.replace(runs[1].record, candidate=served), runs[1].rows)
    page = render_of(lora, golden, runs[0])
    assert "<h1>base-model + sft/model</h1>" in page
    assert "<title>base-model + sft/model on trips" in page
    assert "<dd>base-model + /a/b/sft/model" in page
    assert "compared with <b>base-model + sft/model</b>" in render_of(runs[0], golden, lora)


def test_both_counts_stand_where_they_differ_and_no_number_stands_twice(golden, runs):
    page = render_of(runs[1], golden, runs[0])
    before, after = (measure(run.rows)["argument_quality"].n for run in runs)
    assert before != after
    assert f'<td class="n">{before}, {after}</td>' in page
    assert "Malformed" in page
    assert "Format validity" not in page


def test_the_menu_says_what_the_headings_say(page):
    headings = dict(re.findall(r'<h2 id="(\w+)">([^<]+)</h2>', page))
    menu = dict(re.findall(r'<a href="#(\w+)">([^<]+)</a>', page.partition("<nav")[2].partition("</nav>")[0]))
    assert menu.pop("top") == "Top"
    assert len(menu) == 8
    assert menu.items() <= headings.items()


def test_a_report_without_baseline_has_no_columns_for_one(golden, runs, tmp_path):
    write_report(runs[0], golden, tmp_path / "r.html")
    page = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert "McNemar" not in page
    assert '<th class="n">before</th>' not in page


def test_files_are_not_overwritten_unless_told(golden, runs, tmp_path):
    (tmp_path / "r.json").touch()
    with pytest.raises(ConfigError, match=r"r\.json exists"):
        write_report(runs[0], golden, tmp_path / "r.html")
    assert not (tmp_path / "r.html").exists()
    write_report(runs[0], golden, tmp_path / "r.html", force=True)


def test_a_disk_too_small_for_the_page_leaves_neither_file(golden, runs, tmp_path):
    write_report(runs[0], golden, tmp_path / "r.html")
    sizes = [(tmp_path / name).stat().st_size for name in ("r.json", "r.html")]
    assert sizes[0] < sizes[1]
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (sum(sizes) // 2, before[1]))
    try:
        with pytest.raises(RunFailed, match=r"cannot write .*s\.html"):
            write_report(runs[0], golden, tmp_path / "s.html")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not [path.name for path in tmp_path.iterdir() if "s." in path.name]
    write_report(runs[0], golden, tmp_path / "s.html")


def test_runs_that_cannot_be_compared_give_no_report(golden, runs, tmp_path):
    record = msgspec.structs.replace(runs[0].record, constrain=True)
    with pytest.raises(ConfigError, match="serving config"):
        write_report(runs[1], golden, tmp_path / "r.html", Run(runs[0].path, record, runs[0].rows))
    assert not (tmp_path / "r.html").exists()
    unlike = Run(runs[0].path, record, runs[0].rows)
    data = write_report(runs[1], golden, tmp_path / "r.html", unlike, allow_serving=True)
    assert any("served differently: constrain" in text for text in data.caveats)


def test_live_episodes_and_prices_are_shown_when_given(golden, runs, tmp_path):
    before, after = Rate(0.2, 50, 0.1, 0.33, "wilson"), Rate(0.8, 50, 0.67, 0.89, "wilson")
    alive = Completion(before, after, errors={"environment.step": 2}, errors_before={"timeout": 1})
    write_report(runs[1], golden, tmp_path / "r.html", runs[0], completion=alive, prices=Prices(1.0, 2.0))
    page = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert "80.0%</b> of 50 tasks completed" in page
    assert (
        "; 2 failed and are not counted: environment.step; 1 before failed and are not counted: timeout</dd>" in page
    )
    assert "<tr><td>cost</td>" in page


def test_a_run_in_which_nothing_was_answered_still_has_a_report(golden, tmp_path):
    run = replay(golden, ScriptedEngine([]), None, tmp_path / "dead")
    data = write_report(run, golden, tmp_path / "r.html")
    assert data.lenient.value is None
    assert data.excluded[0].count == 60
    assert "no decision has an action" in (tmp_path / "r.html").read_text(encoding="utf-8")


def test_the_caveats_name_what_applies(golden, runs):
    rows = tuple(msgspec.structs.replace(row, verified=False) for row in runs[0].rows)
    text = " ".join(report_data(Run(runs[0].path, runs[0].record, rows), golden).caveats)
    assert "60 decisions is what was recorded; nobody verified it" in text
    assert "Code alone cannot call" in text
    rows = tuple(msgspec.structs.replace(row, verified=True) for row in runs[0].rows)
    text = " ".join(report_data(Run(runs[0].path, runs[0].record, rows), golden).caveats)
    assert "nobody verified" not in text
    assert "What it says is not graded" in text


def test_large_conversations_are_cut_and_passes_go_first(golden, runs):
    whole = report_cases(runs[1], golden, runs[0])
    assert whole["left_out"] == 0
    assert len(whole["cases"]) == 60
    small = report_cases(runs[1], golden, runs[0], budget=len(json.dumps(whole["cases"])) + 4000)
    assert 0 < small["left_out"] < 12
    assert len(small["cases"]) == 60
    failing = {case["session"] for case in small["cases"] if case["after"]["lenient"] != "pass"}
    assert set(small["sessions"]) & failing
    tiny = report_cases(runs[1], golden, budget=10)
    assert tiny["sessions"] == {}
    assert len(tiny["cases"]) == 60


def test_a_number_and_its_text_look_different_in_the_cases(golden, runs):
    calls = (ToolCall.of("c", "book", {"trip_id": "T1", "people": "3", "days": 3}),)
    rows = (msgspec.structs.replace(runs[0].rows[0], action=Action(kind="tool_call", calls=calls)),)
    case = report_cases(Run(runs[0].path, runs[0].record, rows), golden)["cases"][0]
    assert case["after"]["action"]["calls"][0]["args"] == {"trip_id": "T1", "people": '"3"', "days": "3"}


def test_json_inside_a_script_cannot_end_it():
    text = script_json({"a": HOSTILE})
    assert "<" not in text
    assert "\u2028" not in text
    assert json.loads(text) == {"a": HOSTILE}


def test_numbers_are_written_for_people():
    assert (percent(0.8734), percent(None)) == ("87.3%", "–")
    assert (points(0.0512), points(-0.3), points(0.0001), points(None)) == ("+5.1", "−30.0", "0.0", "–")
    assert interval(Rate(0.5, 10, 0.25, 0.75, "wilson")) == "25.0–75.0"
    assert interval(Difference(0.1, 10, -0.02, 0.22)) == "−2.0 to +22.0"
    assert (tone(Difference(0.1, 9, 0.05, 0.2)), tone(Difference(0.1, 9, 0.05, 0.2), "lower")) == ("up", "down")
    assert tone(Difference(0.1, 9, -0.1, 0.2)) == ""
    assert "left:50.0%" in plot(Rate(0.5, 10, 0.25, 0.75))


CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--enable-logging=stderr"),
    *("--virtual-time-budget=2000", "--dump-dom"),
)


def open_in_browser(path, tmp_path, fragment):
    """The DOM after the page's script has run, and what the console said."""
    if not CHROMIUM:
        missing("Chromium", "the report is opened in a real browser; install it (Debian: apt-get install chromium)")
    done = subprocess.run(
        [CHROMIUM, *FLAGS, f"--user-data-dir={tmp_path / 'profile'}", f"file://{path}{fragment}"],
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
    )
    return done.stdout, [line for line in done.stderr.split("\n") if "CONSOLE" in line]


def hostile(golden, runs):
    """The golden set and runs with markup in every text that reaches the page."""
    first = golden.decisions[0]
    session = golden.sessions[first.session_id]
    messages = (text_message("user", HOSTILE), *session.messages[1:])
    sessions = {**golden.sessions, session.session_id: msgspec.structs.replace(session, messages=messages)}
    calls = (ToolCall.of("c", "find_trips", {"city": HOSTILE}), ToolCall.of("d", HOSTILE, {HOSTILE: HOSTILE}))
    made = Action(kind="tool_call", text=HOSTILE, calls=calls)
    rows = list(runs[1].rows)
    at = next(index for index, row in enumerate(rows) if row.dp_id == first.dp_id)
    scored = msgspec.structs.replace(
        rows[at].scored, lenient="wrong_tool", strict="wrong_tool", rule=HOSTILE, field=HOSTILE
    )
    rows[at] = msgspec.structs.replace(
        rows[at], action=made, made_tools=(HOSTILE,), tags=(HOSTILE,), scored=scored, provenance=HOSTILE
    )
    candidate = msgspec.structs.replace(runs[1].record.candidate, model=HOSTILE)
    record = msgspec.structs.replace(runs[1].record, candidate=candidate)
    return dataclasses.replace(golden, sessions=sessions), Run(runs[1].path, record, tuple(rows)), first.dp_id


def test_the_page_works_in_a_browser_and_stored_markup_stays_text(golden, runs, tmp_path):
    golden, run, dp_id = hostile(golden, runs)
    out = tmp_path / "report.html"
    out.write_text(render(report_data(run, golden, runs[0]), report_cases(run, golden, runs[0])), encoding="utf-8")
    dom, console = open_in_browser(out, tmp_path, f"#case={dp_id.replace(':', '%3A')}")
    assert console == []
    assert "<title>pwned" not in dom
    assert "<img" not in dom
    assert dom.count("<script") == 2
    assert 'aria-current="true"' in dom
    assert "1 of 60: one case" in dom
    assert '<h3 class="mono">trip-0:0</h3>' in dom
    assert 'class="arg differs"' in dom
    assert '<section class="side"><h4><span>baseline</span>' in dom


def test_the_level_toggle_works_in_a_browser(page, tmp_path):
    dom, console = open_in_browser(tmp_path / "report.html", tmp_path, "#level=strict")
    assert console == []
    assert '<html lang="en" data-level="strict">' in dom
    assert 'data-set-level="strict" aria-pressed="true"' in dom
    assert 'data-set-level="lenient" aria-pressed="false"' in dom
    assert "of 60" in re.search(r'id="f-count">([^<]*)<', dom)[1]
