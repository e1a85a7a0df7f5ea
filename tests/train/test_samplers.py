"""GRPO against servers: the wires of vLLM and SGLang with a real model behind; a real vLLM is in test_grpo_vllm."""

import pytest
from tests.train.policy_server import NAME, PolicyServer
from tests.train.test_grpo_run import lines_of, recipe_of

from firstchair.core.errors import ConfigError, RunFailed
from firstchair.testing.engine_process import free_port
from firstchair.testing.fault_server import Answer
from firstchair.train.checkpoints import list_checkpoints
from firstchair.train.grpo_run import train_grpo

pytestmark = pytest.mark.usefixtures("one_thread")

ROLLOUTS = {"prompts": 1, "samples": 2, "max_steps": 2, "max_new_tokens": 4}
# No two requests take equally long, so every group has something to learn from.
REWARD = {
    "components": [
        {"name": "partly", "kind": "verifier", "check": "checks"},
        {"name": "waited", "kind": "latency", "weight": -1.0, "bounds": [0, 1000]},
    ]
}
LORA = {"type": "lora", "rank": 4}
SAMPLING = ("/v1/completions", "/generate")


def served(base, out, url, *, kind="vllm", engine=None, **changes):
    """A recipe that samples from the server at ``url``."""
    fields = {"type": kind, "base_url": url, "dtype": "float32", "tries": 1, **(engine or {})}
    if kind == "vllm":
        fields["model"] = NAME
    return recipe_of(base, out, engine=fields, **{"rollouts": ROLLOUTS, "reward": REWARD, **changes})


def samples(seen):
    """Whether a request samples, and does not probe."""
    if seen.path == "/v1/completions":
        return "allowed_token_ids" not in seen.body
    return seen.path == "/generate" and seen.body["sampling_params"]["max_new_tokens"] > 0


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
@pytest.mark.parametrize("method", ["full", "lora"])
def test_a_policy_learns_from_what_a_server_samples_with_the_newest_weights(base, tmp_path, kind, method):
    changes = {"method": LORA} if method == "lora" else {}
    with PolicyServer(base) as server:
        run = train_grpo(served(base, tmp_path / "run", server.url, kind=kind, batches=2, **changes))
    for line in run.metrics:
        assert line["behaviour_diff_max"] < 1e-3
        assert line["ungraded"] == 0
        assert line["grad_norm"] > 0
    weights = [set(line["weights"]) for line in lines_of(run.run_dir)]
    assert len(weights) == 4
    assert all(len(names) == 1 for names in weights)
    assert len(set.union(*weights)) == 2
    assert [path.name for path in (run.run_dir / "pushed").iterdir()] == ["push-00000002"]
    if method == "lora":
        named = {seen.body.get("model", seen.body.get("lora_path")) for seen in server.seen if samples(seen)}
        assert named - {NAME, None} == {"m-run" if kind == "vllm" else "base-run"}
    # Nothing of the sampler is left to what the server finds beside the model.
    for seen in filter(samples, server.seen):
        sent = seen.body if kind == "vllm" else seen.body["sampling_params"]
        assert (sent["temperature"], sent["top_p"], sent["min_p"], sent["repetition_penalty"]) == (1, 1, 0, 1)
        assert sent["top_k"] == (0 if kind == "vllm" else -1)
        assert (sent["presence_penalty"], sent["frequency_penalty"]) == (0, 0)


def dying(batch, after):
    """From the ``after``-th sample of a batch on every connection breaks; the check at the start samples once."""
    count = [0]
    last = 1 + (batch - 1) * 4 + after

    def fault(seen, number):
        count[0] += samples(seen)
        if count[0] > last:
            raise ConnectionResetError
        return None

    return fault


@pytest.mark.parametrize(("kind", "after"), [("vllm", 0), ("vllm", 3), ("sglang", 3)])
def test_a_server_that_dies_in_mid_batch_stops_the_run_and_another_goes_on(base, tmp_path, kind, after):
    with PolicyServer(base, dying(batch=2, after=after)) as server, pytest.raises(RunFailed) as stopped:
        train_grpo(served(base, tmp_path / "run", server.url, kind=kind))
    # Without its `/v1`, where the server has none.
    assert server.url.removesuffix("/v1") in str(stopped.value)
    assert "resume" in str(stopped.value)
    # What was half sampled was not trained on.
    assert [path.name for path in list_checkpoints(tmp_path / "run" / "checkpoints")] == ["step-00000001"]
    with PolicyServer(base) as other:
        engine = {"weights_dir": str(tmp_path / "elsewhere"), "tries": 2, "try_s": 60.0}
        run = train_grpo(served(base, tmp_path / "run", other.url, kind=kind, engine=engine), resume=True)
    assert [line["step"] for line in run.metrics] == [1, 2, 3]
    assert [line["ungraded"] for line in run.metrics] == [0, 0, 0]
    tasks = [line["task_id"] for line in lines_of(run.run_dir) if line["sample"] == 0]
    assert len(set(tasks)) == 3
    assert len(list((tmp_path / "elsewhere").iterdir())) == 1


def test_an_adapter_that_a_killed_run_left_on_sglang_is_replaced(base, tmp_path):
    with PolicyServer(base, dying(batch=2, after=0)) as server:
        recipe = served(base, tmp_path / "run", server.url, kind="sglang", method=LORA)
        with pytest.raises(RunFailed, match="resume"):
            train_grpo(recipe)
        server.fault = lambda seen, number: None
        run = train_grpo(recipe, resume=True)
    assert [line["step"] for line in run.metrics] == [1, 2, 3]


def test_a_server_that_hangs_stops_the_run(base, tmp_path):
    def fault(seen, number):
        hangs = samples(seen) and sum(map(samples, server.seen)) > 1
        return Answer(stall=True) if hangs else None

    with PolicyServer(base, fault) as server, pytest.raises(RunFailed) as stopped:
        train_grpo(served(base, tmp_path / "run", server.url, engine={"try_s": 2.0}))
    assert "none of 2 rollouts could be graded" in str(stopped.value)
    assert f"{server.url}/: no answer within 2 s" in str(stopped.value)


def test_a_server_that_was_started_anew_between_two_requests_is_found_out(base, tmp_path):
    """No request fails, and what it samples from then on are the weights that it began with."""

    def fault(seen, number):
        if samples(seen) and sum(map(samples, server.seen)) == 8:
            server.start_anew()

    recipe = {"optimizer": {"type": "adamw", "lr": 3e-2}}
    with PolicyServer(base, fault) as server, pytest.raises(RunFailed) as stopped:
        train_grpo(served(base, tmp_path / "run", server.url, **recipe))
    assert f"engine at {server.url}: the engine no longer answers with the pushed weights" in str(stopped.value)
    assert len(lines_of(tmp_path / "run")) == 2


def without(name):
    """Answers that lack a field."""

    def fault(seen, number):
        choice = {"text": "", "token_ids": [5], "logprobs": {"token_logprobs": [-1.0]}, "finish_reason": "length"}
        return Answer({"choices": [{key: value for key, value in choice.items() if key != name}]})

    return fault


def processed(seen, number):
    if samples(seen):
        return None
    choice = {"text": "", "token_ids": seen.body["allowed_token_ids"], "logprobs": {"token_logprobs": [0.0]}}
    return Answer({"choices": [{**choice, "finish_reason": "length"}]})


def without_route(seen, number):
    return None if seen.path in SAMPLING else Answer({"detail": "Not Found"}, status=404)


@pytest.mark.parametrize(
    ("fault", "method", "error", "flag"),
    [
        (without("token_ids"), "full", ConfigError, "return_token_ids"),
        (without("logprobs"), "full", ConfigError, "--max-logprobs"),
        (processed, "full", ConfigError, "--logprobs-mode raw_logprobs"),
        (without_route, "full", RunFailed, "--worker-extension-cls"),
        (without_route, "lora", RunFailed, "--enable-lora"),
        (lambda *_: Answer({"error": {"message": "no model x"}}, status=404), "full", ConfigError, "no model x"),
        (lambda *_: Answer({}, status=500), "full", RunFailed, "--no-enable-chunked-prefill"),
    ],
    ids=["ids", "logprobs", "processed", "models", "adapters", "name", "broken"],
)
def test_a_server_that_cannot_be_trained_with_is_refused_with_the_flag_that_it_lacks(
    base, tmp_path, fault, method, error, flag
):
    changes = {"method": LORA} if method == "lora" else {}
    with PolicyServer(base, fault) as server, pytest.raises(error) as refused:
        train_grpo(served(base, tmp_path / "run", server.url, **changes))
    assert server.url in str(refused.value)
    assert flag in str(refused.value)
    assert not (tmp_path / "run" / "rollouts.jsonl").exists()


def test_nobody_at_the_address_is_told_at_once(base, tmp_path):
    url = f"http://127.0.0.1:{free_port()}/v1"
    with pytest.raises(RunFailed, match=rf"engine at {url}: no answer: connection.*start it"):
        train_grpo(served(base, tmp_path / "run", url))


def test_a_key_that_is_not_set_is_named_and_one_that_is_goes_with_every_request(base, tmp_path, monkeypatch):
    engine = {"api_key_env": "POLICY_KEY"}
    with PolicyServer(base) as server:
        recipe = served(base, tmp_path / "run", server.url, engine=engine, batches=1)
        with pytest.raises(ConfigError, match=r"engine.api_key_env: the environment variable POLICY_KEY is not set"):
            train_grpo(recipe)
        monkeypatch.setenv("POLICY_KEY", "secret")
        train_grpo(recipe, force=True)
    assert {seen.headers["authorization"] for seen in server.seen} == {"Bearer secret"}
    assert b"secret" not in b"".join(p.read_bytes() for p in (tmp_path / "run").rglob("*.json*"))


def test_what_a_crash_left_half_written_goes_and_numbers_go_on(base, tmp_path):
    pushed = tmp_path / "weights"
    for name in (".push-00000007.abcd", "push-00000006"):
        (pushed / name).mkdir(parents=True)
    (pushed / "mine").write_text("stays")
    with PolicyServer(base) as server:
        train_grpo(served(base, tmp_path / "run", server.url, engine={"weights_dir": str(pushed)}, batches=1))
    assert sorted(path.name for path in pushed.iterdir()) == ["mine", "push-00000007"]


def test_a_resumed_run_may_have_its_server_elsewhere_and_no_other_kind(base, tmp_path):
    one = served(base, tmp_path / "run", "http://127.0.0.1:1/v1")
    moved = {"api_key_env": "KEY", "tries": 9, "try_s": 1.0, "weights_dir": "/shared"}
    assert served(base, tmp_path / "run", "http://other:2/v1", engine=moved).sha256() == one.sha256()
    assert served(base, tmp_path / "run", one.engine.base_url, engine={"dtype": "bfloat16"}).sha256() != one.sha256()
    assert served(base, tmp_path / "run", one.engine.base_url, kind="sglang").sha256() != one.sha256()
    # Runs from before there was a choice go on.
    plain = recipe_of(base, tmp_path / "run")
    assert "engine" not in plain.shaping()
    assert plain.sha256() == recipe_of(base, tmp_path / "run", engine={"type": "transformers"}).sha256()


@pytest.mark.parametrize(
    ("engine", "problem"),
    [
        ({"type": "vllm", "base_url": "http://h/v1", "model": "m"}, r"engine.vllm.dtype: Field required"),
        ({"type": "vllm", "base_url": "http://u:p@h/v1", "model": "m", "dtype": "float32"}, "without user or query"),
        ({"type": "sglang", "base_url": "h:1", "dtype": "float32"}, "expected an address such as"),
        ({"type": "llama"}, "engine"),
        ({"base_url": "http://h/v1"}, "engine.transformers.base_url: unknown field"),
    ],
)
def test_a_section_that_cannot_work_is_refused(base, tmp_path, engine, problem):
    with pytest.raises(ConfigError, match=problem):
        recipe_of(base, tmp_path / "run", engine=engine)
