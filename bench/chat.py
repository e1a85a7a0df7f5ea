"""How fast conversations are read, rendered, masked and parsed, on real sessions.

    python bench/chat.py --sessions FOLDER --repeat 3

FOLDER holds τ-bench airline sessions in OpenAI's form: ``gpt4o_trajectories.json.gz`` (a list of
``{"traj": [messages]}``) and ``tools.json`` (a list of tools).

One core. The tokenizer is a tiny byte-level one (about 420 tokens), so there are more tokens to a text than with a
real one; rates are given in messages, tokens and replies a second of processor time, the best of the repeats.
"""

from __future__ import annotations

import argparse
import gzip
import json
import time
from collections.abc import Callable
from pathlib import Path

from firstchair.chat.anthropic_wire import messages_from_anthropic, messages_to_anthropic
from firstchair.chat.formats import FORMATS
from firstchair.chat.openai_wire import messages_from_openai, messages_to_openai, tools_from_openai
from firstchair.testing.tokenizers import make_renderer


def best(repeat: int, work: Callable[[], object]) -> float:
    """Processor seconds of the quickest of ``repeat`` runs: other work on the machine does not count."""
    times = []
    for _ in range(repeat):
        started = time.process_time()
        work()
        times.append(time.process_time() - started)
    return min(times)


def main() -> None:
    """Measure and print."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument(
        "--sessions", type=Path, required=True, help="folder with gpt4o_trajectories.json.gz and tools.json"
    )
    options.add_argument("--repeat", type=int, default=3)
    chosen = options.parse_args()
    with gzip.open(chosen.sessions / "gpt4o_trajectories.json.gz", "rt", encoding="utf-8") as file:
        rows = [record["traj"] for record in json.load(file)]
    tools = tools_from_openai(json.loads((chosen.sessions / "tools.json").read_text(encoding="utf-8")))
    count = sum(map(len, rows))
    sessions = [messages_from_openai(row) for row in rows]
    prompts = [messages_to_anthropic(session) for session in sessions]

    def report(name: str, seconds: float, done: int, unit: str) -> None:
        print(f"{name:34} {done / seconds:12,.0f} {unit}/s   ({seconds:.3f} s for {done:,})")

    repeat = chosen.repeat
    report("OpenAI → canonical", best(repeat, lambda: [messages_from_openai(r) for r in rows]), count, "messages")
    report("canonical → OpenAI", best(repeat, lambda: [messages_to_openai(s) for s in sessions]), count, "messages")
    report(
        "canonical → Anthropic", best(repeat, lambda: [messages_to_anthropic(s) for s in sessions]), count, "messages"
    )
    report(
        "Anthropic → canonical",
        best(repeat, lambda: [messages_from_anthropic(p.messages, p.system) for p in prompts]),
        count,
        "messages",
    )
    for family in ("tiny", "qwen3"):
        renderer = make_renderer(family)
        text = best(repeat, lambda renderer=renderer: [renderer.text(s, tools) for s in sessions])
        report(f"{family}: text", text, count, "messages")
        started = time.process_time()
        tokens = sum(len(row) for s in sessions for row in renderer.segments(s, tools))
        report(f"{family}: the same, seen first", time.process_time() - started, tokens, "tokens")
        masks = best(repeat, lambda renderer=renderer: [renderer.segments(s, tools) for s in sessions])
        report(f"{family}: ids, masks, segments", masks, tokens, "tokens")
        report(f"{family}: ids, masks, segments", masks, len(sessions), "sessions")
    for name in ("hermes", "qwen_xml", "llama_json", "mistral"):
        syntax = FORMATS[name]
        replies = [
            syntax.render(m.tool_calls) if m.tool_calls else m.text
            for s in sessions
            for m in s
            if m.role == "assistant"
        ]
        seconds = best(repeat, lambda syntax=syntax, replies=replies: [syntax.parse(r, tools) for r in replies])
        report(f"parse {name}, schema checked", seconds, len(replies), "replies")


if __name__ == "__main__":
    main()
