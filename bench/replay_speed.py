"""Replay of recorded sessions: prefix sharing against one decision at a time, and against ``model.generate``.

    python bench/replay_speed.py PATH_TO_TAU_AIRLINE [--sessions 8] [--hidden 160 --layers 4] [--shared-only]

Every decision of the sessions is prompted with what the recording saw and answered with 64 greedy tokens by a
randomly initialised Qwen3. All figures come from one run; also printed: whether the tokens are equal, and what
doubling the sessions' length costs: from their first halves to the whole, and from the whole to twice the whole.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from firstchair.chat.messages import Message, Tool
from firstchair.chat.openai_wire import tools_from_openai
from firstchair.chat.renderer import Renderer
from firstchair.engines.base import Generation, Request, Sampling
from firstchair.engines.transformers_engine import TransformersEngine
from firstchair.traces.decisions import decision_points
from firstchair.traces.importers import IMPORTERS, ImportOptions
from firstchair.traces.session import Session
from firstchair.train.tiny import build_model, build_tokenizer, save_model


def read_data(directory: Path) -> tuple[list[Session], tuple[Tool, ...]]:
    """Sessions, one trial of each task after the other, and the tools."""
    file = next(iter(sorted(directory.glob("*trajectories.json*"))))
    tools = tools_from_openai(json.loads((directory / "tools.json").read_text()))
    sessions = [item.session for item in IMPORTERS["tau"](file, ImportOptions())]
    return sorted(sessions, key=lambda s: (s.labels["trial"], s.labels["task_id"])), tools


def first_half(session: Session) -> Session:
    """The session up to the middle one of its decisions."""
    points = decision_points(session)
    return replace_messages(session, session.messages[: points[(len(points) - 1) // 2].context_end + 1])


def doubled(session: Session) -> Session:
    """The session with everything behind the system message twice."""
    body = session.messages[1:]
    return replace_messages(session, (session.messages[0], *body, *body))


def replace_messages(session: Session, messages: tuple[Message, ...]) -> Session:
    """``session`` with other messages."""
    return Session(session_id=session.session_id, messages=messages)


def requests_of(sessions: Sequence[Session], tools: tuple[Tool, ...], renderer: Renderer, new: int) -> list[Request]:
    """One request a decision, its prompt rendered."""
    sampling = Sampling(max_new_tokens=new)
    return [
        Request(
            request_id=point.dp_id,
            prompt_ids=tuple(renderer.prompt_ids(session.messages[: point.context_end], tools)),
            sampling=sampling,
            group=session.session_id,
        )
        for session in sessions
        for point in decision_points(session)
    ]


async def run(engine: TransformersEngine, requests: Sequence[Request]) -> tuple[float, dict[str, Generation]]:
    """CPU seconds and generations. CPU time, because a busy machine stretches wall time by what others do."""
    started = time.process_time()
    found = {generation.request_id: generation async for generation in engine.generate(requests)}
    return time.process_time() - started, found


def generate_one_by_one(model_dir: Path, requests: Sequence[Request]) -> float:
    """Seconds that ``model.generate`` takes for the requests, one at a time."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32).eval()
    started = time.process_time()
    with torch.inference_mode():
        for request in requests:
            ids = torch.tensor([request.prompt_ids])
            model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=request.sampling.max_new_tokens,
                do_sample=False,
                pad_token_id=0,
            )
    return time.process_time() - started


def main() -> None:
    from transformers.utils import logging

    logging.disable_progress_bar()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--sessions", type=int, default=8)
    parser.add_argument("--hidden", type=int, default=160)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--vocab", type=int, default=4096)
    parser.add_argument("--new", type=int, default=64)
    parser.add_argument("--template", default="tiny")
    parser.add_argument("--shared-only", action="store_true")
    options = parser.parse_args()
    sessions, tools = read_data(options.data)
    with tempfile.TemporaryDirectory() as directory:
        model_dir = Path(directory) / "model"
        tokenizer = build_tokenizer((m.text for s in sessions for m in s.messages), options.vocab)
        model = build_model(
            len(tokenizer), hidden=options.hidden, layers=options.layers, heads=options.hidden // 32,
            intermediate=3 * options.hidden, max_positions=65536,
        )  # fmt: skip
        save_model(model, tokenizer, model_dir)
        parameters = sum(p.numel() for p in model.parameters())
        renderer = Renderer.from_pretrained(model_dir, template=options.template)
        asyncio.run(measure(options, model_dir, renderer, sessions[: options.sessions], tools, parameters))


async def measure(
    options: argparse.Namespace,
    model_dir: Path,
    renderer: Renderer,
    sessions: list[Session],
    tools: tuple[Tool, ...],
    parameters: int,
) -> None:
    started = time.perf_counter()
    requests = requests_of(sessions, tools, renderer, options.new)
    rendering = time.perf_counter() - started
    lengths = sorted(len(r.prompt_ids or ()) for r in requests)
    print(
        f"{parameters / 1e6:.1f} M parameters, {torch.get_num_threads()} threads, {len(sessions)} sessions, "
        f"{len(requests)} decisions, prompts {lengths[0]:,} to {lengths[-1]:,} tokens "
        f"(median {lengths[len(lengths) // 2]:,}), rendering {rendering:.1f} s"
    )
    shared = TransformersEngine(model_dir, renderer, max_cached_tokens=0)
    await run(shared, requests[:2])
    versions = {
        "first halves": requests_of([first_half(session) for session in sessions], tools, renderer, options.new),
        "whole sessions": requests,
        "sessions twice": requests_of([doubled(session) for session in sessions], tools, renderer, options.new),
    }
    best: dict[str, float] = {}
    shared_found: dict[str, Generation] = {}
    # In turns, the better of two: what else runs on the machine weighs on all three alike.
    for _ in range(2):
        for name, wanted in versions.items():
            seconds, found = await run(shared, wanted)
            best[name] = min(seconds, best.get(name, seconds))
            if wanted is requests:
                shared_found = found
    print("shared prefixes, batched:")
    before = 0.0
    for name, wanted in versions.items():
        longest = max(len(request.prompt_ids or ()) for request in wanted)
        cost = f", doubling costs {best[name] / before:.2f} x" if before else ""
        before = best[name]
        print(f"  {name:29s}{before:8.1f} s CPU   {len(wanted)} decisions, up to {longest:,} tokens{cost}")
    shared_s = best["whole sessions"]
    await shared.close()
    if options.shared_only:
        return
    plain = TransformersEngine(model_dir, renderer, prefix_sharing=False)
    plain_s, plain_found = await run(plain, requests)
    await plain.close()
    equal = sum(shared_found[r.request_id].ids == plain_found[r.request_id].ids for r in requests)
    print(f"one decision at a time         {plain_s:8.1f} s CPU   {plain_s / shared_s:.1f} x as long")
    generate_s = generate_one_by_one(model_dir, requests)
    print(f"model.generate, one at a time  {generate_s:8.1f} s CPU   {generate_s / shared_s:.1f} x as long")
    print(f"equal token for token: {equal} of {len(requests)}")


if __name__ == "__main__":
    main()
