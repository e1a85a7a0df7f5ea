"""Small byte-level tokenizers of the pinned templates' families, trained on three sentences: for tests."""

from __future__ import annotations

import functools
from typing import Any

from firstchair.chat.renderer import Renderer
from firstchair.chat.template import pinned

SPECIALS = {
    "tiny": ["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
    "qwen3": ["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
    "llama3": ["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|eom_id|>"],
    "gemma": ["<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>"],
}
EOS = {"tiny": "<|im_end|>", "qwen3": "<|im_end|>", "llama3": "<|eot_id|>", "gemma": "<eos>"}
BOS = {"llama3": "<|begin_of_text|>", "gemma": "<bos>"}
TAGS = ["<think>", "</think>", "<tool_call>", "</tool_call>"]
CORPUS = [
    "system user assistant model tool ipython read the file and then send it\n\n",
    '{"name": "Read", "arguments": {"path": "a.txt"}} {"type": "function"}\n\n\n',
    "reply done hello world \n\n text  with   spaces",
] * 20
# A newline run is one piece, as in the tokenizers of Llama 3 and Qwen: "\n" + "\n" merge into one token.
PATTERN = r"\s*[\r\n]+| ?[^\s\w]+| ?\p{L}+|\p{N}|\s+"


@functools.cache
def make_tokenizer(family: str, pad: str | None = None) -> Any:
    """A transformers fast tokenizer of about 420 tokens with the special tokens and pinned template of ``family``.

    Runs of newlines merge, as in the tokenizers of Llama 3 and Qwen. ``pad`` may be the end token.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=SPECIALS[family],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(CORPUS, trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        eos_token=EOS[family],
        bos_token=BOS.get(family),
        pad_token=pad or SPECIALS[family][0],
        additional_special_tokens=[token for token in SPECIALS[family] if token not in (EOS[family], pad)],
        clean_up_tokenization_spaces=False,
    )
    tokenizer.add_tokens(TAGS)
    tokenizer.chat_template = pinned(family)
    return tokenizer


@functools.cache
def make_renderer(family: str, **variables: Any) -> Renderer:
    """The renderer of ``make_tokenizer(family)``; ``variables`` go to the template."""
    tokenizer = make_tokenizer(family)
    return Renderer(tokenizer, tokenizer.chat_template, variables=variables)


FAMILIES = sorted(SPECIALS)
