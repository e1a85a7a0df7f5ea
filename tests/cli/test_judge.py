import json
import re

import pytest
from typer.testing import CliRunner

from firstchair.cli.judge import app
from firstchair.core.errors import ConfigError, FirstchairError
from firstchair.testing.fault_server import Answer, FaultServer

REWARDS = """
{indent}judge: {{base_url: {url}/v1, model: m}}
{indent}components:
{indent}  - {{name: better, kind: judge, mode: pairwise, criterion: longer}}
{indent}  - name: manner
{indent}    kind: judge
{indent}    mode: rubric
{indent}    dimensions: [{{name: tone, question: "Polite?"}}]
"""


def run(*arguments):
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if isinstance(result.exception, FirstchairError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout


def judge(seen, _number):
    """Prefers the longer answer; every tone is a 2."""
    prompt = seen.body["messages"][1]["content"]
    texts = re.findall(r"<<<answer [AB] \w+>>>\n(.*?)\n<<<end", prompt, re.DOTALL)
    if texts:
        value = {"reason": "r", "winner": "A" if len(texts[0]) > len(texts[1]) else "B"}
    else:
        value = {"reason": "r", "tone": 2}
    message = {"role": "assistant", "content": json.dumps(value)}
    return Answer({"choices": [{"message": message, "finish_reason": "stop"}]})


@pytest.fixture
def files(tmp_path):
    """Rewards with a judge on a real socket, in a file of their own and in a recipe, and labels of both kinds."""
    with FaultServer(judge) as server:
        own, recipe = tmp_path / "rewards.yaml", tmp_path / "recipe.yaml"
        own.write_text(REWARDS.format(url=server.base_url, indent=""))
        recipe.write_text("batches: 10\nreward:" + REWARDS.format(url=server.base_url, indent="  "))
        pairs = [{"question": f"q{n}", "a": "x" * (n + 2), "b": "x", "winner": "a"} for n in range(3)]
        answers = [{"question": f"q{n}", "answer": "x", "scores": {"tone": n}} for n in range(3)]
        for name, rows in (("pairs", pairs), ("answers", answers)):
            (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        yield tmp_path


def test_calibrate_prints_a_table_and_writes_json(files):
    out = files / "calibration.json"
    shown = run(
        "calibrate", files / "pairs.jsonl", "--rewards", files / "rewards.yaml", "--component", "better", "--out", out
    )
    for words in ("winner: agreement with people", "100.0%", "verdict flips with the order", "same verdict 2 times"):
        assert words in shown
    found = json.loads(out.read_text())
    assert found["agreement"][0]["raw"]["n"] == 3
    assert found["position"]["flips"]["value"] == 0.0
    with pytest.raises(ConfigError, match="exists; pass --force"):
        run(
            "calibrate",
            files / "pairs.jsonl",
            "--rewards",
            files / "rewards.yaml",
            "--component",
            "better",
            "--out",
            out,
        )


def test_calibrate_reads_the_rewards_of_a_recipe_and_prints_json(files):
    found = json.loads(
        run(
            "calibrate",
            files / "answers.jsonl",
            "--rewards",
            files / "recipe.yaml",
            "--component",
            "manner",
            "--json",
            "--repeats",
            1,
        )
    )
    assert found["agreement"][0]["dimension"] == "tone"
    assert found["agreement"][0]["raw"]["value"] == pytest.approx(1 / 3)
    assert found["position"] is None
    assert found["consistency"]["n"] == 0


def test_a_component_that_is_not_there_is_named(files):
    with pytest.raises(ConfigError, match="several components ask a judge; expected one of better, manner"):
        run("calibrate", files / "pairs.jsonl", "--rewards", files / "rewards.yaml")
    with pytest.raises(ConfigError, match="found 'mood'; expected one of better, manner"):
        run("calibrate", files / "pairs.jsonl", "--rewards", files / "rewards.yaml", "--component", "mood")


def test_a_reward_without_a_judge_has_nothing_to_calibrate(files):
    path = files / "code.yaml"
    path.write_text("components: [{name: done, kind: verifier, check: completed}]\n")
    with pytest.raises(ConfigError, match=r"code\.yaml: found no component of kind judge"):
        run("calibrate", files / "pairs.jsonl", "--rewards", path)
