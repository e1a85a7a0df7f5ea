import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firstchair.train.base_model import base_model_dir
from firstchair.train.tiny import SPACE, build_model, build_tokenizer, save_model

TEXTS = [
    'call Anna Kowalski at 14:30 {"name": "Read", "arguments": {"path": "docs/report.txt"}}',
    "please read the report in docs and call Kowalski about the report",
] * 20


@pytest.fixture(scope="module")
def tokenizer():
    return build_tokenizer(TEXTS, 600)


@settings(max_examples=200, deadline=None)
@given(text=st.text())
def test_any_text_comes_back_from_its_tokens(tokenizer, text):
    text = text.encode("utf-8", "ignore").decode("utf-8")  # lone surrogates are no text
    assert tokenizer.decode(tokenizer(text, add_special_tokens=False)["input_ids"]) == text


@pytest.mark.parametrize("word", ["Kowalski", "report", "reading", "Zzyzx", "Annabel"])
def test_a_word_after_a_space_is_the_same_pieces_but_for_the_first(tokenizer, word):
    bare = tokenizer.tokenize(word)
    spaced = tokenizer.tokenize(" " + word)
    assert spaced in ([SPACE + bare[0], *bare[1:]], [SPACE, *bare])


def test_digits_and_tags_stand_alone(tokenizer):
    assert tokenizer.tokenize("2026") == ["2", "0", "2", "6"]
    assert tokenizer.tokenize("<tool_call>") == ["<tool_call>"]


def test_equal_seeds_give_equal_weights_and_leave_the_global_generator_alone():
    import torch

    before = torch.random.get_rng_state()
    left, right = (
        build_model(300, hidden=16, layers=1, heads=2, seed=3),
        build_model(300, hidden=16, layers=1, heads=2, seed=3),
    )
    assert torch.equal(before, torch.random.get_rng_state())
    for a, b in zip(left.parameters(), right.parameters(), strict=True):
        assert torch.equal(a, b)


def test_a_saved_model_loads_as_any_other(tmp_path, tokenizer):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    save_model(build_model(len(tokenizer), hidden=16, layers=1, heads=2), tokenizer, tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    rows = [{"role": "user", "content": "hi"}]
    assert loaded.apply_chat_template(rows, tokenize=False, add_generation_prompt=True) == (
        "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    )
    assert AutoModelForCausalLM.from_pretrained(tmp_path).config.vocab_size == len(tokenizer)


def test_the_shipped_base_model_is_small_and_says_how_it_was_made():
    directory = base_model_dir()
    assert sum(file.stat().st_size for file in directory.iterdir()) <= 8 * 1024 * 1024
    recipe = json.loads((directory / "recipe.json").read_text(encoding="utf-8"))
    assert {"seed", "tokens", "hidden", "layers"} <= recipe["recipe"].keys()
