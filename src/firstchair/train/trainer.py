"""The one training loop. What is trained for is the objective's business, what is fed is the source's.

source ──feed──► cut into micro-batches ──► objective.prepare
                                                    │
          log, evaluate, save ◄── optimizer step ◄── sum of gradients of objective.loss / weight of the step
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from firstchair.core.errors import IntegrityError, RunFailed
from firstchair.core.progress import Progress
from firstchair.train.batching import MicroBatch, collate, cut_step
from firstchair.train.checkpoints import (
    Checkpoint,
    Position,
    random_state,
    restore_random_state,
    save_checkpoint,
)
from firstchair.train.config import BatchLayout, Schedule
from firstchair.train.dist import ALONE, World
from firstchair.train.evaluation import Evaluation
from firstchair.train.examples import Example
from firstchair.train.interrupts import stop_on_signals
from firstchair.train.metrics import MetricLog
from firstchair.train.objective import Objective, largest
from firstchair.train.optimizers import Optimizers
from firstchair.train.schedule import factor
from firstchair.train.scorer import TokenScorer
from firstchair.train.sources import Feed, Source
from firstchair.train.trackers import TrackerSink


@dataclass(frozen=True, slots=True)
class LoopSettings:
    """The numbers that steer the loop."""

    schedule: Schedule
    clip_norm: float | None
    micro_tokens: int
    layout: BatchLayout
    recipe_sha256: str
    template_hash: str
    eval_every: int | None = None
    save_every: int | None = None
    keep: int = 2


@dataclass(frozen=True, slots=True)
class Outputs:
    """Where a run writes."""

    checkpoints: Path
    metrics: MetricLog | None
    """``None`` in every process but the first."""
    timings: MetricLog | None = None
    trackers: tuple[TrackerSink, ...] = ()


@dataclass(frozen=True, slots=True)
class StepSums:
    """What the micro-batches of one step add up to, over all processes."""

    loss: float
    rows: int
    tokens: int
    micro_batches: int
    weight: float
    metrics: Mapping[str, float]


class Trainer:
    """A run in memory: the loop, and the few numbers that say where it stands."""

    def __init__(
        self,
        scorer: TokenScorer,
        optimizers: Optimizers,
        objective: Objective,
        source: Source,
        outputs: Outputs,
        settings: LoopSettings,
        *,
        evaluation: Evaluation | None = None,
        world: World = ALONE,
    ):
        self.scorer, self.optimizers, self.objective, self.source = scorer, optimizers, objective, source
        self.outputs, self.settings, self.evaluation, self.world = outputs, settings, evaluation, world
        self.step, self.cursor, self.tokens = 0, 0, 0
        self.gradient_seen = False

    def run(self, progress: Progress) -> None:
        """Train to the last step. Ctrl-C ends the step, saves a checkpoint and raises ``KeyboardInterrupt``."""
        with stop_on_signals() as stop:
            if self.step == 0:
                self.evaluate()
            while self.step < self.source.total_steps:
                before = self.step
                self.take(progress)
                if self.is_due(self.settings.eval_every, before):
                    self.evaluate()
                stopping = self.world.any(stop.requested)
                if stopping or self.is_due(self.settings.save_every, before):
                    self.save()
                if stopping:
                    raise KeyboardInterrupt
        if not self.gradient_seen and self.step:
            raise RunFailed(
                "no step had a gradient, so the model is its base unchanged; check the data and the method"
            )

    def take(self, progress: Progress) -> None:
        """Ask the source once and train on what it gives. The batches of all its steps are completed before the first
        of them changes a weight.
        """
        started = time.perf_counter()
        feed = self.source.feed(self.cursor)
        self.cursor = feed.cursor
        for batches in [self.micro_batches(examples) for examples in feed.steps]:
            sums = self.accumulate(batches)
            grad_norm = self.update(sums)
            self.step += 1
            self.record(sums, grad_norm, feed, time.perf_counter() - started, progress)
            started = time.perf_counter()

    def is_due(self, every: int | None, before: int) -> bool:
        """Whether something done every so many steps, and always at the last one, is due after step ``before``."""
        return self.step == self.source.total_steps or (every is not None and self.step // every > before // every)

    def micro_batches(self, examples: Sequence[Example]) -> Sequence[MicroBatch]:
        """This process's micro-batches of the step, completed by the objective."""
        cut = cut_step(examples, self.settings.micro_tokens, layout=self.settings.layout, parts=self.world.size)
        own = [collate(members, layout=self.settings.layout) for members in self.world.share(cut)]
        with torch.no_grad():
            return self.objective.prepare([batch.to(self.scorer.device) for batch in own], self.scorer)

    def accumulate(self, batches: Sequence[MicroBatch]) -> StepSums:
        """Add up gradients and metrics; every numerator is divided by the weight of the whole step."""
        own_weight = sum(self.objective.weight(batch) for batch in batches)
        (weight,) = self.world.add([own_weight])
        loss = 0.0
        metrics: dict[str, list[float]] = {}
        maxima: dict[str, float] = {}
        for batch in batches:
            terms = self.objective.loss(self.scorer, batch)
            # Without any weight the numerator is 0 and stays so; the backward pass still runs.
            torch.autograd.backward(terms.numerator / (weight or 1.0))
            loss += float(terms.numerator.detach())
            for name, (total, count) in terms.sums.items():
                pair = metrics.setdefault(name, [0.0, 0.0])
                pair[0] += float(total)
                pair[1] += count
            maxima = largest([maxima, terms.maxima])
        self.world.add_gradients(self.optimizers.parameters)
        return self._over_ranks(batches, loss, weight, metrics, maxima)

    def _over_ranks(
        self,
        batches: Sequence[MicroBatch],
        loss: float,
        weight: float,
        metrics: Mapping[str, list[float]],
        maxima: Mapping[str, float],
    ) -> StepSums:
        names = sorted(metrics)
        real = [batch for batch in batches if not batch.is_filler]
        flat = [value for name in names for value in metrics[name]]
        rows, tokens, count, total, *pairs = self.world.add(
            [sum(len(b.lengths) for b in real), sum(b.tokens for b in real), len(real), loss, *flat]
        )
        means = {
            name: pairs[2 * index] / pairs[2 * index + 1] for index, name in enumerate(names) if pairs[2 * index + 1]
        }
        return StepSums(
            loss=total / (weight or 1.0),
            rows=int(rows),
            tokens=int(tokens),
            micro_batches=int(count),
            weight=weight,
            metrics={**means, **largest(self.world.gather(dict(maxima)))},
        )

    def update(self, sums: StepSums) -> float:
        """Clip, step, and return the norm of the gradient before clipping. Without any weight nothing changes: what
        the optimizer remembers of earlier steps must not move the weights.

        Raises ``RunFailed`` when loss or gradient is not finite: the weights are then still those of the step before.
        """
        parameters = self.optimizers.parameters
        bound = self.settings.clip_norm or math.inf
        grad_norm = float(nn.utils.clip_grad_norm_(parameters, bound))
        if not (math.isfinite(sums.loss) and math.isfinite(grad_norm)):
            raise RunFailed(
                f"step {self.step + 1}: loss {sums.loss}, gradient norm {grad_norm}; lower the learning rate, or "
                "train with precision=fp32"
            )
        if not sums.weight:
            self.optimizers.forget_gradients()
            return grad_norm
        self.gradient_seen = self.gradient_seen or grad_norm > 0.0
        self.optimizers.step(factor(self.step, self.source.total_steps, self.settings.schedule))
        return grad_norm

    def record(self, sums: StepSums, grad_norm: float, feed: Feed, seconds: float, progress: Progress) -> None:
        """One line of metrics, one of timings; the tokens to the progress bar."""
        self.tokens += sums.tokens
        rate = factor(self.step - 1, self.source.total_steps, self.settings.schedule)
        line = {
            "event": "step",
            "step": self.step,
            "epoch": self.source.epoch(self.cursor),
            "loss": sums.loss,
            **sums.metrics,
            **feed.metrics,
            "lr": self.optimizers.peak * rate,
            "grad_norm": grad_norm,
            "rows": sums.rows,
            "tokens": sums.tokens,
            "weight": sums.weight,
            "micro_batches": sums.micro_batches,
        }
        self._write(line)
        if self.outputs.timings is not None:
            self.outputs.timings.write(
                {"step": self.step, "seconds": seconds, "tokens_per_second": sums.tokens / seconds}
            )
        note = f"step {self.step}/{self.source.total_steps} loss {sums.loss:.4f}"
        if "reward" in feed.metrics:
            note += f" reward {feed.metrics['reward']:.3f}"
        progress.advance(sums.tokens if feed.work is None else feed.work // len(feed.steps), note=note)

    def evaluate(self) -> None:
        """Measure and log what is held out, when there is anything."""
        if self.evaluation is not None:
            self._write({"event": "eval", "step": self.step, **self.evaluation(self.scorer, self.world)})

    def _write(self, line: Mapping[str, object]) -> None:
        if self.outputs.metrics is not None:
            self.outputs.metrics.write(line)
        numbers = {
            f"{line['event']}/{name}": float(value)
            for name, value in line.items()
            if isinstance(value, int | float) and name != "step"
        }
        for tracker in self.outputs.trackers:
            tracker.log(self.step, numbers)

    def save(self) -> None:
        """Write a checkpoint of this moment; the log is made durable first."""
        states = self.world.gather(random_state())
        if self.outputs.metrics is not None:
            position = Position(
                step=self.step,
                examples=self.cursor,
                tokens=self.tokens,
                metrics_bytes=self.outputs.metrics.sync(),
                recipe_sha256=self.settings.recipe_sha256,
                template_hash=self.settings.template_hash,
                objective=self.objective.name,
            )
            weights = {name: value.detach().cpu().contiguous() for name, value in self._trained()}
            checkpoint = Checkpoint(position, weights, self.optimizers.state_dict(), states, self.source.state())
            save_checkpoint(self.outputs.checkpoints, checkpoint, keep=self.settings.keep)
        self.world.wait()

    def restore(self, checkpoint: Checkpoint) -> None:
        """Continue from ``checkpoint``; raises ``IntegrityError`` when it does not fit this run. All or nothing."""
        position = checkpoint.position
        if position.objective != self.objective.name:
            raise IntegrityError(f"it trains {position.objective!r}; this run trains {self.objective.name!r}")
        trained = dict(self._trained())
        shapes = {name: tuple(value.shape) for name, value in trained.items()}
        saved = {name: tuple(value.shape) for name, value in checkpoint.weights.items()}
        if shapes != saved:
            odd = sorted(set(shapes.items()) ^ set(saved.items()))[0]
            raise IntegrityError(f"its weights are not those of this run; first difference: {odd}")
        if len(checkpoint.random_states) != self.world.size:
            raise IntegrityError(
                f"written by {len(checkpoint.random_states)} processes, this run has {self.world.size}; use as many"
            )
        self.optimizers.load_state_dict(checkpoint.optimizer)
        # Last of what may refuse: it cuts the logs of rollouts back to this checkpoint.
        self.source.restore(checkpoint.source)
        with torch.no_grad():
            for name, value in trained.items():
                value.copy_(checkpoint.weights[name])
        restore_random_state(checkpoint.random_states[self.world.rank])
        self.step, self.cursor, self.tokens = position.step, position.examples, position.tokens
        self.gradient_seen = position.step > 0

    def _trained(self) -> list[tuple[str, nn.Parameter]]:
        return [(name, p) for name, p in self.scorer.model.named_parameters() if p.requires_grad]
