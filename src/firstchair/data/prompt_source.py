"""Which prompts a training step plays: a new order every epoch, and a cursor that is all there is to resume."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from firstchair.core.errors import DataError, IntegrityError
from firstchair.core.jsontext import content_id
from firstchair.rollout.episodes import Task

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Item = TypeVar("Item", bound=Task)


class EpochOrder:
    """``count`` rows in a new random order every epoch, one endless sequence of places.

    The order of epoch e is a function of (seed, e) alone, and every row stands once in each epoch.
    """

    def __init__(self, count: int, seed: int):
        self.count, self.seed = count, seed
        self._epoch: tuple[int, NDArray[np.int64]] | None = None

    def row(self, place: int) -> int:
        """Which row stands at ``place``."""
        import numpy as np  # a start of the command line does without

        epoch, offset = divmod(place, self.count)
        if self._epoch is None or self._epoch[0] != epoch:
            self._epoch = (epoch, np.random.default_rng((self.seed, epoch)).permutation(self.count))
        return int(self._epoch[1][offset])


class PromptSource(Generic[Item]):
    """Prompts (or other tasks) for step after step. The caller keeps the cursor: how many were taken so far.

    A step that needs more than it first took (groups without variance are left out and replaced) takes on from where
    it was; whatever the sizes, nothing is skipped or comes twice in an epoch. An asynchronous loop saves the cursor
    of the step that it has trained on, not of the one that it is sampling for.
    """

    def __init__(self, prompts: Sequence[Item], *, seed: int, source: str = ""):
        """``source``: hash of the file that they were read from, where there is one. Raises ``DataError`` for no
        prompt, and for two with one id.
        """
        ids = [prompt.task_id for prompt in prompts]
        if not ids:
            raise DataError("no prompt to train on", field="prompts")
        if len(set(ids)) != len(ids):
            twice = next(task_id for task_id in ids if ids.count(task_id) > 1)
            raise DataError(f"{twice!r} comes twice; every prompt needs its own id", field="prompts")
        self._prompts, self._order = prompts, EpochOrder(len(ids), seed)
        self._identity = {"seed": seed, "prompts": content_id([source, ids])}

    def take(self, cursor: int, count: int) -> list[Item]:
        """The ``count`` prompts from ``cursor`` on, over the end of an epoch where need be."""
        return [self._prompts[self._order.row(place)] for place in range(cursor, cursor + count)]

    def epoch(self, cursor: int) -> float:
        """Prompts taken / prompts."""
        return cursor / self._order.count

    def state(self, cursor: int) -> dict[str, Any]:
        """What a checkpoint keeps (JSON): the cursor, and which prompts in which order it counts."""
        return {"cursor": cursor, **self._identity}

    def resume(self, state: Any) -> int:
        """The cursor in a saved state. Raises ``IntegrityError`` when it is none of these prompts and this seed."""
        if not isinstance(state, dict) or state.keys() != {"cursor", *self._identity}:
            raise IntegrityError(f"found {state!r:.80}; expected a cursor of prompts", field="state")
        for name, value in self._identity.items():
            if state[name] != value:
                raise IntegrityError(
                    f"saved with {state[name]!r}, this run has {value!r}; resume with the same prompts and seed",
                    field=name,
                )
        cursor = state["cursor"]
        if type(cursor) is not int or cursor < 0:
            raise IntegrityError(f"found {cursor!r}; expected how many prompts were taken, 0 or more", field="cursor")
        return cursor
