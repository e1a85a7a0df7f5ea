"""What the demo asks of the in-process engine: a replay of many short sessions, then the same in lockstep.

    python bench/engine_load.py [--sessions 60 --decisions 11 --hidden 192 --layers 5]

Random tokens and random weights: a shared system prompt, sessions that grow by a reply and an observation a step.
Replay asks for all decisions at once; lockstep asks for one decision of every session at a time, each prompt
holding the reply before, as live episodes do. With more than one thread it is done twice, the second time with an
OpenMP pool of the main thread lying idle beside the engine's (see ``engines/openmp.py``). CPU seconds: with one
thread, wall time on a free core is the same figure.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import tempfile
import time
from pathlib import Path

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from firstchair.engines.base import Request, Sampling
from firstchair.engines.transformers_engine import TransformersEngine

DEFAULTS = {
    "sessions": 60,
    "decisions": 11,
    "system": 250,
    "observation": 30,
    "new": 40,
    "hidden": 192,
    "layers": 5,
    "kv-heads": 6,
    "vocab": 3072,
}


def main() -> None:
    from transformers.utils import logging

    logging.disable_progress_bar()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in DEFAULTS.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    heads = options.hidden // 32
    torch.manual_seed(0)
    model = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=options.vocab,
            hidden_size=options.hidden,
            intermediate_size=3 * options.hidden,
            num_hidden_layers=options.layers,
            num_attention_heads=heads,
            num_key_value_heads=options.kv_heads,
            head_dim=32,
            max_position_embeddings=8192,
            tie_word_embeddings=True,
            eos_token_id=None,
        )
    )
    print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.1f} M parameters, {torch.get_num_threads()} threads")
    with tempfile.TemporaryDirectory() as directory:
        model.save_pretrained(directory)
        asyncio.run(measure(Path(directory), options))
        if torch.get_num_threads() > 1:
            print("with another pool lying idle:")
            asyncio.run(measure(Path(directory), options, idle_pool=True))


def open_engine(model_dir: Path, *, idle_pool: bool) -> TransformersEngine:
    engine = TransformersEngine(model_dir)
    if idle_pool:
        torch.ones(1 << 20).exp_()
    return engine


async def measure(model_dir: Path, options: argparse.Namespace, *, idle_pool: bool = False) -> None:
    engine = open_engine(model_dir, idle_pool=idle_pool)
    draw = random.Random(0)
    sampling = Sampling(max_new_tokens=options.new)

    def tokens(count: int) -> tuple[int, ...]:
        return tuple(draw.randrange(options.vocab) for _ in range(count))

    system = tokens(options.system)
    grown = [system + tokens(options.observation) for _ in range(options.sessions)]
    replay: list[Request] = []
    cpu, wall = time.process_time(), time.perf_counter()
    for step in range(options.decisions):
        requests = [
            Request(f"{s}:{step}", prompt_ids=prompt, sampling=sampling, group=f"live{s}")
            for s, prompt in enumerate(grown)
        ]
        replay += [
            Request(r.request_id, prompt_ids=r.prompt_ids, sampling=sampling, group=f"replay{r.group}")
            for r in requests
        ]
        async for generation in engine.generate(requests):
            s = int(generation.request_id.partition(":")[0])
            grown[s] += (generation.ids or ()) + tokens(options.observation)
    report("lockstep", options, cpu, wall)
    await engine.close()
    engine = open_engine(model_dir, idle_pool=idle_pool)
    cpu, wall = time.process_time(), time.perf_counter()
    count = len([generation async for generation in engine.generate(replay)])
    report("replay", options, cpu, wall)
    lengths = sorted(len(r.prompt_ids or ()) for r in replay)
    print(f"{count} decisions, prompts {lengths[0]} to {lengths[-1]} tokens, mean {sum(lengths) // len(lengths)}")
    await engine.close()


def report(name: str, options: argparse.Namespace, cpu: float, wall: float) -> None:
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    rate = options.sessions * options.decisions * options.new / cpu
    print(f"{name:9s} {cpu:6.1f} s CPU, {wall:6.1f} s wall, {rate:,.0f} new tokens a CPU second")


if __name__ == "__main__":
    main()
