"""Pretrain the tiny base model on the generic corpus and write it as a model directory.

    python examples/tiny_base/pretrain.py --out base

Fresh text is generated all the way, so nothing is seen twice; the curriculum runs from copy drills to conversations
of several turns. Matrices are trained with Muon (Jordan et al. 2024), the rest with AdamW; the rate falls linearly
to zero over the last half. The recipe (seed, tokens, shape, rates) and the figures are written beside the weights.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from corpus import sample
from draws import Rng
from torch.nn.functional import cross_entropy
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

from firstchair.chat.messages import Message, Tool
from firstchair.rollout.desk.definitions import desk_catalog
from firstchair.rollout.desk.sample import play
from firstchair.rollout.desk.tasks import make_tasks
from firstchair.rollout.desk.teacher import Teacher
from firstchair.train.muon import StackedMuon
from firstchair.train.precision import multiplies_bf16
from firstchair.train.tiny import build_model, build_tokenizer, save_model


def as_row(message: Message) -> dict[str, object]:
    calls = [{"function": {"name": call.name, "arguments": call.arguments}} for call in message.tool_calls]
    return {"role": message.role, "content": message.text, "reasoning_content": message.thinking, "tool_calls": calls}


def as_text(tokenizer: PreTrainedTokenizerFast, messages: Sequence[Message], tools: tuple[Tool, ...]) -> str:
    rows = [as_row(message) for message in messages]
    listed = [{"name": tool.name, "parameters": tool.parameters} for tool in tools]
    return tokenizer.apply_chat_template(rows, tools=listed or None, tokenize=False)


def desk_sessions(seed: int, count: int) -> Iterator[tuple[Sequence[Message], tuple[Tool, ...]]]:
    """Sessions of the embedded desk. The tokenizer sees their words; the weights never see them."""
    tools = desk_catalog().tool_schemas()
    for task in make_tasks(count, seed):
        messages, _ = asyncio.run(play(task, Teacher()))
        yield messages, tools


def corpus_texts(seed: int, count: int) -> Iterator[str]:
    """Text for the tokenizer: the conversations' own words, tags left out (they are single tokens anyway)."""
    rng = Rng(seed)
    generic = (sample(rng, index / count) for index in range(count))
    for messages, tools in (*generic, *desk_sessions(seed, count // 6)):
        for message in messages:
            yield message.role + "\n" + message.text
            yield message.thinking
            for call in message.tool_calls:
                yield f'{{"name": "{call.name}", "arguments": {call.arguments}}}'
        yield "# Tools\n" + "\n".join(f"{tool.name}({', '.join(tool.parameters['properties'])})" for tool in tools)


def lexicon(tokenizer: PreTrainedTokenizerFast) -> tuple[str, ...]:
    """The words among the pieces: the corpus draws from them, so that every one is read and copied."""
    pieces = (tokenizer.decode([index]).strip() for index in range(len(tokenizer)))
    return tuple(sorted({piece for piece in pieces if re.fullmatch("[A-Za-z][a-z]+(?:[A-Z][a-z]+)*", piece)}))


def padded(length: int) -> int:
    """Width of a batch: few distinct shapes, since the CPU kernels are compiled and kept for each."""
    return -(-length // 64) * 64


Row = tuple[list[int], list[bool]]
TARGETS = 256
"""The head runs on a multiple of this many positions, for the same reason."""


class Batches:
    """Token-budget batches of fresh conversations; a batch holds rows of one padded width and is always full."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, seed: int, tokens_per_batch: int, longest: int):
        self.tokenizer, self.budget, self.longest = tokenizer, tokens_per_batch, longest
        self.rng = Rng(seed)
        self.rng.lexicon = lexicon(tokenizer)
        self.header = tokenizer("<|im_start|>assistant\n", add_special_tokens=False)["input_ids"]
        self.end = tokenizer.convert_tokens_to_ids("<|im_end|>")
        self.waiting: dict[int, list[Row]] = {}

    def row(self, stage: float) -> Row:
        """Ids and loss mask (True on every assistant token, its end-of-turn token included)."""
        ids = self.tokenizer(as_text(self.tokenizer, *sample(self.rng, stage)), add_special_tokens=False)["input_ids"]
        mask, inside = [False] * len(ids), False
        for index, token in enumerate(ids):
            mask[index] = inside
            if token == self.end:
                inside = False
            elif ids[index - 2 : index + 1] == self.header:
                inside = True
        return ids[: self.longest], mask[: self.longest]

    def next(self, stage: float) -> tuple[torch.Tensor, torch.Tensor]:
        """``ids [B, T] int64`` padded with 0 and ``mask [B, T] bool``."""
        while True:
            ids, mask = self.row(stage)
            width = padded(len(ids))
            rows = self.waiting.setdefault(width, [])
            rows.append((ids + [0] * (width - len(ids)), mask + [False] * (width - len(mask))))
            if len(rows) >= max(1, self.budget // width):
                del self.waiting[width]
                return torch.tensor([ids for ids, _ in rows]), torch.tensor([mask for _, mask in rows])


def masked_logits(
    model: Qwen3ForCausalLM, ids: torch.Tensor, mask: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits ``[N, V]`` and targets ``[N]`` at the positions of the loss, filled up with ignored targets (-100)."""
    hidden = model.model(ids).last_hidden_state[:, :-1].flatten(0, 1)
    where = mask[:, 1:].flatten().nonzero().squeeze(1)
    targets = ids[:, 1:].flatten()[where]
    spare = -len(where) % TARGETS
    where = torch.cat((where, where.new_zeros(spare)))
    return model.lm_head(hidden[where]).float(), torch.cat((targets, targets.new_full((spare,), -100)))


@torch.no_grad()
def exact_spans(model: Qwen3ForCausalLM, batches: Batches, stage: float, count: int) -> dict[str, float]:
    """Share of calls, and of all assistant spans, whose every token from the call on is the argmax (greedy = text)."""
    opens = batches.tokenizer.convert_tokens_to_ids("<tool_call>")
    right, total = {"spans": 0, "calls": 0}, {"spans": 0, "calls": 0}
    for _ in range(count):
        ids, mask = batches.next(stage)
        logits, _ = masked_logits(model, ids, mask)
        hits = iter((logits.argmax(-1)[: int(mask[:, 1:].sum())] == ids[:, 1:][mask[:, 1:]]).tolist())
        for row, row_mask in zip(ids.tolist(), mask.tolist(), strict=True):
            good, kind = True, "spans"
            for token, inside in zip(row[1:], row_mask[1:], strict=True):
                if not inside:
                    continue
                good = next(hits) and good
                if token == opens:
                    good, kind = True, "calls"
                if token == batches.end:
                    right[kind], total[kind] = right[kind] + good, total[kind] + 1
                    good, kind = True, "spans"
    return {kind: round(right[kind] / max(total[kind], 1), 4) for kind in right}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tokens", type=float, default=12e6)
    parser.add_argument("--batch-tokens", type=int, default=6144)
    parser.add_argument("--vocab", type=int, default=3072)
    parser.add_argument("--hidden", type=int, default=192)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--intermediate", type=int, default=512)
    parser.add_argument("--muon-rate", type=float, default=4e-3)
    parser.add_argument("--adam-rate", type=float, default=4e-3)
    parser.add_argument("--ramp", type=float, default=0.3, help="share of the run over which the curriculum grows")
    parser.add_argument("--seed", type=int, default=20261129)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)

    tokenizer = build_tokenizer(corpus_texts(options.seed, 12_000), options.vocab)
    model = build_model(
        len(tokenizer), hidden=options.hidden, layers=options.layers, heads=options.heads,
        intermediate=options.intermediate, seed=options.seed,
    )  # fmt: skip
    size = sum(parameter.numel() for parameter in model.parameters())
    print(f"{size:,} parameters, vocabulary {len(tokenizer):,}", flush=True)

    matrices = [p for n, p in model.named_parameters() if p.ndim == 2 and "embed" not in n]
    others = [p for n, p in model.named_parameters() if not (p.ndim == 2 and "embed" not in n)]
    muon = StackedMuon(matrices, lr=options.muon_rate, weight_decay=0.02, adjust_lr_fn="match_rms_adamw")
    adam = torch.optim.AdamW(others, lr=options.adam_rate, betas=(0.9, 0.98), weight_decay=0.0)
    batches = Batches(tokenizer, options.seed + 1, options.batch_tokens, 1024)
    held_out = Batches(tokenizer, options.seed + 2, options.batch_tokens, 1024)

    bf16 = multiplies_bf16(torch.device("cpu"))
    seen, step, started, last = 0, 0, time.time(), time.time()
    log: list[dict[str, float]] = []
    running = 0.0
    while seen < options.tokens:
        done = seen / options.tokens
        rate = min(1.0, (step + 1) / 100) * min(1.0, 2.0 * (1.0 - done) + 0.01)
        for optimizer, base in ((muon, options.muon_rate), (adam, options.adam_rate)):
            for group in optimizer.param_groups:
                group["lr"] = base * rate
        ids, mask = batches.next(min(1.0, done / options.ramp))
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            logits, targets = masked_logits(model, ids, mask)
        loss = cross_entropy(logits, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in (muon, adam):
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        seen += int((ids != 0).sum())
        step += 1
        running = 0.98 * running + 0.02 * float(loss.detach())
        if time.time() - last > 60:
            last = time.time()
            row = {
                "tokens": seen, "step": step, "seconds": round(last - started), "loss": round(running, 4),
                **exact_spans(model, held_out, 1.0, 4),
            }  # fmt: skip
            log.append(row)
            print(json.dumps(row), flush=True)
            options.out.mkdir(parents=True, exist_ok=True)
            save_model(model, tokenizer, options.out)
    save_model(model.to(torch.bfloat16), tokenizer, options.out)
    recipe = {key: value for key, value in vars(options).items() if key not in ("out", "threads")}
    report = {"recipe": recipe, "parameters": size, "seconds": round(time.time() - started), "log": log[-3:]}
    (options.out / "recipe.json").write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
