"""Runs on preference pairs: what is learnt, what is refused, and that a run killed at any moment ends the same."""

import math
import signal
import sys
from collections import Counter

import pytest
from tests.train.conftest import TOOLS
from tests.train.test_resume import start, wait_for_step

from firstchair.chat.messages import ToolCall, assistant_message, text_message
from firstchair.chat.renderer import Renderer
from firstchair.core.config import validate
from firstchair.core.errors import ConfigError, DataError, IntegrityError
from firstchair.core.jsonl import write_jsonl
from firstchair.data.pairs import PreferencePair, write_pairs
from firstchair.engines.weights import weights_revision
from firstchair.train.dpo_recipe import DpoRecipe
from firstchair.train.dpo_run import DPO, train_dpo
from firstchair.train.metrics import read_metrics
from firstchair.train.sft_plan import plan_on_records

COMMAND = [sys.executable, "-c", "from firstchair.cli.main import main; main()", "train", "dpo"]


def small_pair(number, *, chosen="call", request="find"):
    """Asked to find a key: to look for it is better than to guess, or with ``chosen="reply"`` the other way round."""
    key = f"{(number * 7919) % 1000:03d}"
    call = assistant_message("", calls=(ToolCall.of(f"call_{number}", "find", {"key": key}),))
    reply = assistant_message(f"box {key[::-1]}")
    better, worse = (call, reply) if chosen == "call" else (reply, call)
    messages = (text_message("system", "You find keys."), text_message("user", f"{request} {key}"))
    return PreferencePair(
        id=f"p{number}", source="contrast", messages=messages, tools=TOOLS, chosen=better, rejected=worse
    )


def write(path, pairs, **options):
    write_pairs(path, pairs, made_from=["test"], left_out=Counter(), settings={}, **options)
    return path


@pytest.fixture
def recipe_of(model_dir, tmp_path):
    """A recipe for the tiny model; keyword arguments replace fields."""

    def make(*, chosen="call", **fields):
        files = [tmp_path / f"{chosen}-{part}.jsonl" for part in ("train", "dev")]
        if not files[0].exists():
            write(files[0], [small_pair(number, chosen=chosen) for number in range(12)])
            write(files[1], [small_pair(number) for number in range(100, 104)])
        base = {
            "model": model_dir,
            "out": tmp_path / "run",
            "data": {"train": files[0], "dev": files[1], **fields.pop("data", {})},
            "batch": {"pairs": 4},
            "dpo": {"beta": 0.5},
            "optimizer": {"type": "adamw", "lr": 3e-3},
            "max_steps": 3,
        }
        return validate(DpoRecipe, {**base, **fields}, source="test")

    return make


def lines_of(result, event):
    return [line for line in result.metrics if line["event"] == event]


def test_the_policy_comes_to_prefer_the_chosen_side_of_held_out_pairs_and_of_swapped_ones_the_other(
    recipe_of, tmp_path
):
    for chosen, accuracy, sign in (("call", 1.0, 1), ("reply", 0.0, -1)):
        result = train_dpo(recipe_of(chosen=chosen, out=tmp_path / chosen, max_steps=8, eval={"every": 3}))
        evals, steps = lines_of(result, "eval"), lines_of(result, "step")
        assert [line["step"] for line in evals] == [0, 3, 6, 8]
        # The policy is its own reference at the start: no margin, every pair a tie, −log σ(0).
        assert evals[0]["accuracy"] == 0.5
        assert evals[0]["margin"] == 0.0
        assert evals[0]["loss"] == steps[0]["loss"] == pytest.approx(math.log(2))
        assert evals[-1]["accuracy"] == accuracy
        assert sign * evals[-1]["margin"] > 0.1
        assert sign * (evals[0]["loss"] - evals[-1]["loss"]) > 0.05
        assert steps[-1]["loss"] < math.log(2)
        assert (evals[0]["weight"], steps[0]["weight"], steps[0]["rows"]) == (4.0, 4.0, 8)
        assert Renderer.from_pretrained(result.model_dir).template_hash


@pytest.mark.parametrize("loss", ["sigmoid", "ipo"])
def test_micro_batches_and_layout_change_no_loss(recipe_of, tmp_path, loss):
    variants = {
        "whole": {"micro_tokens": 8192, "layout": "packed"},
        "cut": {"micro_tokens": 400, "layout": "packed"},
        "padded": {"micro_tokens": 8192, "layout": "padded"},
        "shared": {"micro_tokens": 8192, "layout": "shared"},
    }
    results = {
        name: train_dpo(
            recipe_of(out=tmp_path / name, batch={"pairs": 5, **batch}, data={"max_tokens": 200}, dpo={"loss": loss})
        )
        for name, batch in variants.items()
    }
    assert lines_of(results["cut"], "step")[0]["micro_batches"] > 1
    for name, result in results.items():
        for line, expected in zip(result.metrics, results["whole"].metrics, strict=True):
            for figure in ("loss", "grad_norm", "margin", "accuracy"):
                if figure in expected:
                    assert line[figure] == pytest.approx(expected[figure], rel=5e-4, abs=2e-4), (name, figure)


def test_every_pair_is_seen_once_an_epoch_and_a_step_may_run_over_its_end(recipe_of):
    # 12 pairs, 5 a step: the third step holds the end of one epoch and the beginning of the next.
    result = train_dpo(recipe_of(batch={"pairs": 5}, max_steps=None, epochs=2))
    steps = lines_of(result, "step")
    assert [line["rows"] for line in steps] == [10, 10, 10, 10, 8]
    assert (steps[-1]["epoch"], result.tokens) == (2.0, 2 * result.train.tokens)


def test_an_adapter_is_held_to_its_base(recipe_of, model_dir):
    before = weights_revision(model_dir)
    lora = {"type": "lora", "rank": 4}
    result = train_dpo(recipe_of(method=lora, optimizer={"type": "adamw", "lr": 3e-2}, max_steps=6))
    assert (result.model_dir / "adapter_model.safetensors").is_file()
    assert weights_revision(model_dir) == before
    evals = lines_of(result, "eval")
    assert (evals[0]["accuracy"], evals[0]["margin"]) == (0.5, pytest.approx(0.0, abs=1e-6))
    assert evals[-1]["accuracy"] == 1.0


def test_a_dry_run_counts_both_sides_and_measures(recipe_of, tmp_path):
    plan = plan_on_records(recipe_of(), DPO, scratch=tmp_path / "scratch")
    assert (plan.train.records, plan.train.rows, plan.dev.rows) == (12, 24, 8)
    assert plan.seconds > 0
    assert not (tmp_path / "run").exists()


# What is wrong with a pair.


def test_a_pair_with_a_side_too_long_is_refused_or_left_out_whole(recipe_of, tmp_path):
    pairs = [small_pair(number) for number in range(6)]
    long = [small_pair(7, request="find " * 200), small_pair(8)]
    data = {"train": write(tmp_path / "long.jsonl", [*pairs, long[0], long[1]]), "max_tokens": 150}
    with pytest.raises(DataError, match=r"long\.jsonl:7: chosen: \d+ tokens; data.max_tokens is 150; .* to skip$"):
        train_dpo(recipe_of(data=data))
    result = train_dpo(recipe_of(data={**data, "over_long": "skip"}, max_steps=1))
    assert (result.train.records, result.train.rows, result.train.skipped) == (8, 14, 2)
    with pytest.raises(DataError, match="0 rows with 0 trained tokens; expected at least 2 rows"):
        train_dpo(recipe_of(data={**data, "over_long": "skip", "max_tokens": 10}), force=True)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rejected": "chosen"}, r"own\.jsonl:2: rejected: both sides are find"),
        ({"chosen": [{"role": "assistant", "content": ""}]}, r"own\.jsonl:2: chosen: empty"),
    ],
)
def test_equal_and_empty_sides_are_named_with_their_line(recipe_of, tmp_path, changes, message):
    good = small_pair(1).to_row()
    bad = {**good, **{name: good[value] if isinstance(value, str) else value for name, value in changes.items()}}
    write_jsonl(tmp_path / "own.jsonl", [good, bad])
    with pytest.raises(DataError, match=message):
        train_dpo(recipe_of(data={"train": tmp_path / "own.jsonl"}))


def test_sides_of_equal_tokens_are_refused(recipe_of, tmp_path):
    """A template that trims replies makes one of two different texts."""
    pair = small_pair(1)
    template = tmp_path / "trims.jinja"
    template.write_text(
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ (m.content or '') | trim }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    row = pair.to_row() | {"tools": [], "chosen": [{"role": "assistant", "content": "box 1"}]}
    row["rejected"] = [{"role": "assistant", "content": "box 1 "}]
    write_jsonl(tmp_path / "own.jsonl", [row])
    data = {"train": tmp_path / "own.jsonl", "dev": None, "template": str(template)}
    with pytest.raises(DataError, match=r"own\.jsonl:1: rejected: both sides are the same tokens"):
        train_dpo(recipe_of(data=data))


def test_pairs_whose_bytes_changed_are_refused_before_anything_is_trained(recipe_of, tmp_path):
    path = write(tmp_path / "pairs.jsonl", [small_pair(1), small_pair(2)])
    path.write_bytes(path.read_bytes().replace(b"You find", b"You hide", 1))
    with pytest.raises(IntegrityError, match=r"pairs\.jsonl: the bytes are not those of its manifest"):
        train_dpo(recipe_of(data={"train": path}))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"batch": {"micro_tokens": 300}, "data": {"max_tokens": 200}},
            r"batch.micro_tokens \(300\) must be at least",
        ),
        ({"eval": {"micro_tokens": 300}, "data": {"max_tokens": 200}}, r"eval.micro_tokens \(300\) must be at least"),
        ({"data": {"over_long": "truncate-left-keep-last"}}, "data.over_long"),
        ({"dpo": {"loss": "ipo", "label_smoothing": 0.1}}, "label_smoothing belongs to loss=sigmoid"),
        ({"batch": {"sessions": 3}}, "batch.sessions"),
    ],
)
def test_settings_that_do_not_fit_are_refused(recipe_of, fields, message):
    with pytest.raises(ConfigError, match=message):
        recipe_of(**fields)


# Killed and resumed, with a real process.


def arguments(recipe, out):
    pairs = {
        "model": recipe.model,
        "out": out,
        "data.train": recipe.data.train,
        "data.dev": recipe.data.dev,
        "max_steps": 40,
        "batch.pairs": 5,
        "save.every": 3,
        "eval.every": 10,
        "optimizer.lr": "1e-3",
        "method.type": "lora",
        "method.rank": 2,
        "method.dropout": 0.3,
    }
    words = (word for name, value in pairs.items() for word in ("--set", f"{name}={value}"))
    return [*COMMAND, *words]


def test_a_killed_process_resumes_bit_for_bit(recipe_of, tmp_path):
    recipe, expected, out = recipe_of(), tmp_path / "expected", tmp_path / "disturbed"
    reference = start(arguments(recipe, expected))
    text = reference.communicate()[0]
    assert reference.returncode == 0, text
    process = start(arguments(recipe, out))
    wait_for_step(process, out, 8)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    process = start([*arguments(recipe, out), "--resume"])
    text = process.communicate()[0]
    assert process.returncode == 0, text
    assert (out / "metrics.jsonl").read_bytes() == (expected / "metrics.jsonl").read_bytes()
    assert weights_revision(out / "model") == weights_revision(expected / "model")
    assert [line["step"] for line in read_metrics(out / "metrics.jsonl") if line["event"] == "eval"][-1] == 40
