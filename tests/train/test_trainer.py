from dataclasses import replace

import pytest
import torch
from tests.train.conftest import random_examples

from firstchair.core.errors import IntegrityError, RunFailed
from firstchair.core.progress import Silent
from firstchair.train.checkpoints import list_checkpoints, load_checkpoint
from firstchair.train.config import Muon, Schedule
from firstchair.train.metrics import MetricLog, read_metrics
from firstchair.train.objective import LossTerms, SftObjective
from firstchair.train.optimizers import build_optimizers
from firstchair.train.sources import EpochSource, Feed
from firstchair.train.trainer import LoopSettings, Outputs, Trainer


class Scripted:
    """A source that gives what it was handed, feed by feed, and remembers a word."""

    def __init__(self, feeds, total_steps, word=b""):
        self.feeds, self.total_steps, self.word = feeds, total_steps, word
        self.total_work, self.unit = 1, "tok"

    def feed(self, cursor):
        return Feed(self.feeds[cursor], cursor + 1, {"reward": float(cursor)})

    def epoch(self, cursor):
        return float(cursor)

    def state(self):
        return self.word

    def restore(self, state):
        self.word = state


class Watched(SftObjective):
    """Notes the weights that ``prepare`` sees, and reports a maximum."""

    def prepare(self, step, scorer):
        self.seen.append(next(scorer.parameters()).detach().clone())
        return step

    def loss(self, scorer, batch):
        terms = super().loss(scorer, batch)
        return LossTerms(terms.numerator, terms.sums, {"longest": float(max(batch.lengths))})


def trainer_of(scorer, source, path, *, objective=None, save_every=None, micro_tokens=64):
    settings = LoopSettings(
        schedule=Schedule(kind="constant", warmup_ratio=0.0),
        clip_norm=1.0,
        micro_tokens=micro_tokens,
        layout="packed",
        recipe_sha256="r",
        template_hash="t",
        save_every=save_every,
    )
    outputs = Outputs(path / "checkpoints", MetricLog(path / "metrics.jsonl"))
    optimizers = build_optimizers(scorer.model, Muon(lr=1e-2))
    return Trainer(scorer, optimizers, objective or SftObjective(), source, outputs, settings)


def test_steps_on_one_batch_are_all_prepared_before_the_first_changes_a_weight(scorer, tmp_path):
    objective = Watched()
    object.__setattr__(objective, "seen", [])
    first, second = random_examples([9, 7]), random_examples([8, 12])
    trainer = trainer_of(scorer, Scripted([[first, second], [first]], 3), tmp_path, objective=objective)
    trainer.run(Silent())
    torch.testing.assert_close(objective.seen[0], objective.seen[1], rtol=0, atol=0)
    assert not torch.equal(objective.seen[1], objective.seen[2])
    lines = read_metrics(tmp_path / "metrics.jsonl")
    assert [line["step"] for line in lines] == [1, 2, 3]
    assert [line["reward"] for line in lines] == [0.0, 0.0, 1.0]
    assert [line["longest"] for line in lines] == [9.0, 12.0, 9.0]


def test_the_largest_is_taken_over_micro_batches(scorer, tmp_path):
    objective = Watched()
    object.__setattr__(objective, "seen", [])
    source = Scripted([[random_examples([9, 14, 5])]], 1)
    trainer_of(scorer, source, tmp_path, objective=objective, micro_tokens=14).run(Silent())
    (line,) = read_metrics(tmp_path / "metrics.jsonl")
    assert line["micro_batches"] == 2
    assert line["longest"] == 14.0


def test_a_step_without_examples_moves_nothing_though_the_optimizer_has_momentum(scorer, tmp_path):
    rows = random_examples([9, 7])
    trainer = trainer_of(scorer, Scripted([[rows], [[]], [rows]], 3), tmp_path)
    trainer.take(Silent())
    before = [parameter.detach().clone() for parameter in scorer.parameters()]
    trainer.take(Silent())
    for parameter, old in zip(scorer.parameters(), before, strict=True):
        torch.testing.assert_close(parameter.detach(), old, rtol=0, atol=0)
    trainer.take(Silent())
    assert not torch.equal(next(scorer.parameters()).detach(), before[0])
    assert trainer.step == 3


def test_a_run_of_nothing_but_empty_steps_fails(scorer, tmp_path):
    with pytest.raises(RunFailed, match="no step had a gradient"):
        trainer_of(scorer, Scripted([[[]], [[]]], 2), tmp_path).run(Silent())


def test_what_is_due_every_so_many_steps_is_not_missed_by_steps_that_come_together(scorer, tmp_path):
    rows = random_examples([9, 7])
    trainer = trainer_of(scorer, Scripted([[rows, rows, rows]] * 3, 9), tmp_path, save_every=4)
    trainer.run(Silent())
    names = [path.name for path in list_checkpoints(tmp_path / "checkpoints")]
    assert names == ["step-00000006", "step-00000009"]


def test_a_checkpoint_of_another_run_is_refused_and_nothing_is_changed(scorer, tmp_path):
    rows = random_examples([9, 7])
    trainer_of(scorer, Scripted([[rows]], 1, b"word"), tmp_path).run(Silent())
    saved = load_checkpoint(tmp_path / "checkpoints" / "step-00000001")
    with torch.no_grad():
        scorer.model.lm_head.weight += 1.0
    before = scorer.model.lm_head.weight.detach().clone()
    trainer = trainer_of(scorer, Scripted([[rows]], 1), tmp_path)
    for change, message in (
        ({"position": replace(saved.position, objective="grpo")}, "it trains 'grpo'; this run trains 'sft'"),
        ({"weights": {}}, "its weights are not those of this run; first difference"),
        ({"optimizer": []}, "the optimizer state belongs to other parameters"),
        ({"random_states": []}, "written by 0 processes, this run has 1"),
    ):
        with pytest.raises(IntegrityError, match=message):
            trainer.restore(replace(saved, **change))
        assert torch.equal(scorer.model.lm_head.weight, before)
        assert (trainer.step, trainer.cursor, trainer.source.word) == (0, 0, b"")


def test_the_state_of_the_source_comes_back(scorer, tmp_path):
    rows = random_examples([9, 7])
    trainer_of(scorer, Scripted([[rows]], 1, b"\x00pending"), tmp_path).run(Silent())
    checkpoint = load_checkpoint(tmp_path / "checkpoints" / "step-00000001")
    assert checkpoint.source == b"\x00pending"
    again = trainer_of(scorer, Scripted([[rows]], 1), tmp_path)
    again.restore(checkpoint)
    assert again.source.word == b"\x00pending"
    of_a_file = EpochSource(rows, per_step=1, epochs=1, max_steps=None, seed=0)
    with pytest.raises(IntegrityError, match="source of rollouts"):
        trainer_of(scorer, of_a_file, tmp_path).restore(checkpoint)
