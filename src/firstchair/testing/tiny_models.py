"""Tiny models with random weights, and requests as a replay or an episode makes them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from firstchair.engines.base import Engine, Generation, Request, Sampling

VOCAB = 200
WINDOW = 512


def tiny_model(kind: str, **changes: Any) -> Any:
    """A two-layer model with grouped key heads; the large weights keep its two best tokens well apart."""
    import torch
    import transformers

    shape = {
        "vocab_size": VOCAB,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 48,
        "head_dim": 8,
        "max_position_embeddings": WINDOW,
        "initializer_range": 0.4,
        "eos_token_id": None,
        "bos_token_id": None,
        "pad_token_id": 0,
        **changes,
    }
    config = getattr(transformers, f"{kind}Config")(**shape)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return getattr(transformers, f"{kind}ForCausalLM")(config).eval()


def collect(engine: Engine, requests: Sequence[Request]) -> dict[str, Generation]:
    """All generations by request id; each request must have exactly one."""

    async def run() -> dict[str, Generation]:
        found: dict[str, Generation] = {}
        async for generation in engine.generate(requests):
            assert generation.request_id not in found
            found[generation.request_id] = generation
        return found

    found = asyncio.run(run())
    assert found.keys() == {request.request_id for request in requests}
    return found


def session_requests(seed: int, *, count: int = 16, rewritten: bool = False, **sampling: Any) -> list[Request]:
    """Decisions of four sessions with one system prompt: prompts end anywhere, replies differ in length.

    ``rewritten`` makes some prompts leave their session's text half-way, as a template does that strips thinking.
    """
    draw = random.Random(seed)

    def tokens(count: int) -> list[int]:
        return [draw.randrange(VOCAB) for _ in range(count)]

    system = tokens(30)
    sessions = [system + tokens(draw.randrange(20, 120)) for _ in range(4)]
    requests = []
    for number in range(count):
        group = draw.randrange(len(sessions))
        prompt = sessions[group][: draw.randrange(20, len(sessions[group]))]
        if rewritten and draw.random() < 0.5:
            prompt = prompt[: -draw.randrange(1, 15)] + tokens(draw.randrange(1, 25))
        settings = {"max_new_tokens": draw.randrange(1, 16), "seed": number, **sampling}
        requests.append(
            Request(f"r{number}", prompt_ids=tuple(prompt), group=f"session {group}", sampling=Sampling(**settings))
        )
    return requests


def tiny_adapter(model_dir: Path, out: Path, *, seed: int, scale: float = 0.3) -> Path:
    """A PEFT adapter of rank 4 with random weights for the model in ``model_dir``, saved to ``out``."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    from firstchair.engines.quiet import quiet_loading

    config = LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj", "down_proj"], task_type="CAUSAL_LM")
    with quiet_loading():
        model = get_peft_model(AutoModelForCausalLM.from_pretrained(model_dir), config)
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            parameter.data = torch.randn(parameter.shape, generator=generator) * scale
    model.save_pretrained(out)
    return out
