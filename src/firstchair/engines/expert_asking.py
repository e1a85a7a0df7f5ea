"""How one expert is asked at one server: its limits, and the parameters that its model refuses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from firstchair.catalog.backends import Backend
from firstchair.catalog.experts import Expert
from firstchair.core.globs import glob_match
from firstchair.engines.base import Sampling

REASONING_TOKENS = 16_384
"""Least limit for a model whose hidden reasoning counts against it; with less it may say nothing at all."""
HIDDEN_REASONING = ("gpt-5*",)
"""Families that reason out of sight and take no temperature but 1."""
NO_TEMPERATURE = ("claude-*-4-7*", "claude-*-4-8*")
"""Families that answer 400 to a temperature."""

OPTIONAL_FIELDS = frozenset({"temperature", "top_p", "top_k", "seed"})
"""What may be left out of a request once a server has refused it by name."""


@dataclass(frozen=True)
class Asking:
    """What a request for an expert holds beside the question."""

    sampling: Sampling
    unsent: frozenset[str]
    """Fields of the body that must not be there."""
    extra_body: Mapping[str, Any] = field(default_factory=dict)


def asking(expert: Expert, backend: Backend) -> Asking:
    """How ``expert`` is asked at ``backend``."""
    family = backend.model.rpartition("/")[2].lower().replace(".", "-")
    temperature, limit = expert.temperature, expert.max_tokens
    if _is_one_of(family, HIDDEN_REASONING):
        temperature, limit = 1.0, max(limit, REASONING_TOKENS)
    elif _is_one_of(family, NO_TEMPERATURE):
        temperature = None
    # A top_p of 1 says nothing, and some models refuse even that.
    unsent = {"top_p"} if temperature is not None else {"top_p", "temperature"}
    extra: dict[str, Any] = {}
    if backend.provider == "openai":
        # OpenAI's newer models refuse the old name of the limit.
        extra = {"max_tokens": None, "max_completion_tokens": limit}
    sampling = Sampling(max_new_tokens=limit, temperature=0.0 if temperature is None else temperature)
    return Asking(sampling, frozenset(unsent), extra)


def _is_one_of(family: str, patterns: tuple[str, ...]) -> bool:
    return any(glob_match(pattern, family) for pattern in patterns)
