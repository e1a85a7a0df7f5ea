import sys
from types import SimpleNamespace

import pytest

from firstchair.core.errors import ConfigError, IntegrityError
from firstchair.train.metrics import MetricLog, read_metrics, read_steps
from firstchair.train.trackers import open_trackers


def test_cutting_the_log_back_takes_away_later_lines_and_a_torn_one(tmp_path):
    path = tmp_path / "metrics.jsonl"
    log = MetricLog(path)
    log.write({"event": "step", "step": 1})
    kept = log.sync()
    log.write({"event": "step", "step": 2})
    log.close()
    with path.open("ab") as handle:
        handle.write(b'{"event": "st')
    again = MetricLog(path, keep_bytes=kept)
    again.write({"event": "step", "step": 2})
    again.close()
    assert [line["step"] for line in read_metrics(path)] == [1, 2]


def test_a_torn_last_line_is_not_read(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"event": "step", "step": 4}\n{"event"')
    assert read_steps(path) == 4


def test_a_log_shorter_than_its_checkpoint_says_is_refused(tmp_path):
    (tmp_path / "metrics.jsonl").write_bytes(b"{}\n")
    with pytest.raises(IntegrityError, match="3 bytes; it had 10 when the checkpoint was written"):
        MetricLog(tmp_path / "metrics.jsonl", keep_bytes=10)


@pytest.mark.parametrize("name", ["mlflow", "wandb", "trackio"])
def test_a_tracker_that_is_not_installed_is_named_with_its_command(name, monkeypatch):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigError, match=f"{name} is not installed; run `pip install {name}`"):
        open_trackers([name], project="p", name="n", config={})


def test_an_unknown_tracker_is_refused():
    with pytest.raises(ConfigError, match="'excel' is unknown; use mlflow, trackio, wandb"):
        open_trackers(["excel"], project="p", name="n", config={})


@pytest.mark.parametrize("name", ["wandb", "trackio"])
def test_wandb_and_trackio_get_the_numbers_of_every_step(name, monkeypatch):
    calls = []
    fake = SimpleNamespace(
        init=lambda **fields: calls.append(("init", fields)),
        log=lambda metrics, step: calls.append((step, metrics)),
        finish=lambda: calls.append("finish"),
    )
    monkeypatch.setitem(sys.modules, name, fake)
    (sink,) = open_trackers([name], project="p", name="n", config={"seed": 1})
    sink.log(3, {"step/loss": 1.5})
    sink.close()
    assert calls == [
        ("init", {"project": "p", "name": "n", "config": {"seed": 1}}),
        (3, {"step/loss": 1.5}),
        "finish",
    ]


def test_mlflow_gets_the_numbers_of_every_step(monkeypatch):
    calls = []
    fake = SimpleNamespace(
        set_experiment=lambda project: calls.append(project),
        start_run=lambda run_name: calls.append(run_name),
        log_dict=lambda config, name: calls.append((name, config)),
        log_metrics=lambda metrics, step: calls.append((step, metrics)),
        end_run=lambda: calls.append("end"),
    )
    monkeypatch.setitem(sys.modules, "mlflow", fake)
    (sink,) = open_trackers(["mlflow"], project="p", name="n", config={"seed": 1})
    sink.log(3, {"step/loss": 1.5})
    sink.close()
    assert calls == ["p", "n", ("recipe.json", {"seed": 1}), (3, {"step/loss": 1.5}), "end"]
