"""The tiny model recipe: an own byte-level BPE tokenizer and a randomly initialised Qwen3 of 1-5 M parameters.

A tiny model lives or dies by copying values out of its context. Two choices of the tokenizer make that easy:
digits stand alone, and a word splits into the same pieces with and without a space before it (`` Kowalski`` and
``"Kowalski"`` differ in their first token only, by one fixed map), so that a copied value is a copied sequence.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable
from importlib import resources
from pathlib import Path
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

PAD, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
TAGS = ("<think>", "</think>", "<tool_call>", "</tool_call>")
"""One token each; not special, so that decoding keeps them."""

PIECES_SHARE = 0.7
"""Share of the vocabulary's budget for pieces; the rest is for their spaced twins."""

SPACE = "Ġ"
"""How byte-level BPE writes a space."""

# The fixed glue of a hermes call is one piece each; JSON punctuation merges across the space between its halves.
_GLUE = r'\{"name": "|", "arguments": \{"?|[^\s\p{L}\p{N}]+(?: [^\s\p{L}\p{N}]+)*'
_TRAIN_PATTERN = _GLUE + r"|\p{L}+|\p{N}| +|\s"
_PATTERN = _GLUE + r"| ?\p{L}+|\p{N}| +|\s"


def _splitter(pattern: str) -> Any:
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def build_tokenizer(texts: Iterable[str], vocab_size: int = 3072) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE tokenizer on ``texts``; its chat template is ``tiny.jinja``.

    Words are learned without their space; then the pieces that most often begin a word get a twin with the space,
    merged last (a piece without one is a space token and itself). ``vocab_size`` bounds the whole vocabulary, twins
    included; every byte has a token, so any text encodes.
    """
    texts = list(texts)
    learner = Tokenizer(models.BPE())
    learner.pre_tokenizer = _splitter(_TRAIN_PATTERN)
    specials = [PAD, START, END, *TAGS]
    base = len(specials) + 256
    learner.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=base + int((vocab_size - base) * PIECES_SHARE),
            special_tokens=specials,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    vocab, merges = _with_twins(learner, texts, vocab_size)
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = _splitter(_PATTERN)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=END,
        additional_special_tokens=[START],
        clean_up_tokenization_spaces=False,
    )
    fast.add_tokens(list(TAGS))
    fast.chat_template = tiny_template()
    return fast


def _with_twins(
    learner: Tokenizer, texts: list[str], vocab_size: int
) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Vocabulary and merges of a trained tokenizer, with spaced twins for the pieces that most often begin a word."""
    model = json.loads(learner.to_str())["model"]
    vocab: dict[str, int] = model["vocab"]
    merges = [(left, right) for left, right in model["merges"]]
    words = Counter(match.group(1) for text in texts for match in re.finditer(r" ([^\W\d_]+)", text))
    beginnings: Counter[str] = Counter()
    for word, count in words.items():
        beginnings[learner.encode(word, add_special_tokens=False).tokens[0]] += count
    for piece, _ in sorted(beginnings.items(), key=lambda item: (-item[1], item[0])):
        twin = SPACE + piece
        if len(vocab) < vocab_size and twin not in vocab:
            vocab[twin] = len(vocab)
            merges.append((SPACE, piece))
    return vocab, merges


def tiny_template() -> str:
    """The chat template of the tiny models."""
    return (resources.files("firstchair.chat") / "templates" / "tiny.jinja").read_text(encoding="utf-8")


def build_model(
    vocab_size: int,
    *,
    hidden: int = 128,
    layers: int = 4,
    heads: int = 4,
    intermediate: int = 384,
    max_positions: int = 16384,
    seed: int = 0,
) -> Qwen3ForCausalLM:
    """A Qwen3 with random weights, float32, input and output embeddings tied; equal seeds give equal weights."""
    config = Qwen3Config(
        vocab_size=vocab_size,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        head_dim=hidden // heads,
        max_position_embeddings=max_positions,
        rope_theta=10_000.0,
        tie_word_embeddings=True,
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=2,
        use_cache=True,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen3ForCausalLM(config)
    return model.float()


def save_model(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, directory: Path) -> None:
    """Write weights (safetensors), config, tokenizer and chat template; loads in transformers and vLLM."""
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
