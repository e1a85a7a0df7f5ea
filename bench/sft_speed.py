"""SFT: real tokens a second against TRL's SFTTrainer, unpacked and with its wrapped packing, in one run.

    python -m venv trl-venv && trl-venv/bin/pip install trl==1.16.0 torch==2.13.0
    python bench/sft_speed.py --peer trl-venv/bin/python [--hidden 128 --layers 4 --precision fp32 --rounds 3]

Both train the same random Qwen3 on the same token rows with the same loss masks, batch size, optimizer, clipping and
precision; padding is never counted. Rounds alternate, so that a busy machine is busy for both; on a busy one trust
the figures a CPU second, with OMP_NUM_THREADS=1. Also printed: the loss of one batch by both, which must agree.
Without ``--peer`` only Firstchair is measured. The ratio shown is the median over rounds.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from firstchair.chat.messages import Message, Tool, ToolCall, assistant_message, text_message, tool_result
from firstchair.chat.renderer import Renderer
from firstchair.train.batching import collate
from firstchair.train.config import AdamW, Schedule
from firstchair.train.examples import Example
from firstchair.train.metrics import MetricLog
from firstchair.train.models import load_base
from firstchair.train.objective import SftObjective
from firstchair.train.optimizers import build_optimizers
from firstchair.train.scorer import TokenScorer
from firstchair.train.sources import EpochSource
from firstchair.train.tiny import build_model, build_tokenizer, save_model
from firstchair.train.trainer import LoopSettings, Outputs, Trainer

WARM_UP = 2
LONGEST = 1024
VOCABULARY = 4096
WORDS = [
    f"{a}{b}{c}"
    for a in ("ba", "lo", "mi", "ter", "qua", "sen")
    for b in ("ran", "dil", "mos", "pe")
    for c in "aeiou"
]


def tools() -> tuple[Tool, ...]:
    """Six tools with two arguments each."""
    names = ("search", "open", "edit", "book", "notify", "summarize")
    properties = {"target": {"type": "string"}, "count": {"type": "integer"}}
    return tuple(
        Tool(name=name, description=f"{name} a thing.", parameters={"properties": properties}) for name in names
    )


def conversation(rng: random.Random) -> tuple[Message, ...]:
    """A system message, then one to five turns of a request, up to three calls with results, and a reply."""
    words = lambda n: " ".join(rng.choice(WORDS) for _ in range(n))  # noqa: E731
    messages = [text_message("system", f"You work for {words(60)}.")]
    for turn in range(rng.randint(1, 5)):
        messages.append(text_message("user", f"Please {words(rng.randint(6, 30))}."))
        for number in range(rng.randint(0, 3)):
            arguments = {"target": words(3), "count": rng.randrange(100)}
            call = ToolCall.of(f"call_{turn}_{number}", rng.choice(tools()).name, arguments)
            messages += [assistant_message("", calls=(call,)), tool_result(call, f"{words(rng.randint(10, 60))}")]
        messages.append(assistant_message(f"Done: {words(rng.randint(5, 15))}."))
    return tuple(messages)


def rows(renderer: Renderer, count: int, seed: int) -> list[Example]:
    """``count`` conversations as tokens, none longer than ``LONGEST``."""
    rng, found = random.Random(seed), []
    while len(found) < count:
        tokens = renderer.conversation(conversation(rng), tools())
        if len(tokens) <= LONGEST:
            found.append(Example(np.array(tokens.ids, np.int32), np.array(tokens.loss_mask), key=len(found)))
    return found


class Listed(list[Example]):
    """A list that a step source can read."""


class Clock:
    """The loop's progress: seconds and tokens of the steps behind the first two, which warm up."""

    def __init__(self) -> None:
        self.step, self.tokens, self.wall, self.cpu = 0, 0, 0.0, 0.0

    def advance(self, count: int = 1, *, note: str = "") -> None:
        """Called once a step with its tokens."""
        self.step += 1
        if self.step == WARM_UP:
            self.wall, self.cpu = time.perf_counter(), time.process_time()
        elif self.step > WARM_UP:
            self.tokens += count

    def speeds(self) -> dict[str, float]:
        """Real tokens a second, by the clock on the wall and by CPU time."""
        return {
            "wall": self.tokens / (time.perf_counter() - self.wall),
            "cpu": self.tokens / (time.process_time() - self.cpu),
        }


def ours(model: Path, data: list[Example], options: argparse.Namespace, scratch: Path) -> dict[str, float]:
    """Speeds of the product's own loop, metrics written to disk."""
    scorer = TokenScorer(
        load_base(model, precision="fp32", device=torch.device("cpu")),
        autocast=torch.bfloat16 if options.precision == "bf16" else None,
    )
    settings = LoopSettings(
        schedule=Schedule(kind="constant", warmup_ratio=0.0),
        clip_norm=1.0,
        micro_tokens=options.micro_tokens,
        layout=options.layout,
        recipe_sha256="",
        template_hash="",
    )
    trainer = Trainer(
        scorer,
        build_optimizers(scorer.model, AdamW(lr=1e-4)),
        SftObjective(),
        EpochSource(Listed(data), per_step=options.batch, epochs=1.0, max_steps=None, seed=0),
        Outputs(scratch / "checkpoints", MetricLog(scratch / "metrics.jsonl")),
        settings,
    )
    # The save at the last step is not part of a training step.
    trainer.save = lambda: None  # type: ignore[method-assign]
    clock = Clock()
    trainer.run(clock)
    return clock.speeds()


def our_loss(model: Path, data: list[Example], batch: int) -> float:
    """Mean −log p over the trained tokens of the first rows, in float32."""
    scorer = TokenScorer(load_base(model, precision="fp32", device=torch.device("cpu")))
    with torch.no_grad():
        return float(-scorer(collate(data[:batch], layout="packed")).mean())


def theirs(model: Path, data: Path, packing: str, options: argparse.Namespace) -> dict[str, float]:
    """What the peer reports: speeds ``wall`` and ``cpu``, ``loss`` of the first batch, ``version``."""
    command = [options.peer, str(Path(__file__).with_name("sft_speed_peer.py")), str(model), str(data), packing]
    done = subprocess.run(
        [*command, options.precision, str(options.batch)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"the peer failed:\n{done.stderr[-2000:]}")
    found: dict[str, float] = json.loads(done.stdout.strip().rpartition("\n")[2])
    return found


def make_inputs(scratch: Path, options: argparse.Namespace) -> tuple[Path, list[Example], Path]:
    """The model directory, the rows, and the rows as the peer reads them."""
    rng = random.Random(1)
    texts = (message.text for _ in range(200) for message in conversation(rng))
    tokenizer = build_tokenizer(texts, VOCABULARY)
    network = build_model(
        VOCABULARY,
        hidden=options.hidden,
        layers=options.layers,
        heads=options.hidden // 32,
        intermediate=3 * options.hidden,
    )
    save_model(network, tokenizer, scratch / "model")
    data = rows(Renderer.from_pretrained(scratch / "model"), options.batch * options.steps, 2)
    # The peer's own form of a loss mask: labels, with −100 where nothing is learnt.
    labels = [np.where(row.loss_mask, row.ids, -100).tolist() for row in data]
    lines = ({"input_ids": row.ids.tolist(), "labels": own} for row, own in zip(data, labels, strict=True))
    (scratch / "rows.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n", encoding="utf-8")
    lengths = [len(row) for row in data]
    trained = sum(row.trained_tokens for row in data) / sum(lengths)
    parameters = sum(parameter.numel() for parameter in network.parameters())
    print(
        f"{parameters / 1e6:.2f} M parameters, {len(data)} rows of {min(lengths)} to {max(lengths)} tokens", end=", "
    )
    print(f"mean {statistics.mean(lengths):.0f}, {trained:.0%} trained; {torch.get_num_threads()} threads", end=", ")
    print(f"{options.precision}, {options.batch} rows a step")
    return scratch / "model", data, scratch / "rows.jsonl"


def rounds(scratch: Path, options: argparse.Namespace) -> Iterator[dict[str, dict[str, float]]]:
    """One round: ours, then the peer unpacked and wrapped."""
    model, data, peer_data = make_inputs(scratch, options)
    loss = our_loss(model, data, options.batch)
    for number in range(options.rounds):
        with tempfile.TemporaryDirectory(dir=scratch) as place:
            line = {"firstchair": ours(model, data, options, Path(place))}
        for packing in ("unpacked", "wrapped") if options.peer else ():
            found = theirs(model, peer_data, packing, options)
            line[f"trl {packing}"] = found
            if number == 0 and packing == "unpacked":
                print(f"loss of one batch: firstchair {loss:.7f}, trl {found['loss']:.7f}", end=", ")
                print(f"difference {abs(loss - found['loss']):.1e} (TRL {found['version']})")
        shown = (f"{name} {found['wall']:,.0f} ({found['cpu']:,.0f})" for name, found in line.items())
        print(f"tokens a second (a CPU second): {', '.join(shown)}", flush=True)
        yield line


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", help="python of a virtual environment with trl")
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--layout", choices=["shared", "packed", "padded"], default="shared")
    parser.add_argument("--batch", type=int, default=8, help="rows of one step")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--micro-tokens", type=int, default=8192)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        lines = list(rounds(Path(scratch), options))
    for name in lines[0]:
        for clock in ("wall", "cpu"):
            ratios = [line["firstchair"][clock] / line[name][clock] for line in lines]
            best = max(line[name][clock] for line in lines)
            print(
                f"{name}: best {best:,.0f} tokens a {clock} second; firstchair {statistics.median(ratios):.2f} times"
            )
    print(f"{time.monotonic() - started:.0f} s")


if __name__ == "__main__":
    main()
