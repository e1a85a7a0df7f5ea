"""The in-process engine: what it returns is what one request at a time returns, whatever shares its batch."""

from __future__ import annotations

import asyncio
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from firstchair.core.errors import BadRequest, ConfigError
from firstchair.engines.base import Engine, ErrorKind, Request, Sampling, Stop
from firstchair.engines.transformers_engine import ScoreItem, TransformersEngine
from firstchair.engines.weights import load_model
from firstchair.testing.tiny_models import VOCAB, WINDOW, collect, session_requests, tiny_model

GREEDY = Sampling(max_new_tokens=8)
DYNAMIC_ROPE = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}


def prompt(*ids: int, name: str = "r", **fields: Any) -> Request:
    return Request(name, prompt_ids=ids, sampling=fields.pop("sampling", GREEDY), **fields)


@pytest.mark.parametrize("kind", ["Qwen3", "Llama"])
@pytest.mark.parametrize("rewritten", [False, True])
def test_shared_prefixes_give_the_tokens_of_one_request_at_a_time(model_dirs, open_engine, kind, rewritten):
    packed = open_engine(model_dirs(kind))
    alone = open_engine(model_dirs(kind), prefix_sharing=False)
    assert packed.info().details["prefix_sharing"]
    for seed in range(2):
        requests = session_requests(seed, count=12, rewritten=rewritten)
        found, expected = collect(packed, requests), collect(alone, requests)
        for request in requests:
            ours, theirs = found[request.request_id], expected[request.request_id]
            assert ours.ids == theirs.ids
            assert ours.logprobs == pytest.approx(theirs.logprobs, abs=1e-4)
            assert ours.prompt_ids == request.prompt_ids


def test_one_request_at_a_time_gives_the_tokens_of_transformers_generate(model_dirs, open_engine):
    import torch

    engine = open_engine(model_dirs("Qwen3"), prefix_sharing=False)
    request = session_requests(0)[0]
    model = tiny_model("Qwen3")
    ids = torch.tensor([request.prompt_ids])
    whole = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=8, do_sample=False)
    found = collect(engine, [replace(request, sampling=GREEDY)])["r0"]
    assert list(found.ids) == whole[0, ids.shape[1] :].tolist()
    logits = model(whole).logits[0, ids.shape[1] - 1 : -1].log_softmax(-1)
    wanted = logits.gather(1, whole[0, ids.shape[1] :, None])[:, 0]
    assert found.logprobs == pytest.approx(wanted.tolist(), abs=1e-4)


@pytest.mark.parametrize("sharing", [True, False])
def test_a_seeded_sample_does_not_depend_on_its_batch(model_dirs, open_engine, sharing):
    engine = open_engine(model_dirs("Qwen3"), prefix_sharing=sharing)
    requests = session_requests(1, temperature=1.0, top_p=0.9, top_k=50)
    together = collect(engine, requests)
    for request in requests[:4]:
        assert collect(engine, [request])[request.request_id].ids == together[request.request_id].ids
    other_seed = replace(requests[0], sampling=replace(requests[0].sampling, seed=99, max_new_tokens=12))
    same_seed = replace(requests[0], sampling=replace(requests[0].sampling, max_new_tokens=12))
    assert collect(engine, [other_seed])["r0"].ids != collect(engine, [same_seed])["r0"].ids


def test_a_small_token_budget_serves_the_same_in_waves(model_dirs, open_engine):
    requests = session_requests(2, count=24, rewritten=True)
    wide = collect(open_engine(model_dirs("Qwen3")), requests)
    narrow_engine = open_engine(model_dirs("Qwen3"), max_batch_tokens=300)
    narrow = collect(narrow_engine, requests)
    assert {name: g.ids for name, g in narrow.items()} == {name: g.ids for name, g in wide.items()}


def test_a_request_over_the_token_budget_is_refused_and_the_others_served(model_dirs, open_engine):
    engine = open_engine(model_dirs("Qwen3"), max_batch_tokens=64)
    found = collect(engine, [prompt(*[3] * 100, name="long"), prompt(5, 6, name="short")])
    assert found["long"].stop is Stop.ERROR
    assert found["long"].error_kind is ErrorKind.CONTEXT_OVERFLOW
    assert "max_batch_tokens=64" in found["long"].error
    assert found["short"].stop is Stop.LENGTH


def test_the_next_step_of_a_session_reuses_its_keys_and_gives_the_same_tokens(model_dirs, open_engine):
    engine = open_engine(model_dirs("Qwen3"))
    alone = open_engine(model_dirs("Qwen3"), prefix_sharing=False)
    first = {f"s{n}": tuple(range(10 + n, 50 + n)) for n in range(3)}
    prompts = dict(first)
    for step in range(4):
        requests = [prompt(*ids, name=name, group=name) for name, ids in prompts.items()]
        found, expected = collect(engine, requests), collect(alone, requests)
        for name, generation in found.items():
            assert generation.ids == expected[name].ids
            if step:
                # All but the last sampled token, which was never read, and what the environment added.
                assert generation.cached_tokens == len(prompts[name]) - 1 - 3
            prompts[name] += (*generation.ids, step, step + 1, step + 2)


def test_a_session_whose_history_is_rewritten_keeps_only_the_true_common_prefix(model_dirs, open_engine):
    engine = open_engine(model_dirs("Qwen3"))
    alone = open_engine(model_dirs("Qwen3"), prefix_sharing=False)
    ids = tuple(range(40))
    for cut in (40, 30, 35, 12, 1, 40):
        request = prompt(*ids[:cut], 150 + cut, 7, name="s", group="s")
        assert collect(engine, [request])["s"].ids == collect(alone, [request])["s"].ids


def test_the_cache_between_calls_stays_within_its_bound(model_dirs, open_engine):
    engine = open_engine(model_dirs("Qwen3"), max_cached_tokens=100)
    for number in range(12):
        collect(engine, [prompt(*range(number, number + 40), name="s", group=f"s{number}")])
        assert asyncio.run(engine._when_idle(lambda: engine._serving.runner.cached_tokens)) <= 100
    nothing_kept = open_engine(model_dirs("Qwen3"), max_cached_tokens=0)
    request = prompt(*range(40), name="s", group="s")
    for _ in range(2):
        assert collect(nothing_kept, [request])["s"].cached_tokens == 0
        # What is over the bound goes when the engine has nothing to do.
        assert asyncio.run(nothing_kept._when_idle(lambda: nothing_kept._serving.runner.cached_tokens)) == 0


@pytest.mark.parametrize("sharing", [True, False])
def test_a_bad_request_yields_a_typed_error_and_the_others_go_on(model_dirs, open_engine, sharing):
    engine = open_engine(model_dirs("Qwen3"), prefix_sharing=sharing)
    bad = {
        "window": (prompt(*[1] * WINDOW), ErrorKind.CONTEXT_OVERFLOW),
        "vocabulary": (prompt(1, VOCAB), ErrorKind.BAD_REQUEST),
        "negative": (prompt(-1), ErrorKind.BAD_REQUEST),
        "empty": (prompt(), ErrorKind.BAD_REQUEST),
        "no renderer": (Request("r"), ErrorKind.BAD_REQUEST),
        "top_p": (prompt(1, sampling=Sampling(top_p=0.0)), ErrorKind.BAD_REQUEST),
        "temperature": (prompt(1, sampling=Sampling(temperature=-1.0)), ErrorKind.BAD_REQUEST),
        "nothing": (prompt(1, sampling=Sampling(max_new_tokens=0)), ErrorKind.BAD_REQUEST),
    }
    requests = [replace(request, request_id=name) for name, (request, _) in bad.items()]
    requests.insert(3, prompt(1, 2, 3, name="good"))
    found = collect(engine, requests)
    for name, (_, kind) in bad.items():
        assert (found[name].stop, found[name].error_kind, found[name].ids) == (Stop.ERROR, kind, None)
        assert found[name].error.startswith(f"{kind}: ")
    assert len(found["good"].ids) == 8


@pytest.mark.parametrize("sharing", [True, False])
def test_a_reply_ends_at_the_context_window(model_dirs, open_engine, sharing):
    engine = open_engine(model_dirs("Qwen3"), prefix_sharing=sharing)
    found = collect(engine, [prompt(*[1] * (WINDOW - 3), name="edge"), prompt(*range(9), name="other")])
    assert (found["edge"].stop, len(found["edge"].ids)) == (Stop.LENGTH, 3)
    assert len(found["other"].ids) == 8


@pytest.mark.parametrize("sharing", [True, False])
def test_the_stop_token_ends_a_reply_and_is_part_of_its_ids(tmp_path, open_engine, sharing):
    model = tiny_model("Qwen3")
    free = open_engine(_saved(model, tmp_path / "free"), prefix_sharing=sharing)
    ids = collect(free, [prompt(1, 2, 3)])["r"].ids
    model.generation_config.eos_token_id = ids[4]
    stopping = open_engine(_saved(model, tmp_path / "stopping"), prefix_sharing=sharing)
    found = collect(stopping, [prompt(1, 2, 3), prompt(9, 8, name="other", sampling=Sampling(max_new_tokens=3))])
    cut = ids.index(ids[4]) + 1
    assert (found["r"].stop, found["r"].ids) == (Stop.END, ids[:cut])
    assert len(found["r"].logprobs) == cut


@pytest.mark.parametrize("sharing", [True, False])
def test_a_cancelled_request_yields_what_it_has(model_dirs, open_engine, sharing):
    engine = open_engine(model_dirs("Qwen3"), prefix_sharing=sharing)

    async def run() -> None:
        requests = [
            prompt(1, 2, name="long", sampling=Sampling(max_new_tokens=400)),
            prompt(1, 2, 3, name="queued behind", sampling=Sampling(max_new_tokens=2)),
        ]
        stream = engine.generate(requests)
        cancelled = asyncio.create_task(_cancel_soon(engine, "long"))
        found = {generation.request_id: generation async for generation in stream}
        assert await cancelled
        assert found["long"].stop is Stop.CANCELLED
        assert len(found["long"].ids) == len(found["long"].logprobs) < 400
        assert found["queued behind"].stop is Stop.LENGTH
        assert not await engine.cancel("long")
        assert not await engine.cancel("never seen")

    asyncio.run(run())


async def _cancel_soon(engine: TransformersEngine, name: str) -> bool:
    await asyncio.sleep(0.05)
    return await engine.cancel(name)


def test_leaving_the_stream_early_cancels_the_rest(model_dirs, open_engine):
    engine = open_engine(model_dirs("Qwen3"))

    async def run() -> None:
        requests = [prompt(1, n, name=f"r{n}", sampling=Sampling(max_new_tokens=2 + 200 * n)) for n in range(3)]
        stream = engine.generate(requests)
        assert (await anext(stream)).request_id == "r0"
        await stream.aclose()
        assert not await engine.cancel("r2")
        # Scoring waits for the engine to be idle, which the rest would delay by hundreds of steps.
        await engine.score_ids([1], [2])
        assert not engine._serving.runner.busy

    asyncio.run(run())


def test_calls_from_several_tasks_share_the_engine(model_dirs, open_engine):
    engine = open_engine(model_dirs("Qwen3"))
    requests = session_requests(3)
    expected = collect(engine, requests)

    async def one(request: Request) -> tuple[str, Any]:
        return request.request_id, [generation async for generation in engine.generate([request])]

    async def run() -> None:
        for name, generations in await asyncio.gather(*(one(request) for request in requests)):
            assert [g.ids for g in generations] == [expected[name].ids]

    asyncio.run(run())


def test_a_failure_inside_the_model_ends_its_requests_and_leaves_the_engine_usable(model_dirs, open_engine):
    engine = open_engine(model_dirs("Qwen3"))
    expected = collect(engine, [prompt(1, 2, 3)])["r"].ids
    model = engine._serving.loaded.model
    model.forward, working = _fails, model.forward
    found = collect(engine, [prompt(1, 2, name="a", group="a"), prompt(1, 2, 3, name="b")])
    assert {(g.stop, g.error_kind) for g in found.values()} == {(Stop.ERROR, ErrorKind.ENGINE)}
    assert "out of memory" in found["a"].error
    model.forward = working
    assert collect(engine, [prompt(1, 2, 3)])["r"].ids == expected


def _fails(*_: Any, **__: Any) -> None:
    raise RuntimeError("out of memory")


def test_a_closed_engine_refuses(model_dirs):
    engine = TransformersEngine(model_dirs("Qwen3"))
    assert isinstance(engine, Engine)
    collect(engine, [prompt(1)])
    asyncio.run(engine.close())
    found = collect(engine, [prompt(1)])["r"]
    assert (found.stop, found.error_kind) == (Stop.ERROR, ErrorKind.ENGINE)
    with pytest.raises(RuntimeError, match="closed"):
        asyncio.run(engine.score_ids([1], [2]))
    asyncio.run(engine.close())


def test_closing_ends_what_is_in_flight(model_dirs):
    engine = TransformersEngine(model_dirs("Qwen3"))

    async def run() -> None:
        stream = engine.generate([prompt(1, sampling=Sampling(max_new_tokens=500))])
        closing = asyncio.create_task(engine.close())
        found = [generation async for generation in stream]
        await closing
        assert [generation.stop for generation in found] == [Stop.ERROR]

    asyncio.run(run())


def test_scores_are_the_log_probabilities_that_sampling_reported(model_dirs, open_engine):
    packed = open_engine(model_dirs("Llama"))
    alone = open_engine(model_dirs("Llama"), prefix_sharing=False)
    requests = session_requests(4, rewritten=True, temperature=1.0)
    found = collect(packed, requests)
    items = [ScoreItem(r.prompt_ids, found[r.request_id].ids, r.group) for r in requests]
    for request, ours, theirs in zip(
        requests, asyncio.run(packed.score(items)), asyncio.run(alone.score(items)), strict=True
    ):
        assert ours == pytest.approx(found[request.request_id].logprobs, abs=1e-4)
        assert ours == pytest.approx(theirs, abs=1e-4)
    one = asyncio.run(packed.score_ids(items[0].prompt_ids, items[0].ids))
    assert one == pytest.approx(found["r0"].logprobs, abs=1e-4)


def test_scoring_in_a_small_budget_gives_the_same(model_dirs, open_engine):
    requests = session_requests(5)
    items = [ScoreItem(r.prompt_ids, r.prompt_ids[:9], r.group) for r in requests]
    wide = asyncio.run(open_engine(model_dirs("Qwen3")).score(items))
    narrow = asyncio.run(open_engine(model_dirs("Qwen3"), max_batch_tokens=200).score(items))
    for ours, theirs in zip(wide, narrow, strict=True):
        assert ours == pytest.approx(theirs, abs=1e-4)


@pytest.mark.parametrize(
    "item",
    [
        ScoreItem((), (1,)),
        ScoreItem((1,), ()),
        ScoreItem((1,), (VOCAB,)),
        ScoreItem((1,) * WINDOW, (1, 2)),
    ],
)
def test_an_item_that_cannot_be_scored_is_named(model_dirs, open_engine, item):
    engine = open_engine(model_dirs("Qwen3"))
    with pytest.raises(BadRequest, match=r"items\[1\]"):
        asyncio.run(engine.score([ScoreItem((1,), (2,)), item]))


def test_reload_serves_the_new_weights_and_forgets_the_old_keys(tmp_path, open_engine):
    import torch

    model = tiny_model("Qwen3")
    old_dir = _saved(model, tmp_path / "old")
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(-1.1)
    new_dir = _saved(model, tmp_path / "new")
    engine = open_engine(old_dir)
    request = prompt(*range(60), name="s", group="s")
    before = collect(engine, [request])["s"]
    old = engine.info()
    new = asyncio.run(engine.reload(new_dir))
    after = collect(engine, [request])["s"]
    assert after.cached_tokens == 0
    assert after.ids == collect(open_engine(new_dir), [request])["s"].ids != before.ids
    assert (before.revision, after.revision) == (old.revision, new.revision)
    assert old.revision != new.revision
    with pytest.raises(ConfigError, match="no config"):
        asyncio.run(engine.reload(tmp_path / "nowhere"))
    assert engine.info() == new
    assert collect(engine, [request])["s"].ids == after.ids


@pytest.mark.parametrize("prefix_sharing", [True, False])
def test_weights_from_memory_are_those_of_a_reload(tmp_path, open_engine, prefix_sharing):
    import torch

    model = tiny_model("Qwen3")
    engine = open_engine(_saved(model, tmp_path / "old"), prefix_sharing=prefix_sharing)
    request = prompt(*range(60), name="s", group="s")
    before = collect(engine, [request])["s"]
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(-1.1)
    info = asyncio.run(engine.take_weights(dict(model.named_parameters())))
    with torch.no_grad():  # what was taken is a copy
        expected = collect(open_engine(_saved(model, tmp_path / "new")), [request])["s"]
        for weight in model.parameters():
            weight.zero_()
    after = collect(engine, [request])["s"]
    assert after.ids == expected.ids != before.ids
    assert after.logprobs == pytest.approx(expected.logprobs, abs=1e-5)
    assert after.cached_tokens == 0
    assert before.revision != after.revision == info.revision
    with pytest.raises(ConfigError, match=r"lm_head|layers|embed"):
        asyncio.run(engine.take_weights({}))
    assert collect(engine, [request])["s"].ids == after.ids


def test_requests_in_flight_finish_on_the_weights_they_began_with(model_dirs, open_engine):
    engine = open_engine(model_dirs("Qwen3"))
    other = model_dirs("Qwen3", initializer_range=0.3)
    request = prompt(*range(30), sampling=Sampling(max_new_tokens=60))
    alone = collect(engine, [request])["r"]

    async def run() -> None:
        running = asyncio.create_task(_all(engine, [request]))
        await asyncio.sleep(0)
        reloading = asyncio.create_task(engine.reload(other))
        await asyncio.sleep(0)
        later = asyncio.create_task(_all(engine, [request]))
        first, info, second = (await running)[0], await reloading, (await later)[0]
        assert (first.ids, first.revision) == (alone.ids, alone.revision)
        assert second.revision == info.revision != alone.revision
        assert second.ids != first.ids

    asyncio.run(run())


async def _all(engine: TransformersEngine, requests: list[Request]) -> list[Any]:
    return [generation async for generation in engine.generate(requests)]


# peft 0.21 asks transformers 5.24 for an attribute that it has deprecated.
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
def test_an_adapter_changes_tokens_and_revision_and_can_be_taken_off(tmp_path, model_dirs, open_engine):
    from peft import LoraConfig, get_peft_model

    base = model_dirs("Qwen3")
    wrapped = get_peft_model(
        tiny_model("Qwen3"), LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    )
    wrapped.save_pretrained(tmp_path / "adapter")
    engine = open_engine(base)
    plain, info = collect(engine, [prompt(1, 2, 3)])["r"], engine.info()
    adapted = asyncio.run(engine.set_adapter(tmp_path / "adapter"))
    found = collect(engine, [prompt(1, 2, 3)])["r"]
    assert found.ids != plain.ids
    assert adapted.revision != info.revision
    assert adapted.details["adapter"] == str(tmp_path / "adapter")
    assert collect(open_engine(base, adapter=tmp_path / "adapter"), [prompt(1, 2, 3)])["r"].ids == found.ids
    assert asyncio.run(engine.set_adapter(None)).revision == info.revision
    assert collect(engine, [prompt(1, 2, 3)])["r"].ids == plain.ids


def test_the_revision_names_the_content_of_the_weights(tmp_path, model_dirs, open_engine):
    base = model_dirs("Qwen3")
    copy = tmp_path / "copy"
    shutil.copytree(base, copy)
    assert open_engine(copy).info().revision == open_engine(base).info().revision
    file = copy / "model.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    assert open_engine(copy).info().revision != open_engine(base).info().revision


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("Mistral", {"sliding_window": 8}),
        ("Gemma2", {"sliding_window": 8}),
        ("Qwen3", {"rope_parameters": DYNAMIC_ROPE}),
    ],
)
def test_a_model_that_packing_does_not_know_is_served_one_at_a_time(model_dirs, open_engine, kind, changes):
    directory = model_dirs(kind, **changes)
    engine, alone = open_engine(directory), open_engine(directory, prefix_sharing=False)
    assert engine.info().details["one_at_a_time_because"]
    requests = session_requests(6, count=4)
    found, expected = collect(engine, requests), collect(alone, requests)
    assert {name: g.ids for name, g in found.items()} == {name: g.ids for name, g in expected.items()}


def test_bfloat16_decodes_close_to_float32(model_dirs, open_engine):
    half = open_engine(model_dirs("Qwen3", initializer_range=0.1), dtype="bfloat16")
    full = open_engine(model_dirs("Qwen3", initializer_range=0.1))
    assert half.info().details["prefix_sharing"]
    requests = session_requests(7, count=4)
    found = collect(half, requests)
    items = [ScoreItem(r.prompt_ids, found[r.request_id].ids) for r in requests]
    for item, request in zip(asyncio.run(full.score(items)), requests, strict=True):
        assert item == pytest.approx(found[request.request_id].logprobs, abs=0.15)


@pytest.mark.parametrize(
    ("options", "message"),
    [({"dtype": "float8"}, "dtype"), ({"adapter": "nowhere"}, "adapter_config.json")],
)
def test_settings_that_cannot_be_served_are_config_errors(model_dirs, options, message):
    with pytest.raises(ConfigError, match=message):
        TransformersEngine(model_dirs("Qwen3"), **options)


def test_a_broken_weight_file_is_a_config_error(tmp_path, model_dirs):
    broken = tmp_path / "broken"
    shutil.copytree(model_dirs("Qwen3"), broken)
    (broken / "model.safetensors").write_bytes(b"\x00" * 64)
    with pytest.raises(ConfigError, match="cannot be loaded"):
        TransformersEngine(broken)
    (broken / "model.safetensors").unlink()
    with pytest.raises(ConfigError, match="no weight files"):
        TransformersEngine(broken)


def _saved(model: Any, directory: Path) -> Path:
    model.save_pretrained(directory)
    return directory


@pytest.mark.parametrize("device", ["foo", "cuda:99", "meta"])
def test_a_device_that_is_not_there_is_named_before_anything_is_read(device, tmp_path):
    with pytest.raises(ConfigError, match=f"device: found '{device}', and torch cannot use it here"):
        load_model(tmp_path / "no-model", device=device)
