"""The rows being decoded together: one forward pass gives each of them one more token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from firstchair.engines.jobs import Job
from firstchair.engines.kv_tree import Branch, path_to
from firstchair.engines.packed_attention import DecodePass, attending
from firstchair.engines.runner import Choice, choose
from firstchair.engines.sampling import Sampler
from firstchair.engines.weights import LoadedModel

FIRST_ROOM = 64
"""Own tokens for which a batch has room at first; it doubles when a row outgrows it."""


@dataclass(slots=True, eq=False)
class Row:
    """A job in the batch. Its prompt but the last token lies in the tree; the rest are its own tokens."""

    job: Job
    branch: Branch
    visible: int
    own: int = 0
    """Own tokens whose keys and values are in."""

    @property
    def next_token(self) -> int:
        """What the next forward pass reads: the last token sampled, at first the prompt's last."""
        return self.job.ids[-1] if self.job.ids else int(self.job.prompt[-1])

    @property
    def need(self) -> int:
        """Own tokens it may come to hold."""
        return self.job.limit


class RowBatch:
    """Rows in the order of their attention plan. Finished rows idle along until ``rebuild`` drops them."""

    def __init__(self, loaded: LoadedModel):
        self._loaded = loaded
        self.rows: list[Row] = []
        self._pass: DecodePass | None = None
        self._sampler = Sampler((), loaded.device)
        self._positions = torch.zeros(0, dtype=torch.long)
        self._tokens = torch.zeros(0, dtype=torch.long)

    @property
    def full(self) -> bool:
        """Whether some row needs more room than there is."""
        return self._pass is not None and self._pass.longest >= self._pass.room

    def rebuild(self, new: Sequence[Row] = ()) -> None:
        """Drop finished rows, take in ``new`` ones, and lay the batch out afresh."""
        old_place = {id(row): place for place, row in enumerate(self.rows)}
        rows = [row for row in self.rows if not row.job.finished] + list(new)
        if not rows:
            self.rows, self._pass = [], None
            return
        device = self._loaded.device
        longest = max(row.own for row in rows)
        room = min(max(FIRST_ROOM, 2 * longest), max(row.need for row in rows))
        paths = [path_to(row.branch, row.visible) for row in rows]
        fresh = DecodePass(paths, room, self._loaded.layers, device)
        self.rows = [rows[index] for index in fresh.plan.order]
        fresh.set_lengths([row.own for row in self.rows])
        if self._pass is not None:
            kept = [(place, old_place[id(row)]) for place, row in enumerate(self.rows) if id(row) in old_place]
            fresh.take_over(self._pass, kept)
        self._pass = fresh
        self._sampler = Sampler([row.job.request.sampling for row in self.rows], device)
        self._positions = torch.tensor([len(row.job.prompt) - 1 + row.own for row in self.rows], device=device)
        self._tokens = torch.tensor([row.next_token for row in self.rows], device=device)

    def forward(self) -> Tensor:
        """Read each row's next token; logits ``[rows, vocabulary]``."""
        attention = self._pass
        assert attention is not None, "no rows"
        attention.step()
        with attending(attention):
            logits: Tensor = self._loaded.model(
                input_ids=self._tokens[None], position_ids=self._positions[None], use_cache=False
            ).logits[0]
        attention.advance()
        self._positions += 1
        if self._loaded.context_window is not None:
            # A finished row idles on at the window's edge; models with a position table must not read past it.
            self._positions.clamp_(max=self._loaded.context_window - 1)
        for row in self.rows:
            row.own += 1
        return logits

    def choose(self, logits: Tensor) -> Choice:
        """Choose each row's next token."""
        return choose([row.job for row in self.rows], logits, self._sampler)

    def feed(self, tokens: Sequence[int]) -> None:
        """Set what the next forward pass reads."""
        self._tokens = torch.tensor(tokens, device=self._loaded.device)

    def own_layers(self, place: int) -> list[tuple[Tensor, Tensor]]:
        """Keys and values of a row's own tokens, ``[kv_heads, own, head_dim]`` per layer."""
        assert self._pass is not None, "no rows"
        return self._pass.own_layers(place, self.rows[place].own)
