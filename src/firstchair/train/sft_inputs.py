"""What a run on records reads before it trains: renderer, tokens, model; each checked."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from firstchair.chat.renderer import Renderer
from firstchair.core.errors import DataError
from firstchair.train.config import BatchLayout, Layout, RecordRecipe, RunRecipe
from firstchair.train.layouts import choose_layout
from firstchair.train.models import apply_method, load_base, model_vocab_size, pick_device
from firstchair.train.run_dir import RunDir
from firstchair.train.scorer import TokenScorer
from firstchair.train.token_sets import TokenSet
from firstchair.train.tokenising import ProgressMaker, RecordKind, TokenRules, build_token_set, token_rules


@dataclass(frozen=True, slots=True)
class Inputs:
    """Everything read and checked before the model is touched."""

    renderer: Renderer
    train: TokenRules
    dev: TokenRules | None


@dataclass(frozen=True, slots=True)
class Learner:
    """The model, ready to train."""

    scorer: TokenScorer
    layout: BatchLayout


def read_inputs(recipe: RecordRecipe, kind: RecordKind) -> Inputs:
    vocab_size = model_vocab_size(recipe.model)
    data = recipe.data
    renderer = Renderer.from_pretrained(recipe.model, data.template, data.tool_format, arguments=data.arguments)

    def rules(path: Path) -> TokenRules:
        return token_rules(path, data, recipe.model, renderer, vocab_size, kind)

    return Inputs(renderer, rules(data.train), rules(data.dev) if data.dev is not None else None)


def read_tokens(
    recipe: RecordRecipe, inputs: Inputs, run: RunDir, progress: ProgressMaker
) -> tuple[TokenSet, TokenSet | None]:
    """Both splits as tokens. Raises ``DataError`` when one is empty or below the floors."""
    data = recipe.data
    sets: list[TokenSet | None] = []
    for split, rules in (("train", inputs.train), ("dev", inputs.dev)):
        if rules is None:
            sets.append(None)
            continue
        directory = run.tokens(split, data.cache, rules.source)
        found = build_token_set(rules, directory, renderer=inputs.renderer, workers=data.workers, progress=progress)
        rows, trained = (data.min_rows, data.min_trained_tokens) if split == "train" else (1, 1)
        if len(found) < rows or found.counts.trained_tokens < trained:
            raise DataError(
                f"{len(found):,} rows with {found.counts.trained_tokens:,} trained tokens; expected at least "
                f"{rows:,} rows and {trained:,} tokens (data.min_rows, data.min_trained_tokens); "
                f"{found.counts.skipped + found.counts.emptied} rows were too long, "
                f"{sum(found.counts.left_out.values())} records were left out (data.select, data.clean_only)",
                path=str(rules.path),
            )
        sets.append(found)
    train, dev = sets
    assert train is not None
    return train, dev


def load_learner(recipe: RunRecipe, layout: Layout, rank: int = 0) -> Learner:
    """The model of a recipe in train mode, and how its batches are laid out. The random states of Python, NumPy and
    torch are set by the recipe's seed.
    """
    device = pick_device(recipe.device)
    random.seed(recipe.seed)
    np.random.seed(recipe.seed)
    torch.manual_seed(recipe.seed)
    base = load_base(recipe.model, precision=recipe.base_precision, device=device)
    model = apply_method(base, recipe.method, gradient_checkpointing=recipe.gradient_checkpointing)
    scorer = TokenScorer(model, autocast=torch.bfloat16 if recipe.precision == "bf16" else None)
    chosen = choose_layout(scorer, layout)
    # Adapters begin equal in every process; dropout differs from process to process.
    torch.manual_seed(recipe.seed + 1 + rank)
    return Learner(scorer.train(), chosen)


def sample_spans(rows: TokenSet, renderer: Renderer, count: int = 3) -> tuple[str, ...]:
    """The trained text of rows spread over the set, spans separated by `` … ``: what the loss really sees."""
    texts = []
    for index in sorted({round(place * (len(rows) - 1) / max(count - 1, 1)) for place in range(count)}):
        example = rows[index]
        edges = np.flatnonzero(np.diff(np.concatenate([[0], example.loss_mask.astype(np.int8), [0]])))
        spans = [example.ids[start:end].tolist() for start, end in edges.reshape(-1, 2)]
        text = " … ".join(renderer.encoder.decode(span) for span in spans)
        texts.append(f"row {index}, {example.trained_tokens} of {len(example)} tokens trained: {text}")
    return tuple(texts)
