from __future__ import annotations

import msgspec

from firstchair.core.jsonl import write_jsonl


def test_the_command_writes_page_and_figures_and_overwrites_neither(run, tmp_path):
    row = {"policy": "a", "correct": True, "cost_usd": 0.02}
    write_jsonl(tmp_path / "a.jsonl", [{**row, "task_id": f"t{number}"} for number in range(12)])
    command = ("pareto", tmp_path / "a.jsonl", "--out", tmp_path / "p.html")
    code, out, error = run(*command)
    assert (code, out.splitlines()[0][:24], error) == (0, "1 point, 1 on the fronti", "")
    assert "Accuracy against" in (tmp_path / "p.html").read_text(encoding="utf-8")
    assert msgspec.json.decode((tmp_path / "p.json").read_bytes())[0]["policy"] == "a"
    code, _, error = run(*command)
    assert code == 2
    assert "--force" in error
    write_jsonl(tmp_path / "b.jsonl", [{**row, "policy": "b", "task_id": "t1"}])
    _, _, error = run("pareto", tmp_path / "a.jsonl", tmp_path / "b.jsonl", "--out", tmp_path / "q.html")
    assert error == "not all were given the same tasks: b lacks 11\n"
