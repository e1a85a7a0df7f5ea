"""The wires of vLLM and SGLang as a trainer uses them, with a real model behind, for tests without a real server."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from firstchair.chat.renderer import Renderer
from firstchair.engines.base import Generation, Request, Sampling, Stop
from firstchair.engines.scoring import ScoreItem
from firstchair.engines.transformers_engine import TransformersEngine
from firstchair.testing.fault_server import Answer, FaultServer, Seen
from firstchair.train.rollout_source import LoopThread

NAME = "m"
Fault = Callable[[Seen, int], Answer | None]
"""What to answer in place of the truth; ``None``: the truth. The number counts requests from 0."""


class PolicyServer:
    """A running server of ``base`` under the name ``m``; a context manager."""

    def __init__(self, base: Path, fault: Fault = lambda seen, number: None):
        self.fault = fault
        self._base, self._thread, self._server = base, LoopThread(), FaultServer(self._script)
        self._adapters: dict[str, Path] = {}
        self._loaded: tuple[Path, Path | None] = (base, None)

    @property
    def url(self) -> str:
        """With ``/v1``."""
        return f"{self._server.base_url}/v1"

    @property
    def seen(self) -> list[Seen]:
        """The requests as they came."""
        return self._server.seen

    def __enter__(self) -> "PolicyServer":
        self._engine = TransformersEngine(self._base, Renderer.from_pretrained(self._base))
        self._thread.__enter__()
        self._server.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.__exit__()
        self._thread.call(self._engine.close())
        self._thread.__exit__()

    def start_anew(self) -> None:
        """As a supervisor would that found it dead: with the model that it began with."""
        self._adapters.clear()
        self._load(self._base, None)

    def _load(self, model: Path, adapter: Path | None) -> None:
        if self._loaded != (model, adapter):
            self._thread.call(self._engine.reload(model, adapter))
            self._loaded = (model, adapter)

    def _script(self, seen: Seen, number: int) -> Answer:
        fault = self.fault(seen, number)
        if fault is not None:
            return fault
        answer: Answer = getattr(self, "do_" + seen.path.rpartition("/")[2])(seen.body)
        return answer

    # --- vLLM ---

    def do_completions(self, body: dict[str, Any]) -> Answer:
        if body["model"] != NAME and body["model"] not in self._adapters:
            return Answer({"error": {"message": f"The model `{body['model']}` does not exist."}}, status=404)
        self._use(self._adapters.get(body["model"]))
        prompt = tuple(body["prompt"])
        if "allowed_token_ids" in body:
            (wanted,) = body["allowed_token_ids"]
            return _completion((wanted,), self._score(ScoreItem(prompt, (wanted,))), Stop.LENGTH)
        made = self._sample(prompt, body["max_tokens"], body["temperature"], body["seed"])
        return _completion(made.ids, made.logprobs, made.stop)

    def do_load_lora_adapter(self, body: dict[str, Any]) -> Answer:
        name = body["lora_name"]
        if name in self._adapters and not body.get("load_inplace"):
            return Answer({"success": False, "error_message": f"{name} is already loaded"}, status=400)
        self._adapters[name] = Path(body["lora_path"])
        self._use(self._adapters[name])
        return Answer({"success": True})

    def do_collective_rpc(self, body: dict[str, Any]) -> Answer:
        assert body["method"] == "firstchair_load"
        self._load(Path(body["kwargs"]["weights_path"]), None)
        return Answer({"results": [{"embeddings": 1}]})

    def do_reset_prefix_cache(self, body: dict[str, Any]) -> Answer:
        return Answer({"success": True})

    # --- SGLang ---

    def do_generate(self, body: dict[str, Any]) -> Answer:
        self._use(self._adapters[body["lora_path"]] if "lora_path" in body else None)
        ids, sampling = tuple(body["input_ids"]), body["sampling_params"]
        if sampling["max_new_tokens"] == 0:
            start = body["logprob_start_len"] + 1
            scores = self._score(ScoreItem(ids[:start], ids[start:]))
            rows = [[score, token, None] for score, token in zip(scores, ids[start:], strict=True)]
            return Answer({"text": "", "meta_info": {"input_token_logprobs": [[None, ids[start - 1], None], *rows]}})
        made = self._sample(ids, sampling["max_new_tokens"], sampling["temperature"], len(self.seen))
        assert made.ids is not None
        assert made.logprobs is not None
        rows = [[score, token, None] for score, token in zip(made.logprobs, made.ids, strict=True)]
        about = {
            "finish_reason": {"type": "stop" if made.stop is Stop.END else "length"},
            "prompt_tokens": len(ids),
            "completion_tokens": len(made.ids),
            "output_token_logprobs": rows,
        }
        return Answer({"text": made.text, "output_ids": made.ids, "meta_info": about})

    def do_update_weights_from_disk(self, body: dict[str, Any]) -> Answer:
        self._load(Path(body["model_path"]), None)
        return Answer({"success": True})

    def do_unload_lora_adapter(self, body: dict[str, Any]) -> Answer:
        if self._adapters.pop(body["lora_name"], None) is None:
            return Answer({"success": False, "error_message": "not loaded"}, status=400)
        return Answer({"success": True})

    def do_flush_cache(self, body: dict[str, Any]) -> Answer:
        return Answer(b"Cache flushed.\n")

    def _use(self, adapter: Path | None) -> None:
        self._load(self._loaded[0], adapter)

    def _score(self, item: ScoreItem) -> tuple[float, ...]:
        (scores,) = self._thread.call(self._engine.score([item]))
        return scores

    def _sample(self, prompt: tuple[int, ...], tokens: int, temperature: float, seed: int) -> Generation:
        async def one() -> Generation:
            sampling = Sampling(max_new_tokens=tokens, temperature=temperature, seed=seed)
            asked = [Request("r", prompt_ids=prompt, sampling=sampling)]
            (made,) = [generation async for generation in self._engine.generate(asked)]
            return made

        return self._thread.call(one())


def _completion(ids: Any, logprobs: Any, stop: Stop) -> Answer:
    choice = {
        "text": "",
        "token_ids": ids,
        "logprobs": {"token_logprobs": logprobs},
        "finish_reason": "stop" if stop is Stop.END else "length",
    }
    return Answer({"choices": [choice]})
