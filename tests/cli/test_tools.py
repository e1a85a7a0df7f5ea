"""The ``tools`` commands, and what else opens the tools of a file."""

import pytest


@pytest.mark.parametrize(
    "command",
    [
        ("tools", "ls", "{tools}"),
        ("tools", "call", "{tools}", "db_query"),
        ("orchestrate", "run", "{tasks}", "--out", "g.jsonl", "--setup", "{setup}", "--model", "nowhere"),
    ],
)
def test_what_is_wrong_with_a_tool_names_the_file_that_asks_for_it(run, tmp_path, command):
    files = {name: tmp_path / name for name in ("tools", "setup")}
    files["tools"].write_text("tools: [{type: db_query, url: 'sqlite:///no.db'}]\n")
    files["setup"].write_text("tools: {tools: [{type: db_query, url: 'sqlite:///no.db'}]}\n")
    files["tasks"] = tmp_path / "tasks.jsonl"
    files["tasks"].write_text('{"problem": "1 + 1?"}\n')
    code, _, err = run(*(part.format(**files) for part in command))
    assert code == 2
    named = next(name for name in ("tools", "setup") if f"{{{name}}}" in command)
    assert f"{files[named]}: db_query.url: no.db: no such file; check the path" in err
