import asyncio
import json
from typing import cast

import pytest
import yaml

from firstchair.chat.messages import assistant_message, text_message
from firstchair.data.golden import GoldenSet
from firstchair.data.sft import SftRecord, write_sft
from firstchair.evals.candidates import CandidateOptions, open_candidate
from firstchair.train.base_model import base_model_dir


@pytest.fixture
def corpus(tmp_path):
    path = tmp_path / "train.jsonl"
    records = (
        SftRecord(
            id=f"r{number}",
            messages=(text_message("user", f"say {number}"), assistant_message(f"{number}!")),
            loss=(False, True),
        )
        for number in range(6)
    )
    write_sft(path, records)
    return path


@pytest.fixture
def recipe(run, corpus, tmp_path):
    """A recipe for a tiny model that the command line made."""
    sizes = ["hidden=16", "layers=1", "heads=2", "intermediate=32", "vocab_size=300"]
    pairs = [f"corpus=[{corpus}]", f"out={tmp_path / 'tiny'}", *sizes]
    code, out, _ = run("train", "tiny", *(word for pair in pairs for word in ("--set", pair)), "--json")
    assert code == 0
    assert json.loads(out)["parameters"] > 0
    path = tmp_path / "recipe.yaml"
    fields = {
        "model": str(tmp_path / "tiny"),
        "out": str(tmp_path / "run"),
        "data": {"train": str(corpus)},
        "batch": {"sessions": 3},
        "max_steps": 2,
    }
    path.write_text(yaml.safe_dump(fields))
    return path


def test_a_recipe_trains_a_model(run, recipe, tmp_path):
    code, out, err = run("train", "sft", recipe, "--json")
    assert code == 0, err
    found = json.loads(out)
    assert found["steps"] == 2
    assert found["model"] == str(tmp_path / "run" / "model")
    assert "tokens trained: 0!" in err
    assert (tmp_path / "run" / "model" / "model.safetensors").is_file()


def test_a_dry_run_prints_recipe_counts_and_time_and_trains_nothing(run, recipe, tmp_path):
    code, out, _ = run("train", "sft", recipe, "--dry-run", "--json", "--set", "batch.sessions=2")
    assert code == 0
    found = json.loads(out)
    assert found["recipe"]["batch"]["sessions"] == 2
    assert found["train"]["records"] == found["train"]["rows"] == 6
    assert found["train"]["trained_tokens"] < found["train"]["tokens"]
    assert found["steps"] == 2
    assert found["estimated_seconds"] >= 0
    assert not (tmp_path / "run").exists()
    code, out, _ = run("train", "sft", recipe, "--dry-run")
    assert code == 0
    assert "trained_tokens" in out


def test_a_second_run_needs_force_and_resume_of_a_finished_run_is_fine(run, recipe):
    assert run("train", "sft", recipe)[0] == 0
    code, _, err = run("train", "sft", recipe)
    assert code == 2
    assert "pass --force" in err
    assert run("train", "sft", recipe, "--force")[0] == 0
    assert run("train", "sft", recipe, "--resume")[0] == 0


def test_an_adapter_is_merged(run, recipe, tmp_path):
    code, out, err = run("train", "sft", recipe, "--set", "method.type=lora", "--set", "method.rank=2")
    assert code == 0, err
    code, out, err = run("train", "merge", tmp_path / "run" / "model", "--out", tmp_path / "merged", "--json")
    assert code == 0, err
    assert json.loads(out)["model"] == str(tmp_path / "merged")
    assert (tmp_path / "merged" / "model.safetensors").is_file()
    code, _, err = run("train", "merge", tmp_path / "run" / "model", "--out", tmp_path / "merged")
    assert code == 2
    assert "pass --force" in err


def test_an_adapter_is_replayed_with_the_template_it_was_trained_with(run, recipe, tmp_path):
    template = tmp_path / "other.jinja"
    own = (tmp_path / "tiny" / "chat_template.jinja").read_text()
    template.write_text("{# other #}" + own)
    changes = ["method.type=lora", "method.rank=2", f"data.template={template}"]
    code, _, err = run("train", "sft", recipe, *(word for pair in changes for word in ("--set", pair)))
    assert code == 0, err
    adapter = str(tmp_path / "run" / "model")
    options = CandidateOptions("transformers", str(tmp_path / "tiny"), adapter=adapter)
    unread = cast(GoldenSet, None)  # only a scripted candidate looks at the golden set
    engine, renderer = open_candidate(options, unread)
    try:
        assert renderer is not None
        assert renderer.template.text == template.read_text()
    finally:
        asyncio.run(engine.close())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--set", "optimiser.lr=1"], "optimiser: unknown field; did you mean optimizer?"),
        (["--set", "data.train=none.jsonl"], "none.jsonl: no such file"),
        (["--resume"], "no run at"),
        (["--set", "max_steps"], "expected field.name=value"),
    ],
)
def test_a_mistake_ends_with_code_2_and_the_fix(run, recipe, arguments, message):
    code, _, err = run("train", "sft", recipe, *arguments)
    assert code == 2
    assert message in err


def test_a_bad_record_is_named_with_file_and_line(run, recipe, corpus):
    corpus.write_text(corpus.read_text() + '{"id": "x"}\n')
    code, _, err = run("train", "sft", recipe)
    assert code == 2
    assert "train.jsonl:7" in err


def test_a_missing_corpus_for_a_tiny_model_is_named(run, tmp_path):
    code, _, err = run("train", "tiny", "--set", f"out={tmp_path / 't'}", "--set", "corpus=[none.jsonl]")
    assert code == 2
    assert "none.jsonl: no such file" in err


def test_a_tiny_model_does_not_learn_from_nothing(run, tmp_path):
    (tmp_path / "empty.jsonl").write_text("")
    options = ("--set", f"out={tmp_path / 't'}", "--set", f"corpus=[{tmp_path / 'empty.jsonl'}]")
    code, _, err = run("train", "tiny", *options)
    assert (code, err.count("\n")) == (2, 1)
    assert "corpus: found no record in any file" in err
    assert not (tmp_path / "t").exists()


def test_the_shipped_base_model_is_copied_once(run, tmp_path):
    out = tmp_path / "base"
    code, printed, _ = run("train", "base", "--out", out, "--json")
    assert code == 0
    shipped = {file.name: file.read_bytes() for file in base_model_dir().iterdir()}
    assert {file.name: file.read_bytes() for file in out.iterdir()} == shipped
    assert json.loads(printed) == {"model": str(out), "bytes": sum(map(len, shipped.values()))}
    (out / "mine.txt").write_text("keep")
    code, _, err = run("train", "base", "--out", out)
    assert (code, "--force" in err) == (2, True)
    assert (out / "mine.txt").exists()
    assert run("train", "base", "--out", out, "--force")[0] == 0
    assert not (out / "mine.txt").exists()
