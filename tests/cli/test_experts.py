import json

import pytest

from firstchair.catalog.experts import ExpertCatalog
from firstchair.testing.fault_server import Answer, FaultServer

KEYS = ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY", "OPENROUTER_API_KEY", "FIRSTCHAIR_EXCLUDE_EXPERTS")
CATALOG = """
experts:
  - {{model: acme/Tiny-1B, category: local_open_source, summary: Short answers.}}
  - {{model: acme/Poet, category: local_open_source, summary: Words.}}
endpoints: {{tiny_1b: '{url}/v1', poet: '{url}/v1'}}
"""


@pytest.fixture(autouse=True)
def no_keys(monkeypatch):
    for name in KEYS:
        monkeypatch.delenv(name, raising=False)


def answer(seen, _number):
    """Poet writes; Tiny knows that 1 + 1 is 2 and takes everything else for 2 as well."""
    if "down" in seen.body["messages"][0]["content"]:
        return Answer({"error": {"message": "no such prompt"}}, 400)
    text = "Good at sums." if seen.body["model"] == "acme/Poet" else "FINAL_ANSWER: 2"
    message = {"role": "assistant", "content": text}
    usage = {"prompt_tokens": 10, "completion_tokens": 5}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    return Answer({"model": "tiny-served", "choices": [choice], "usage": usage})


@pytest.fixture
def catalog(tmp_path):
    with FaultServer(answer) as server:
        path = tmp_path / "experts.yaml"
        path.write_text(CATALOG.format(url=server.base_url))
        yield path


def test_experts_are_listed_with_where_they_are_asked_or_what_is_missing(run, monkeypatch):
    monkeypatch.setenv("OPENROUTER_API_KEY", "k")
    monkeypatch.setenv("FIRSTCHAIR_EXCLUDE_EXPERTS", "397b")
    code, out, _ = run("experts", "ls", "--wide")
    assert code == 0
    assert "OpenRouter: qwen/qwen3.5-9b" in out
    assert "5 experts, 5 can be asked" in out
    assert "397b" not in out
    monkeypatch.delenv("OPENROUTER_API_KEY")
    code, out, _ = run("experts", "ls")
    local = "experts qwen3_5_9b, qwen3_6_27b_fp8, qwen3_5_122b_a10b_fp8 cannot be reached: not set: "
    assert f"{local}OPENROUTER_API_KEY (OpenRouter); set a key, give endpoints.NAME a server of your own" in out
    assert out.count("set a key") == 1
    code, out, _ = run("experts", "ls", "--json")
    rows = {row["name"]: row for row in json.loads(out)}
    assert "OPENROUTER_API_KEY (OpenRouter)" in rows["qwen3_5_9b"]["missing"]
    assert (rows["qwen3_5_9b"]["input_usd"], rows["gpt_5_5"]["input_usd"]) == ("0.1", None)


def test_an_expert_is_asked_and_what_it_cost_is_said_beside_the_answer(run, catalog):
    code, out, err = run("experts", "ask", "tiny_1b", "1 + 1?", "--catalog", catalog)
    assert (code, out) == (0, "FINAL_ANSWER: 2\n")
    assert "tiny-served: $0, 10 tokens in, 5 out" in err
    code, out, _ = run("experts", "ask", "tiny_1b", "1 + 1?", "--catalog", catalog, "--json")
    assert json.loads(out)["usage"] == {"input": 10, "output": 5}
    code, _, err = run("experts", "ask", "tiny_1b", "down", "--catalog", catalog)
    assert code == 1
    assert "no answer: bad_request: HTTP 400: no such prompt" in err
    code, _, err = run("experts", "ask", "gpt_5_5", "hi")
    assert code == 2
    assert "neither is set: OPENAI_API_KEY" in err


def test_an_expert_is_measured_and_its_entry_written(run, catalog, tmp_path):
    tasks, out = tmp_path / "tasks.jsonl", tmp_path / "out.yaml"
    rows = [
        {"task_id": f"m{n}", "problem": f"1 + {n}?", "gold_answer": str(1 + n), "domain": "math"} for n in range(1, 5)
    ]
    tasks.write_text("".join(json.dumps(row) + "\n" for row in rows))
    given = ("experts", "describe", "tiny_1b", tasks, "--catalog", catalog, "--out", out, "--writer", "poet")
    code, shown, _ = run(*given)
    assert code == 0
    assert {"25.0%", "$0"} <= set(shown.split())
    entry = ExpertCatalog.load(out).expert("tiny_1b")
    assert entry.summary.startswith("Good at sums. Measured: math 25% right (95% interval 5 to 70%, n 4; $0 and ")
    assert entry.latency_s is not None
    code, _, err = run(*given)
    assert code == 2
    assert "exists; pass --force" in err


def test_what_a_task_has_decides_who_grades_and_what_only_a_judge_could_is_not_asked(run, catalog, tmp_path):
    tasks = tmp_path / "tasks.jsonl"
    rows = [
        {"problem": "Half of 4?", "gold_answer": r"\frac{4}{2}", "domain": "math"},
        {"problem": "A: 1, B: 2?", "gold_answer": "B", "choices": ["1", "2"], "domain": "science"},
        {"problem": "Write it.", "gold_answer": "2", "domain": "code"},
        {"problem": "Be polite.", "assertions": ["It is."], "domain": "chat"},
    ]
    tasks.write_text("".join(json.dumps({"task_id": f"t{n}", **row}) + "\n" for n, row in enumerate(rows)))
    given = ("experts", "describe", "tiny_1b", tasks, "--catalog", catalog, "--json")
    code, out, err = run(*given, "--out", tmp_path / "out.yaml")
    assert code == 0, err
    assert {one["domain"]: one["accuracy"]["value"] for one in json.loads(out)["domains"]} == {
        "math": 1,
        "science": 1,
    }
    assert "not asked, only a judge could grade the answer: 2 tasks" in err
    tasks.write_text(json.dumps({"task_id": "t", **rows[3]}) + "\n")
    code, _, err = run(*given, "--out", tmp_path / "other.yaml")
    assert code == 2
    assert "no task in it that can be graded without a judge; give tasks with a gold answer or tests" in err


def test_prices_are_shown_and_updated(run, tmp_path):
    code, out, _ = run("prices", "show", "gpt-5", "claude-opus-4-8", "--json")
    assert code == 0
    assert json.loads(out)["models"]["gpt-5"] == {"input": "1.25", "output": "10", "cache_read": "0.125"}
    code, out, err = run("prices", "show", "gpt-99")
    assert code == 1
    assert "no price is known: gpt-99" in err
    rows = [
        {"id": "gpt-5", "pricing": {"prompt": "0.000001", "completion": "0.00001"}},
        {"id": "new/one", "pricing": {"prompt": "0", "completion": "0.000002"}},
        {"id": "auto", "pricing": {"prompt": "-1", "completion": "-1"}},
    ]
    source, table = tmp_path / "models.json", tmp_path / "prices.yaml"
    source.write_text(json.dumps({"data": rows}))
    code, out, _ = run("prices", "update", source, "--out", table, "--date", "2026-12-01", "--wide")
    assert code == 0
    for words in ("gpt-5", "1.25 / 10", "1 / 10", "1 changed, 1 new, 0 as before", "left out: auto: no fixed price"):
        assert words in out
    code, out, _ = run("prices", "show", "gpt-5", "new/one", "gpt-4o", "--prices", table, "--json")
    shown = json.loads(out)
    assert shown["version"].startswith("2026-12-01+")
    assert [shown["models"][name]["input"] for name in ("gpt-5", "new/one", "gpt-4o")] == ["1", "0", "2.5"]
    code, _, err = run("prices", "update", source, "--out", table)
    assert code == 2
    assert "exists; pass --force" in err
    code, out, _ = run("prices", "update", source, "--out", table, "--force", "--json")
    assert json.loads(out)["same"] == 2
