"""A tiny model from a recipe: a tokenizer trained on the rendered text of SFT records, and random weights."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError

from firstchair.chat.renderer import Renderer
from firstchair.core.atomic import atomic_dir, refuse_existing
from firstchair.core.errors import ConfigError, DataError, RunFailed
from firstchair.data.sft import read_sft
from firstchair.engines.quiet import quiet_loading
from firstchair.train.config import TinyRecipe
from firstchair.train.tiny import END, PAD, START, TAGS, build_model, build_tokenizer, save_model, tiny_template


@dataclass(frozen=True, slots=True)
class TinyModel:
    """What was made."""

    directory: Path
    vocab_size: int
    parameters: int
    records: int


def make_tiny(recipe: TinyRecipe, *, force: bool = False) -> TinyModel:
    """Write the model directory. Raises ``ConfigError`` when the target exists, ``DataError`` for a bad or empty
    corpus.

    A full disk is a ``RunFailed``.
    """
    refuse_existing(recipe.out, force=force)
    for path in recipe.corpus:
        if not path.is_file():
            raise ConfigError(f"corpus: {path}: no such file; check the path")
    counts = [0]
    tokenizer = build_tokenizer(corpus_texts(recipe.corpus, counts), recipe.vocab_size)
    if not counts[0]:
        raise DataError(
            "found no record in any file; expected at least one, for the tokenizer to learn from", field="corpus"
        )
    model = build_model(
        len(tokenizer),
        hidden=recipe.hidden,
        layers=recipe.layers,
        heads=recipe.heads,
        intermediate=recipe.intermediate,
        max_positions=recipe.max_positions,
        seed=recipe.seed,
    )
    try:
        with atomic_dir(recipe.out, force=force) as temporary, quiet_loading():
            save_model(model, tokenizer, temporary)
    except SafetensorError as error:  # how safetensors reports a full disk
        raise RunFailed(f"cannot write {recipe.out}: {error}; free space or choose another path") from error
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return TinyModel(recipe.out, len(tokenizer), parameters, counts[0])


def corpus_texts(paths: tuple[Path, ...], counts: list[int]) -> Iterator[str]:
    """The text between control tokens, as the tiny template renders it; ``counts[0]`` counts the records."""
    # Rendering needs some tokenizer; what it learns does not matter, only its control tokens do.
    renderer = Renderer(build_tokenizer([""], 300), tiny_template())
    for path in paths:
        for record in read_sft(path):
            counts[0] += 1
            text = renderer.text(record.messages, record.tools)
            for token in (PAD, START, END, *TAGS):
                text = text.replace(token, "\0")
            yield from (piece for piece in text.split("\0") if piece)
