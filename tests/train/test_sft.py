import json
import shutil
import warnings

import numpy as np
import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

from firstchair.chat.renderer import Renderer
from firstchair.chat.trained import trained_renderer
from firstchair.core.errors import ConfigError, DataError, IntegrityError
from firstchair.core.hashing import sha256_file
from firstchair.data.sft import read_sft
from firstchair.engines.weights import weights_revision
from firstchair.train.batching import collate
from firstchair.train.examples import Example
from firstchair.train.layouts import reference_logprobs
from firstchair.train.models import load_base, merge_adapter
from firstchair.train.scorer import TokenScorer
from firstchair.train.sft import train_sft
from firstchair.train.sft_plan import plan_sft


def steps_of(result):
    return [line for line in result.metrics if line["event"] == "step"]


def held_out_examples(path, model_dir):
    renderer = Renderer.from_pretrained(model_dir)
    rows = [record.to_conversation(renderer) for record in read_sft(path)]
    return [Example(np.array(row.ids, np.int32), np.array(row.loss_mask)) for row in rows]


def mean_nll(model, rows):
    return float(-reference_logprobs(TokenScorer(model), rows).mean())


def test_the_exported_model_loads_as_it_is_and_scores_what_was_reported(recipe_of, dev_corpus):
    result = train_sft(recipe_of(max_steps=4))
    model = AutoModelForCausalLM.from_pretrained(result.model_dir)
    tokenizer = AutoTokenizer.from_pretrained(result.model_dir)
    assert tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False)
    assert mean_nll(model, held_out_examples(dev_corpus, result.model_dir)) == pytest.approx(
        result.final_nll, abs=1e-4
    )
    assert result.final_nll < result.start_nll


def test_the_template_of_the_export_is_the_template_that_was_trained_with(recipe_of):
    result = train_sft(recipe_of(data={"template": "qwen3"}, max_steps=1))
    trained = json.loads((result.run_dir / "run.json").read_text())["template_hash"]
    assert Renderer.from_pretrained(result.model_dir).template_hash == trained
    manifest = json.loads((result.run_dir / "tokens" / "train" / "manifest.json").read_text())
    checkpoint = json.loads((result.run_dir / "checkpoints" / "step-00000001" / "checkpoint.json").read_text())
    assert manifest["source"]["template_hash"] == checkpoint["template_hash"] == trained


def test_the_spelling_of_arguments_is_part_of_what_was_trained(recipe_of):
    result = train_sft(recipe_of(data={"arguments": "respaced"}, max_steps=1))
    trained = json.loads((result.run_dir / "run.json").read_text())["template_hash"]
    assert trained_renderer(result.model_dir).template_hash == trained
    assert Renderer.from_pretrained(result.model_dir).template_hash != trained


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_an_adapter_learns_on_a_base_in_half_precision(recipe_of, precision):
    lora = {"type": "lora", "rank": 4}
    result = train_sft(recipe_of(method=lora, base_precision="bf16", precision=precision, max_steps=4))
    assert result.final_nll < result.start_nll


def test_held_out_loss_is_measured_at_the_start_every_so_many_steps_and_at_the_end(recipe_of):
    result = train_sft(recipe_of(max_steps=5, eval={"every": 2}))
    evals = [line for line in result.metrics if line["event"] == "eval"]
    assert [line["step"] for line in evals] == [0, 2, 4, 5]
    assert (result.start_nll, result.final_nll) == (evals[0]["nll"], evals[-1]["nll"])


def test_equal_recipes_give_equal_losses_and_equal_weights(recipe_of, tmp_path):
    runs = [train_sft(recipe_of(out=tmp_path / name)) for name in ("a", "b")]
    assert runs[0].metrics == runs[1].metrics
    assert weights_revision(runs[0].model_dir) == weights_revision(runs[1].model_dir)


@pytest.mark.parametrize("reduction", ["token", "sample"])
def test_micro_batches_layout_and_checkpointing_change_no_loss(recipe_of, tmp_path, reduction):
    wholes = {"sessions": 6, "micro_tokens": 8192, "reduction": reduction}
    variants = {
        "whole": {"batch": wholes},
        "cut": {"batch": {**wholes, "micro_tokens": 250}, "data": {"max_tokens": 200}},
        "padded": {"batch": {**wholes, "layout": "padded"}},
        "recomputed": {"batch": wholes, "gradient_checkpointing": True},
    }
    results = {name: train_sft(recipe_of(out=tmp_path / name, **fields)) for name, fields in variants.items()}
    assert steps_of(results["cut"])[0]["micro_batches"] > steps_of(results["whole"])[0]["micro_batches"] == 1
    for name in ("cut", "padded", "recomputed"):
        for line, expected in zip(steps_of(results[name]), steps_of(results["whole"]), strict=True):
            assert line["loss"] == pytest.approx(expected["loss"], abs=2e-5), name
            assert line["grad_norm"] == pytest.approx(expected["grad_norm"], rel=2e-4), name


def test_every_row_is_seen_once_an_epoch_and_the_last_step_takes_what_is_left(recipe_of, corpus):
    rows = sum(1 for _ in read_sft(corpus))
    result = train_sft(recipe_of(max_steps=None, epochs=2, batch={"sessions": 5, "micro_tokens": 4096}))
    lines = steps_of(result)
    assert sum(line["rows"] for line in lines) == 2 * rows
    assert lines[-1]["rows"] == 2 * rows % 5 or 5
    assert lines[-1]["epoch"] == 2.0
    assert result.tokens == 2 * result.train.tokens


def test_lora_writes_an_adapter_for_peft_and_merge_makes_the_same_model(recipe_of, model_dir, dev_corpus, tmp_path):
    method = {"type": "lora", "rank": 2, "alpha": 4}
    result = train_sft(recipe_of(method=method, optimizer={"type": "adamw", "lr": 3e-2}))
    assert (result.model_dir / "adapter_model.safetensors").is_file()
    rows = held_out_examples(dev_corpus, result.model_dir)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # PEFT asks transformers by an old name
        adapted = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(model_dir), result.model_dir)
    assert mean_nll(adapted, rows) == pytest.approx(result.final_nll, abs=1e-4)
    merge_adapter(result.model_dir, tmp_path / "merged")
    assert trained_renderer(tmp_path / "merged").template_hash == trained_renderer(result.model_dir).template_hash
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    assert mean_nll(merged, rows) == pytest.approx(result.final_nll, abs=1e-4)
    assert result.final_nll < result.start_nll
    assert AutoTokenizer.from_pretrained(tmp_path / "merged").chat_template


def test_lora_leaves_the_base_alone(recipe_of, model_dir):
    before = sha256_file(model_dir / "model.safetensors")
    result = train_sft(recipe_of(method={"type": "lora", "rank": 2}))
    assert sha256_file(model_dir / "model.safetensors") == before
    saved = torch.load(result.run_dir / "checkpoints" / "step-00000003" / "state.pt", weights_only=True)
    assert all("lora_" in name for name in saved["optimizer"][0]["names"])


def test_muon_trains_the_matrices_and_adamw_the_rest(recipe_of):
    result = train_sft(recipe_of(optimizer={"type": "muon", "lr": 5e-3}, max_steps=4))
    saved = torch.load(result.run_dir / "checkpoints" / "step-00000004" / "state.pt", weights_only=True)
    matrices, rest = (part["names"] for part in saved["optimizer"])
    assert all("proj" in name for name in matrices)
    assert any("embed_tokens" in name for name in rest)
    assert result.final_nll < result.start_nll


def test_bfloat16_stays_near_float32(recipe_of, tmp_path):
    exact, rough = (train_sft(recipe_of(out=tmp_path / name, precision=name)) for name in ("fp32", "bf16"))
    assert rough.final_nll == pytest.approx(exact.final_nll, abs=0.02)


def test_weights_can_be_written_in_half_precision(recipe_of):
    result = train_sft(recipe_of(export_precision="bf16", max_steps=1))
    assert json.loads((result.model_dir / "config.json").read_text())["dtype"] == "bfloat16"
    assert AutoModelForCausalLM.from_pretrained(result.model_dir).dtype == torch.bfloat16


def test_trained_text_of_sample_rows_is_shown(recipe_of):
    shown = []
    train_sft(recipe_of(max_steps=1), say=shown.append)
    assert len(shown) == 3
    assert "<tool_call>" in shown[0]
    assert "<|im_end|>" in shown[0]
    assert "<|im_start|>" not in shown[0]


def test_an_existing_run_is_not_overwritten(recipe_of):
    recipe = recipe_of(max_steps=1)
    train_sft(recipe)
    with pytest.raises(ConfigError, match="exists; pass --force"):
        train_sft(recipe)
    assert train_sft(recipe, force=True).steps == 1


def test_a_run_below_the_floor_is_refused_and_leaves_nothing(recipe_of, tmp_path):
    with pytest.raises(DataError, match=r"14 rows with [\d,]+ trained tokens; expected at least 15 rows"):
        train_sft(recipe_of(data={"min_rows": 15}))
    with pytest.raises(DataError, match=r"expected at least 1 rows and 1,000,000 tokens"):
        train_sft(recipe_of(data={"min_trained_tokens": 1_000_000}))
    assert list(tmp_path.iterdir()) == []


def test_an_empty_training_file_is_refused(recipe_of, tmp_path):
    (tmp_path / "empty.jsonl").write_bytes(b"")
    with pytest.raises(DataError, match=r"empty\.jsonl: 0 rows with 0 trained tokens"):
        train_sft(recipe_of(data={"train": tmp_path / "empty.jsonl"}))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"model": "nowhere"}, "nowhere: no such directory; expected a local model directory; check the path"),
        ({"model": "Qwen/Qwen3-8B"}, "`hf download Qwen/Qwen3-8B --local-dir models/qwen3-8b` makes one"),
        ({"device": "cuda"}, "torch sees none"),
        ({"method": {"type": "lora", "targets": ["nothing"]}}, "method.targets: .*Linear modules here: .*q_proj"),
        ({"data": {"dev": "nowhere.jsonl"}}, "data.dev: nowhere.jsonl: no such file"),
        ({"log": {"trackers": ["wandb"]}}, "wandb is not installed"),
    ],
)
def test_a_mistake_in_the_recipe_is_explained(recipe_of, fields, message):
    if torch.cuda.is_available() and "device" in fields:
        return
    with pytest.raises(ConfigError, match=message):
        train_sft(recipe_of(**fields))


def test_a_tokenizer_without_a_chat_template_is_refused(recipe_of, model_dir, tmp_path):
    bare = tmp_path / "bare"
    bare.mkdir()
    for name in ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"):
        (bare / name).write_bytes((model_dir / name).read_bytes())
    with pytest.raises(ConfigError, match="has no chat template"):
        train_sft(recipe_of(model=bare))


def test_a_loss_that_is_not_finite_stops_the_run(recipe_of, model_dir, tmp_path):
    from firstchair.core.errors import RunFailed

    with pytest.raises(RunFailed, match="lower the learning rate"):
        train_sft(recipe_of(optimizer={"type": "adamw", "lr": 1e30}, max_steps=5, schedule={"warmup_ratio": 0.0}))


def test_a_dry_run_counts_and_estimates_and_writes_nothing(recipe_of, tmp_path):
    recipe = recipe_of(max_steps=7)
    plan = plan_sft(recipe, scratch=tmp_path / "scratch")
    assert plan.steps == 7
    assert plan.train.rows == 14
    assert plan.seconds > 0
    assert not recipe.out.exists()


def test_an_adapter_is_not_a_base(recipe_of):
    result = train_sft(recipe_of(method={"type": "lora", "rank": 2}, max_steps=1))
    (result.model_dir / "config.json").write_text("{}")
    with pytest.raises(ConfigError, match="an adapter, not a model; merge it first"):
        load_base(result.model_dir, precision="fp32", device=torch.device("cpu"))


@pytest.mark.parametrize("change", [lambda raw: raw[: len(raw) // 2], lambda raw: b"junk" * 100, lambda raw: b""])
def test_weights_that_are_cut_or_junk_are_named(model_dir, tmp_path, change):
    copy = tmp_path / "model"
    shutil.copytree(model_dir, copy)
    weights = copy / "model.safetensors"
    weights.write_bytes(change(weights.read_bytes()))
    with pytest.raises(ConfigError, match=r"model\.safetensors: not whole safetensors: .*; copy or export the file"):
        load_base(copy, precision="fp32", device=torch.device("cpu"))


def test_pytorch_weights_that_are_junk_are_an_error_of_the_model(model_dir, tmp_path):
    copy = tmp_path / "model"
    shutil.copytree(model_dir, copy)
    (copy / "model.safetensors").unlink()
    (copy / "pytorch_model.bin").write_bytes(b"junk" * 100)
    with pytest.raises(ConfigError, match="model: the model cannot be loaded"):
        load_base(copy, precision="fp32", device=torch.device("cpu"))


@pytest.mark.parametrize("name", ["adapter_model.safetensors", "adapter_config.json"])
def test_merging_a_broken_adapter_names_the_file(model_dir, tmp_path, name):
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    config = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": str(model_dir)}
    (adapter / "adapter_config.json").write_text(json.dumps({**config, "r": 2, "target_modules": ["q_proj"]}))
    (adapter / name).write_bytes(b"junk")
    with pytest.raises(ConfigError, match=rf"{name}: not .*; copy or export the file again"):
        merge_adapter(adapter, tmp_path / "merged")


def test_merging_without_the_base_says_how_to_name_it(recipe_of, tmp_path):
    result = train_sft(recipe_of(method={"type": "lora", "rank": 2}, max_steps=1))
    path = result.model_dir / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "base_model_name_or_path": "/gone"}))
    with pytest.raises(ConfigError, match="its base /gone is not here; pass --base"):
        merge_adapter(result.model_dir, tmp_path / "merged")


def test_packed_and_padded_rows_of_real_sessions_score_the_same(model_dir, dev_corpus):
    scorer = TokenScorer(load_base(model_dir, precision="fp32", device=torch.device("cpu")))
    rows = held_out_examples(dev_corpus, model_dir)
    padded, packed, shared = (scorer(collate(rows, layout=layout)) for layout in ("padded", "packed", "shared"))
    torch.testing.assert_close(packed, padded, rtol=0, atol=1e-5)
    torch.testing.assert_close(shared, padded, rtol=0, atol=1e-5)


def test_a_finished_run_with_a_damaged_result_is_refused(recipe_of):
    recipe = recipe_of(max_steps=1)
    train_sft(recipe)
    (recipe.out / "result.json").write_text("{")
    with pytest.raises(IntegrityError, match=r"result\.json: damaged"):
        train_sft(recipe, resume=True)
