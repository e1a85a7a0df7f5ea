import json
import random

import numpy as np
import pytest
import torch
from safetensors import SafetensorError

from firstchair.core.errors import IntegrityError, RunFailed
from firstchair.core.hashing import sha256_file
from firstchair.train import checkpoints
from firstchair.train.checkpoints import (
    Checkpoint,
    Position,
    list_checkpoints,
    load_checkpoint,
    random_state,
    restore_random_state,
    save_checkpoint,
    sweep,
)


def checkpoint(step=3) -> Checkpoint:
    position = Position(
        step=step,
        examples=step * 4,
        tokens=step * 100,
        metrics_bytes=0,
        recipe_sha256="r",
        template_hash="t",
        objective="sft",
    )
    optimizer = [{"names": ["w"], "state": {"state": {0: {"exp_avg": torch.ones(2)}}, "param_groups": []}}]
    return Checkpoint(position, {"w": torch.arange(2.0)}, optimizer, [random_state()])


def test_what_is_saved_comes_back(tmp_path):
    path = save_checkpoint(tmp_path, checkpoint(), keep=2)
    back = load_checkpoint(path)
    assert back.position == checkpoint().position
    assert back.weights["w"].tolist() == [0.0, 1.0]
    assert back.optimizer[0]["names"] == ["w"]
    assert back.optimizer[0]["state"]["state"][0]["exp_avg"].tolist() == [1.0, 1.0]


def test_random_generators_go_on_where_they_were():
    state = random_state()
    first = (random.random(), np.random.rand(), torch.rand(1).item())
    restore_random_state(state)
    assert (random.random(), np.random.rand(), torch.rand(1).item()) == first


def test_random_generators_survive_the_disk(tmp_path):
    path = save_checkpoint(tmp_path, checkpoint(), keep=1)
    first = (random.random(), np.random.rand(), torch.rand(1).item())
    restore_random_state(load_checkpoint(path).random_states[0])
    assert (random.random(), np.random.rand(), torch.rand(1).item()) == first


def test_only_the_newest_are_kept(tmp_path):
    for step in (1, 2, 3, 10):
        save_checkpoint(tmp_path, checkpoint(step), keep=2)
    assert [path.name for path in list_checkpoints(tmp_path)] == ["step-00000003", "step-00000010"]


def test_leftovers_of_a_killed_save_are_no_checkpoints_and_are_swept(tmp_path):
    save_checkpoint(tmp_path, checkpoint(1), keep=2)
    (tmp_path / ".step-00000002.abc").mkdir()
    (tmp_path / ".step-00000001.old").mkdir()
    assert [path.name for path in list_checkpoints(tmp_path)] == ["step-00000001"]
    sweep(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000001"]


def damage_byte(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


@pytest.mark.parametrize("file", ["weights.safetensors", "state.pt"])
def test_one_changed_byte_is_found(tmp_path, file):
    path = save_checkpoint(tmp_path, checkpoint(), keep=1)
    damage_byte(path / file)
    with pytest.raises(IntegrityError, match=f"{file}: bytes differ from those saved"):
        load_checkpoint(path)


@pytest.mark.parametrize("file", ["weights.safetensors", "state.pt", "checkpoint.json"])
def test_a_missing_file_is_named(tmp_path, file):
    path = save_checkpoint(tmp_path, checkpoint(), keep=1)
    (path / file).unlink()
    with pytest.raises(IntegrityError, match=f"{file}: missing"):
        load_checkpoint(path)


@pytest.mark.parametrize("missing", ["optimizer", "random", "source"])
def test_a_state_that_lacks_a_part_is_refused(tmp_path, missing):
    path = save_checkpoint(tmp_path, checkpoint(), keep=1)
    state = torch.load(path / "state.pt", weights_only=True)
    torch.save({name: value for name, value in state.items() if name != missing}, path / "state.pt")
    marker = json.loads((path / "checkpoint.json").read_text())
    marker["files"]["state.pt"] = sha256_file(path / "state.pt")
    (path / "checkpoint.json").write_text(json.dumps(marker))
    with pytest.raises(IntegrityError, match=f"not a checkpoint of this version: '{missing}'"):
        load_checkpoint(path)


@pytest.mark.parametrize("file", ["weights.safetensors", "state.pt"])
def test_a_file_that_is_replaced_between_its_check_and_its_use_is_refused_though_its_bytes_are_equal(
    tmp_path, monkeypatch, file
):
    path = save_checkpoint(tmp_path, checkpoint(), keep=1)

    def replacing(checked):
        found = sha256_file(checked)
        if checked.name == file:
            checked.with_name("copy").write_bytes(checked.read_bytes())
            checked.with_name("copy").replace(checked)
        return found

    monkeypatch.setattr(checkpoints, "sha256_file", replacing)
    with pytest.raises(IntegrityError, match=f"{file}: replaced while it was read"):
        load_checkpoint(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "other"}, "not a firstchair-checkpoint marker"),
        ({"version": 2}, "version 2; this program reads 1"),
        ({"step": -1}, "step is -1; expected a count"),
        ({"step": True}, "step is True; expected a count"),
        ({"examples": "12"}, "examples is '12'; expected a count"),
        ({"recipe_sha256": None}, "recipe_sha256 is None; expected text"),
        ({"files": []}, "lists no files"),
    ],
)
def test_a_foreign_or_malformed_marker_is_refused(tmp_path, change, message):
    path = save_checkpoint(tmp_path, checkpoint(), keep=1)
    marker = json.loads((path / "checkpoint.json").read_text())
    (path / "checkpoint.json").write_text(json.dumps({**marker, **change}))
    with pytest.raises(IntegrityError, match=message):
        load_checkpoint(path)


@pytest.mark.parametrize("text", ["", "{", "[]", "\x00"])
def test_a_marker_that_is_no_object_is_refused(tmp_path, text):
    path = save_checkpoint(tmp_path, checkpoint(), keep=1)
    (path / "checkpoint.json").write_text(text)
    with pytest.raises(IntegrityError, match=r"checkpoint\.json"):
        load_checkpoint(path)


FULL = "No space left on device"


@pytest.mark.parametrize("error", [OSError(28, FULL), SafetensorError(FULL)])
def test_a_full_disk_leaves_the_older_checkpoints(tmp_path, monkeypatch, error):
    save_checkpoint(tmp_path, checkpoint(1), keep=1)

    def full(*arguments, **options):
        raise error

    monkeypatch.setattr(checkpoints.safetensors.torch, "save_file", full)
    with pytest.raises(RunFailed, match=rf"{FULL}.*free space"):
        save_checkpoint(tmp_path, checkpoint(2), keep=1)
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000001"]
    load_checkpoint(tmp_path / "step-00000001")
