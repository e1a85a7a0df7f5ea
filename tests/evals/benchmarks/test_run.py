"""What can be told without Inspect: the catalogue, the draw, local records, and every refusal."""

import json
import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from firstchair.core.errors import ConfigError, DataError, IntegrityError
from firstchair.evals.benchmarks.catalogue import BENCHMARKS, benchmark, subset_of
from firstchair.evals.benchmarks.records import FIELDS, read_records
from firstchair.evals.benchmarks.run import TRIES, BenchOptions, Endpoint, run_benchmark
from firstchair.evals.benchmarks.setup import Setup, begin, refuse_another
from firstchair.evals.benchmarks.tasks import BUILD, draw
from firstchair.rewards.answers.answer_judge import AnswerJudge

STANDINS = Path(__file__).parents[2] / "data" / "benchmarks"
ENDPOINT = Endpoint("gpt-5", "http://127.0.0.1:9/v1")


def test_every_benchmark_has_a_task_fields_and_a_stand_in():
    assert set(BENCHMARKS) == set(BUILD) == set(FIELDS) == {path.stem for path in STANDINS.glob("*.jsonl")}
    assert all(len(read_records(name, STANDINS / f"{name}.jsonl")) >= 2 for name in BENCHMARKS)


def test_a_call_is_tried_six_times_as_a_judge_of_answers_is():
    assert AnswerJudge.model_fields["tries"].default == TRIES == 6


def test_names_that_do_not_exist_are_answered_with_those_that_do():
    with pytest.raises(ConfigError, match="found the benchmark 'mmlu'; expected one of gaia, mmlu_pro"):
        benchmark("mmlu")
    with pytest.raises(ConfigError, match="--subset: found 'bank'; tau2 has airline, retail, telecom, banking"):
        subset_of(benchmark("tau2"), "bank")
    assert subset_of(benchmark("tau2"), "") == "airline"


def test_a_larger_draw_holds_the_smaller_one():
    small, large = draw(100, 10, 0), draw(100, 30, 0)
    assert (len(small), len(large), small) == (10, 30, sorted(small))
    assert set(small) < set(large)
    assert draw(100, 10, 1) != small
    assert draw(5, None, 0) == draw(5, 99, 0) == [0, 1, 2, 3, 4]


def test_a_record_without_a_field_is_named_with_its_line(tmp_path: Path):
    lines = (STANDINS / "frames.jsonl").read_text().splitlines()
    broken = json.loads(lines[1])
    del broken["Answer"]
    path = tmp_path / "mine.jsonl"
    path.write_text(f"{lines[0]}\n{json.dumps(broken)}\n")
    with pytest.raises(DataError, match=r"mine\.jsonl:2: Answer: not in the record; a record of frames has Prompt"):
        read_records("frames", path)
    path.write_text("")
    with pytest.raises(DataError, match="no record in it"):
        read_records("frames", path)


def refused(name: str, out: Path, **fields: object) -> str:
    options = BenchOptions(endpoint=ENDPOINT, **fields)  # type: ignore[arg-type]
    with pytest.raises(ConfigError) as caught:
        run_benchmark(benchmark(name), options, out)
    assert not (out / "rows.jsonl").exists()
    return str(caught.value)


def test_what_is_missing_is_named_before_anything_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    assert refused("hle", tmp_path) == "--helper: hle needs a model that grades the answers; name one"
    assert refused("tau2", tmp_path) == "--helper: tau2 needs a model that plays the customer; name one"
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "docker is not installed" in refused("gaia", tmp_path / "new")
    down = tmp_path / "docker"
    down.write_text("#!/bin/sh\nexit 1\n")
    down.chmod(0o755)
    assert "docker's daemon does not run" in refused("gaia", tmp_path / "new")
    secret = Endpoint("judge", "http://user:secret@127.0.0.1/v1")
    found = refused("frames", tmp_path / "new", helper=secret)
    assert found.startswith("--helper-base-url: found a user or a query in it")
    assert "secret" not in found


def test_a_run_is_never_overwritten(tmp_path: Path):
    (tmp_path / "rows.jsonl").parent.joinpath("summary.json").write_text("{}")
    assert "a run is never overwritten" in refused("mmlu_pro", tmp_path)


SETUP = Setup(
    benchmark="frames",
    dataset="google/frames-benchmark",
    revision=BENCHMARKS["frames"].revision,
    subset="all",
    records="",
    records_sha256="",
    model="gpt-5",
    base_url="http://127.0.0.1:9/v1",
    helper="judge",
    helper_base_url="",
    n=10,
    draw_seed=0,
    temperature=None,
    max_tokens=None,
    sandbox="",
    versions={"inspect_ai": "1", "inspect_evals": "2"},
)


def test_a_run_goes_on_as_what_it_began_and_as_nothing_else(tmp_path: Path):
    begin(tmp_path, SETUP)
    refuse_another(tmp_path, SETUP)
    refuse_another(tmp_path, replace(SETUP, base_url="http://127.0.0.1:10/v1"))  # the same model, moved
    other = replace(SETUP, revision="0" * 40, n=None, versions={"inspect_ai": "1", "inspect_evals": "3"})
    with pytest.raises(ConfigError) as caught:
        refuse_another(tmp_path, other)
    assert str(caught.value).splitlines()[1:] == [
        "  n: was 10, is None",
        f"  revision: was '58d9fb6330f3ab1316d1eca12e5e8ef23dcc22ef', is '{'0' * 40}'",
        "  versions.inspect_evals: was '2', is '3'",
    ]
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(IntegrityError, match=r"run\.json: damaged"):
        refuse_another(tmp_path, SETUP)


def test_where_no_run_began_there_is_nothing_to_resume(tmp_path: Path):
    options = BenchOptions(endpoint=ENDPOINT)
    with pytest.raises(ConfigError, match="--resume: no run at"):
        run_benchmark(benchmark("mmlu_pro"), options, tmp_path, resume=True)


def test_a_data_set_that_is_fetched_by_our_own_task_is_fetched_at_a_commit():
    ours = [one for one in BENCHMARKS.values() if one.name in ("frames", "supergpqa")]
    assert all(re.fullmatch("[0-9a-f]{40}", one.revision) for one in ours)


def test_without_inspect_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("firstchair.core.extras.find_spec", lambda _: None)
    assert "pip install 'firstchair[inspect]'" in refused("mmlu_pro", tmp_path / "new")
    assert not (tmp_path / "new").exists()
