import numpy as np
import pytest
import torch
from tests.train.conftest import random_examples
from transformers import Lfm2Config, Lfm2ForCausalLM, MistralConfig, MistralForCausalLM

from firstchair.core.errors import ConfigError
from firstchair.train import attention
from firstchair.train.batching import collate
from firstchair.train.examples import Example
from firstchair.train.layouts import choose_layout, reference_logprobs
from firstchair.train.objective import SftObjective
from firstchair.train.prefixes import SHORTEST, Segment
from firstchair.train.scorer import TokenScorer, spare_places

LENGTHS = [7, 3, 12, 5]


def loss_and_gradient(scorer, batches):
    """Token-mean loss over all batches, and the gradient of every weight."""
    objective = SftObjective()
    scorer.zero_grad()
    denominator = sum(objective.weight(batch) for batch in batches)
    total = 0.0
    for batch in batches:
        loss = objective.loss(scorer, batch).numerator / denominator
        loss.backward()
        total += float(loss.detach())
    return total, {name: parameter.grad.clone() for name, parameter in scorer.named_parameters()}


@pytest.mark.parametrize("layout", ["padded", "packed", "shared"])
def test_batched_rows_have_the_losses_and_gradients_of_rows_alone(scorer, layout):
    rows = random_examples(LENGTHS)
    alone, alone_gradient = loss_and_gradient(scorer, [collate([row], layout="padded") for row in rows])
    together, gradient = loss_and_gradient(scorer, [collate(rows, layout=layout)])
    assert together == pytest.approx(alone, abs=1e-5)
    for name, expected in alone_gradient.items():
        torch.testing.assert_close(gradient[name], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("layout", ["padded", "packed", "shared"])
def test_scores_are_those_of_the_models_own_forward_pass(scorer, layout):
    rows = random_examples(LENGTHS)
    torch.testing.assert_close(
        scorer(collate(rows, layout=layout)), reference_logprobs(scorer, rows), rtol=1e-4, atol=1e-4
    )


def branching_examples():
    """Rows over one beginning, some of them over a longer one; two are equal, one is a beginning of another."""
    root, branch = (random_examples([length])[0].ids for length in (SHORTEST + 3, SHORTEST + 8))
    tails = [row.ids for row in random_examples([4, 9, 6, 1, 7])]
    ids = [
        np.concatenate([root, tails[0]]),
        np.concatenate([root, branch, tails[1]]),
        np.concatenate([root, branch, tails[2]]),
        np.concatenate([root, branch, tails[2]]),
        np.concatenate([root, branch]),
        np.concatenate([root, tails[3]]),
        tails[4],
    ]
    return [Example(row, np.arange(len(row)) > len(row) // 2, key=key) for key, row in enumerate(ids)]


def test_shared_beginnings_change_neither_loss_nor_gradient(scorer):
    """Trained tokens lie inside the shared parts too."""
    rows = branching_examples()
    whole, whole_gradient = loss_and_gradient(scorer, [collate(rows, layout="packed")])
    batch = collate(rows, layout="shared")
    assert batch.ids.numel() < sum(map(len, rows)) * 0.6
    shared, gradient = loss_and_gradient(scorer, [batch])
    assert shared == pytest.approx(whole, abs=1e-5)
    for name, expected in whole_gradient.items():
        torch.testing.assert_close(gradient[name], expected, rtol=1e-4, atol=1e-5)


def test_shared_beginnings_with_fewer_key_heads():
    config = MistralConfig(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, sliding_window=None,
    )  # fmt: skip
    torch.manual_seed(0)
    model = MistralForCausalLM(config)
    model.set_attn_implementation(attention.install())
    rows = branching_examples()
    scorer = TokenScorer(model)
    torch.testing.assert_close(
        scorer(collate(rows, layout="shared")), reference_logprobs(scorer, rows), rtol=1e-4, atol=1e-4
    )


def test_a_sliding_window_shorter_than_the_batch_refuses_to_share():
    query = torch.randn(1, 2, 40, 8)
    segments = (Segment(0, 20, 40), Segment(20, 30, 30), Segment(30, 40, 40))
    with pytest.raises(NotImplementedError, match="shared beginnings"):
        attention.rows_attention(torch.nn.Identity(), query, query, query, None, segments=segments, sliding_window=16)


@pytest.mark.parametrize("count", [0, 1, 31, 32, 33, 2048, 2049, 4095, 100_001])
def test_sizes_are_rounded_up_by_a_sixteenth_at_most(count):
    assert 0 <= spare_places(count) <= count / 16


def test_few_different_sizes_are_left():
    assert len({count + spare_places(count) for count in range(1024, 4096)}) <= 2 * 16 + 1


@pytest.mark.parametrize("layout", ["padded", "packed", "shared"])
def test_filling_up_changes_neither_loss_nor_gradient(scorer, layout):
    """In half precision on a CPU the batch is filled up to a rounder size; nothing that counts may notice."""
    rows = [Example(row.ids, np.arange(len(row)) > 0, key=row.key) for row in random_examples([77, 53, 40])]
    batch = collate(rows, layout=layout)
    assert spare_places(batch.ids.shape[1])
    assert spare_places(len(batch.keep_K))
    exact, exact_gradient = loss_and_gradient(scorer, [batch])
    scorer.autocast = torch.bfloat16
    assert scorer.rounds_shapes
    assert len(scorer(batch)) == len(batch.targets_K)
    rounded, gradient = loss_and_gradient(scorer, [batch])
    assert rounded == pytest.approx(exact, rel=1e-3)
    for name, expected in exact_gradient.items():
        torch.testing.assert_close(gradient[name], expected, rtol=0.05, atol=float(expected.abs().max()) / 20)


def test_a_row_does_not_see_the_row_before_it(scorer):
    first, second = random_examples([6, 6])
    changed = Example((first.ids + 7) % 50, first.loss_mask, key=first.key)
    before, after = (scorer(collate([row, second], layout="packed")) for row in (first, changed))
    own = int(first.loss_mask.sum())
    torch.testing.assert_close(before[own:], after[own:], rtol=0, atol=0)


@pytest.mark.parametrize("tail", [[], [3], [3, 4], [40, 41, 42]])
def test_untrained_tokens_at_the_end_change_neither_loss_nor_gradient(scorer, tail):
    """What only an untrained place predicts has no loss term, so it may be anything, or missing."""
    (row,) = random_examples([10])
    longer = Example(
        np.append(row.ids, tail).astype(np.int32), np.append(row.loss_mask, [False] * len(tail)).astype(np.bool_)
    )
    loss, gradient = loss_and_gradient(scorer, [collate([row], layout="packed")])
    other_loss, other = loss_and_gradient(scorer, [collate([longer], layout="packed")])
    assert other_loss == pytest.approx(loss, abs=1e-5)
    for name in gradient:
        torch.testing.assert_close(other[name], gradient[name], rtol=1e-4, atol=1e-5)


def test_gradient_of_the_loss_enters_at_trained_places_only(scorer):
    """An interior zero of the mask (a tool result between two calls) gets no loss term of its own."""
    (row,) = random_examples([10])
    row.loss_mask[3:6] = [True, False, True]
    seen = []
    norm = scorer.model.model.norm
    norm.register_forward_hook(lambda module, inputs, output: (output.retain_grad(), seen.append(output))[1])
    loss_and_gradient(scorer, [collate([row], layout="packed")])
    touched = seen[0].grad[0].abs().sum(-1) > 0
    assert touched.tolist() == [*row.loss_mask[1:].tolist(), False]


def test_a_head_cut_into_chunks_gives_the_same_numbers(scorer):
    rows = random_examples(LENGTHS)
    batch = collate(rows, layout="packed")
    whole, whole_gradient = loss_and_gradient(scorer, [batch])
    scorer.chunk_elements = 3 * scorer.head_width
    cut, cut_gradient = loss_and_gradient(scorer, [batch])
    assert cut == pytest.approx(whole, abs=1e-6)
    for name in whole_gradient:
        torch.testing.assert_close(cut_gradient[name], whole_gradient[name], rtol=1e-5, atol=1e-6)


def test_the_head_runs_on_trained_places_only(scorer):
    seen = []
    scorer.model.lm_head.register_forward_hook(lambda module, inputs, output: seen.append(tuple(output.shape)))
    rows = random_examples(LENGTHS)
    scorer(collate(rows, layout="packed"))
    assert seen == [(sum(row.trained_tokens for row in rows), 50)]


def test_bfloat16_is_close_to_float32(scorer):
    batch = collate(random_examples(LENGTHS), layout="packed")
    exact = scorer(batch)
    scorer.autocast = torch.bfloat16
    rough = scorer(batch)
    assert rough.dtype == torch.float32
    assert float((rough - exact).detach().abs().mean()) < 0.2


def test_sliding_window_attention_is_kept_inside_packed_rows():
    config = MistralConfig(
        vocab_size=50,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        sliding_window=3,
    )
    torch.manual_seed(0)
    plain = MistralForCausalLM(config)
    plain.set_attn_implementation("sdpa")
    rows = random_examples([9, 4])
    expected = reference_logprobs(TokenScorer(plain), rows)
    plain.set_attn_implementation(attention.install())
    torch.testing.assert_close(TokenScorer(plain)(collate(rows, layout="packed")), expected, rtol=1e-4, atol=1e-4)


def convolutional_model():
    """A model whose short convolutions carry the last tokens of one packed row into the next."""
    config = Lfm2Config(
        vocab_size=50,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        layer_types=["conv", "full_attention"],
    )
    torch.manual_seed(0)
    model = Lfm2ForCausalLM(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(5)
    model.set_attn_implementation(attention.install())
    return TokenScorer(model)


def test_a_model_that_leaks_between_packed_rows_is_padded_instead():
    assert choose_layout(convolutional_model(), "auto") == "padded"


@pytest.mark.parametrize("wanted", ["packed", "shared"])
def test_asking_to_pack_a_model_that_leaks_is_refused(wanted):
    with pytest.raises(ConfigError, match=f"found {wanted}, but rows of Lfm2ForCausalLM see each other when packed"):
        choose_layout(convolutional_model(), wanted)


def test_a_transformer_is_packed_and_shares_beginnings(scorer):
    assert choose_layout(scorer, "auto") == "shared"
    assert choose_layout(scorer, "packed") == "packed"
    assert choose_layout(scorer, "padded") == "padded"
    assert scorer.training


def test_a_head_that_does_more_than_a_matrix_is_refused(scorer):
    own = scorer.model.forward
    scorer.model.forward = lambda **inputs: type("Out", (), {"logits": 30 * torch.tanh(own(**inputs).logits)})()
    with pytest.raises(ConfigError, match="scores from its backbone and LM head differ from its own forward pass"):
        choose_layout(scorer, "auto")


@pytest.mark.parametrize("chunk_elements", [1 << 26, 64 * 5])
def test_entropies_come_with_the_scores_and_carry_gradients(scorer, chunk_elements):
    rows = random_examples(LENGTHS)
    batch = collate(rows, layout="packed")
    scorer.chunk_elements = chunk_elements
    logp_K, entropy_K = scorer.logprobs_and_entropy(batch)
    torch.testing.assert_close(logp_K, scorer(batch))
    ids = [torch.from_numpy(row.ids.astype(np.int64))[None] for row in rows]
    logits = [scorer.model(input_ids=row, use_cache=False).logits[0, :-1].double() for row in ids]
    masks = [torch.from_numpy(row.loss_mask[1:]) for row in rows]
    chosen = torch.cat([own[mask] for own, mask in zip(logits, masks, strict=True)])
    expected = torch.distributions.Categorical(logits=chosen).entropy()
    torch.testing.assert_close(entropy_K.double(), expected, rtol=1e-4, atol=1e-5)
    scorer.zero_grad()
    entropy_K.sum().backward()
    assert all(parameter.grad is not None for parameter in scorer.parameters())
