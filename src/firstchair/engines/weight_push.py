"""New weights into a running engine, and the proof that they answer.

    trainer ── checkpoint ──► push ──► engine
       └── log-probabilities of fixed ids ──► probe ◄── the engine's of the same ids

Engines keep old weights in ways that nothing reports: a tied head that was packed once, keys and values in a prefix
cache, an adapter path that is ignored. So every push is followed by a probe, which goes the way that generation goes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from firstchair.core.errors import ConfigError, RunFailed
from firstchair.engines.scoring import ScoreItem

if TYPE_CHECKING:
    from torch import Tensor

    from firstchair.engines.transformers_engine import TransformersEngine

TOLERANCE: Mapping[str, float] = MappingProxyType({"float32": 1e-3, "bfloat16": 0.5})
"""Largest difference in nats that an engine of this dtype shows against a float32 trainer when its weights are right.
Seen against vLLM on a CPU: 4e-5 in float32, 0.36 in bfloat16."""

NOISE = 1e-6
"""Nats. A smaller change of the trainer's own figures may vanish in an engine's rounding."""


@dataclass(frozen=True)
class Checkpoint:
    """Weights on disk: a model directory, or one with a PEFT adapter on top of it."""

    model_dir: Path
    adapter: Path | None = None


Weights = TypeVar("Weights")
"""What is pushed: a ``Checkpoint``, or tensors by name where trainer and engine share a process."""
_Weights = TypeVar("_Weights", contravariant=True)


class WeightPush(Protocol[_Weights]):
    """A running engine that takes new weights."""

    async def push(self, weights: _Weights, /) -> str:
        """Serve ``weights`` and return their revision, which generations carry from here on; of a checkpoint it is
        ``weights_revision``.

        Raises ``ConfigError`` for weights of the wrong kind or that cannot be read, and ``UpstreamError`` when a
        server does not take them.
        """
        ...

    async def score(self, items: Sequence[ScoreItem]) -> list[tuple[float, ...]]:
        """Log-probabilities in nats of each item's ``ids``, computed the way that replies are."""
        ...


class InProcessWeights:
    """The weights of a ``TransformersEngine``. Requests in flight finish on the old ones."""

    def __init__(self, engine: TransformersEngine):
        self._engine = engine

    async def push(self, checkpoint: Checkpoint) -> str:
        """Load the checkpoint; an adapter is merged."""
        return (await self._engine.reload(checkpoint.model_dir, checkpoint.adapter)).revision

    async def score(self, items: Sequence[ScoreItem]) -> list[tuple[float, ...]]:
        """Read, not sampled."""
        return await self._engine.score(items)


@dataclass(frozen=True)
class Pushed:
    """One proven push."""

    revision: str
    difference: float
    """Largest absolute difference in nats between the engine and the trainer, on the probe's ids."""
    change: float | None
    """The same between the engine's answers after this push and after the one before it; ``None`` for the first."""


@dataclass(frozen=True)
class _Known:
    """What the last push showed."""

    revision: str
    expected: list[tuple[float, ...]]
    answers: list[tuple[float, ...]]


class WeightsInMemory:
    """The weights of a ``TransformersEngine``, from a trainer in the same process: copied, nothing is written."""

    def __init__(self, engine: TransformersEngine):
        self._engine = engine

    async def push(self, weights: Mapping[str, Tensor], /) -> str:
        """Copy the tensors, by the names of the model's parameters."""
        return (await self._engine.take_weights(weights)).revision

    async def score(self, items: Sequence[ScoreItem]) -> list[tuple[float, ...]]:
        """Read, not sampled."""
        return await self._engine.score(items)


class ProvenPush(Generic[Weights]):
    """Pushes weights and refuses to go on with an engine that does not answer with them.

    ``items`` are fixed ids. For an engine with a prefix cache let a prompt be longer than one block (vLLM's has 16
    tokens on a GPU, 128 on a CPU), or a stale cache goes unseen. ``tolerance`` is in nats; see ``TOLERANCE``.
    Raises ``ConfigError`` when there are no items or the tolerance is not positive.
    """

    def __init__(self, weights: WeightPush[Weights], items: Sequence[ScoreItem], *, tolerance: float):
        if not items or not tolerance > 0:
            raise ConfigError(
                f"a probe: found {len(items)} items and tolerance {tolerance:g}; expected at least one item and a "
                "positive tolerance"
            )
        self._weights, self.items, self._tolerance = weights, tuple(items), tolerance
        self._known: _Known | None = None

    async def push(self, weights: Weights, expected: Sequence[Sequence[float]]) -> Pushed:
        """Push, then probe. ``expected[i]`` holds the trainer's log-probabilities of ``items[i].ids`` in nats, under
        ``weights``.

        Raises ``RunFailed`` naming the difference from the trainer and the change since the last push when the engine
        does not answer with these weights.
        """
        revision = await self._weights.push(weights)
        answers = await self._weights.score(self.items)
        known = _Known(revision, [tuple(row) for row in expected], answers)
        pushed = self._judge(known)
        self._known = known
        return pushed

    async def confirm(self) -> None:
        """Probe again. Raises ``RunFailed`` when the engine no longer answers as it did after the last push: it was
        started anew, say, or was given other weights by somebody else.
        """
        assert self._known is not None
        change = largest_difference(await self._weights.score(self.items), self._known.answers)
        if not change <= self._tolerance:
            raise RunFailed(
                "the engine no longer answers with the pushed weights: its log-probabilities of the probe changed by "
                f"up to {change:.2g} nats since the push (tolerance {self._tolerance:g}); was it started anew, or do "
                "others push weights to it?"
            )

    def _judge(self, new: _Known) -> Pushed:
        difference, old = largest_difference(new.answers, new.expected), self._known
        change = None if old is None else largest_difference(new.answers, old.answers)
        figures = f"its log-probabilities of the probe differ from the trainer's by up to {difference:.2g} nats"
        figures += f" (tolerance {self._tolerance:g})"
        if change is not None:
            figures += f", and from its own before the push by up to {change:.2g}"
        # Written so that a difference that is no number fails too.
        if not difference <= self._tolerance:
            stale = change is not None and change <= NOISE
            hint = "the old weights still answer" if stale else "other weights answer, or a part of them"
            raise RunFailed(f"the engine does not answer with the pushed weights: {figures}; {hint}")
        if old is not None and old.revision != new.revision and change == 0.0:
            moved = largest_difference(new.expected, old.expected)
            if moved > NOISE:
                raise RunFailed(
                    f"the old weights still answer: {figures}, while the trainer's own moved by up to {moved:.2g}"
                )
        return Pushed(new.revision, difference, change)


def largest_difference(left: Sequence[Sequence[float]], right: Sequence[Sequence[float]]) -> float:
    """Largest absolute difference over all entries; NaN if one entry is. Raises ``RunFailed`` for unequal shapes."""
    shapes = [[len(row) for row in rows] for rows in (left, right)]
    if shapes[0] != shapes[1]:
        raise RunFailed(
            f"log-probabilities of {shapes[0]} ids against {shapes[1]}; expected one for each id of the probe"
        )
    gaps = [abs(a - b) for rows in zip(left, right, strict=True) for a, b in zip(*rows, strict=True)]
    return next((gap for gap in gaps if gap != gap), max(gaps))
