"""GRPO: seconds a step against TRL's GRPOTrainer, in one run.

    python -m venv trl-venv && trl-venv/bin/pip install trl==1.16.0 torch==2.13.0
    python bench/grpo_speed.py --peer trl-venv/bin/python [--prompts 4 --samples 8 --rounds 3]

Both reinforce the same random Qwen3 on the same prompts, groups of the same size, the same number of new tokens,
reward (the length is odd), optimizer and clipping, without a reference model. A step is generation, grading, loss,
backward pass and update; the first two warm up. Rounds alternate, so that a busy machine is busy for both; on a busy
one trust CPU seconds, with OMP_NUM_THREADS=1. Without ``--peer`` only Firstchair is measured.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from firstchair.chat.actions import Action
from firstchair.chat.messages import text_message
from firstchair.chat.renderer import Renderer
from firstchair.core.config import validate
from firstchair.data.prompt_source import PromptSource
from firstchair.engines.base import Sampling
from firstchair.engines.transformers_engine import TransformersEngine
from firstchair.rewards.grading import Grader
from firstchair.rollout.engine_policy import EnginePolicy
from firstchair.rollout.environment import Check, Observation, Outcome, Step
from firstchair.rollout.episodes import Limits
from firstchair.train.grpo import GrpoObjective
from firstchair.train.grpo_recipe import GrpoRecipe
from firstchair.train.loop import settings_of
from firstchair.train.metrics import MetricLog
from firstchair.train.optimizers import build_optimizers
from firstchair.train.policy_engine import InMemoryPush
from firstchair.train.rl_tasks import OpenEnvironment
from firstchair.train.rollout_batches import RolloutBatches
from firstchair.train.rollout_source import Course, LoopThread, RolloutSource
from firstchair.train.run_dir import RunDir
from firstchair.train.sft_inputs import load_learner
from firstchair.train.tiny import build_model, build_tokenizer, save_model
from firstchair.train.trainer import Outputs, Trainer

WARM_UP = 2
VOCABULARY = 4096
WORDS = [f"{a}{b}{c}" for a in ("ba", "lo", "mi", "ter", "qua") for b in ("ran", "dil", "mos", "pe") for c in "aeiou"]


@dataclass(frozen=True)
class Prompt:
    """A task: something to say."""

    task_id: str
    text: str


class OneReply:
    """An environment that takes any reply and finds the odd ones right."""

    def __init__(self) -> None:
        self.reply = ""

    async def reset(self, task: Prompt, seed: int) -> Observation:
        """The prompt."""
        return Observation((text_message("user", task.text),), ())

    async def step(self, action: Action) -> Step:
        """Over."""
        self.reply = action.text
        return Step((), done=True)

    async def verify(self) -> Outcome:
        """Something that a random model now and then does."""
        ok = len(self.reply) % 2 == 1
        return Outcome(completed=ok, checks=(Check("odd", ok),))

    async def snapshot(self) -> str:
        """The reply."""
        return self.reply

    async def restore(self, snapshot: str) -> None:
        """Back."""
        self.reply = snapshot


class Clock:
    """The loop's progress: seconds of the steps behind the warm-up."""

    def __init__(self) -> None:
        self.step, self.wall, self.cpu = 0, 0.0, 0.0

    def advance(self, count: int = 1, *, note: str = "") -> None:
        """Called once a step."""
        self.step += 1
        if self.step == WARM_UP:
            self.wall, self.cpu = time.perf_counter(), time.process_time()

    def seconds(self) -> dict[str, float]:
        """A step, by the clock on the wall and by CPU time."""
        steps = self.step - WARM_UP
        return {
            "wall": (time.perf_counter() - self.wall) / steps,
            "cpu": (time.process_time() - self.cpu) / steps,
        }


def recipe_of(model: Path, out: Path, options: argparse.Namespace) -> GrpoRecipe:
    """The run, as a recipe."""
    fields = {
        "model": str(model),
        "out": str(out),
        "reward": {"components": [{"name": "odd", "kind": "verifier", "check": "completed"}]},
        "rollouts": {
            "prompts": options.prompts,
            "samples": options.samples,
            "max_new_tokens": options.new_tokens,
            "max_steps": 1,
        },
        "optimizer": {"type": "adamw", "lr": 1e-4},
        "schedule": {"kind": "constant", "warmup_ratio": 0.0},
        "batches": options.steps + WARM_UP,
    }
    return validate(GrpoRecipe, fields, source="bench")


def ours(model: Path, prompts: list[Prompt], options: argparse.Namespace, scratch: Path) -> dict[str, float]:
    """Seconds of a step of the product's own loop, metrics and rollouts written to disk."""
    recipe = recipe_of(model, scratch, options)
    renderer, run = Renderer.from_pretrained(model), RunDir(scratch)
    # A reply that does not end cannot be read; it is judged all the same.
    desk = OpenEnvironment(OneReply, prompts, Limits(max_malformed=0))
    learner = load_learner(recipe, recipe.batch.layout)
    engine, clock = TransformersEngine(model, renderer), Clock()
    with LoopThread() as thread:
        policy = EnginePolicy(
            engine, renderer, Sampling(max_new_tokens=options.new_tokens, temperature=1.0), record_tokens=False
        )
        played = PromptSource(prompts, seed=0)
        source = RolloutSource(
            RolloutBatches(recipe, desk, played, policy, Grader(recipe.reward), vocab_size=VOCABULARY),
            InMemoryPush(learner.scorer, engine, learner.layout),
            thread,
            Course(
                batches=recipe.batches,
                steps_per_batch=1,
                rollouts_per_batch=options.prompts * options.samples,
                prompts=played,
                staleness=0,
                patience=1000,
                log=run.rollouts,
                sessions=run.sessions,
            ),
        )
        settings = settings_of(
            recipe,
            micro_tokens=recipe.batch.micro_tokens,
            layout=learner.layout,
            template_hash=renderer.template_hash,
        )
        trainer = Trainer(
            learner.scorer,
            build_optimizers(learner.scorer.model, recipe.optimizer),
            GrpoObjective(recipe.grpo),
            source,
            Outputs(run.checkpoints, MetricLog(run.metrics)),
            settings,
        )
        for _ in range(recipe.batches):
            trainer.take(clock)
        found = clock.seconds()
        thread.call(engine.close())
    lines = [json.loads(line) for line in run.rollouts.read_text(encoding="utf-8").splitlines()]
    found["new_tokens"] = statistics.mean(line["sampled_tokens"] for line in lines)
    return found


def theirs(python: str, model: Path, prompts: Path, options: argparse.Namespace) -> dict[str, Any]:
    """The peer's figures, from its own environment."""
    script = Path(__file__).with_name("grpo_speed_peer.py")
    arguments = (options.prompts, options.samples, options.new_tokens, options.steps)
    command = [python, str(script), str(model), str(prompts), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"the peer failed:\n{done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def make_inputs(scratch: Path, options: argparse.Namespace) -> tuple[Path, list[Prompt], Path]:
    """The model directory, the prompts, and the prompts as the peer reads them: rendered text."""
    rng = random.Random(1)
    say = lambda count: " ".join(rng.choice(WORDS) for _ in range(count))  # noqa: E731
    tokenizer = build_tokenizer((say(40) for _ in range(400)), VOCABULARY)
    network = build_model(VOCABULARY, hidden=128, layers=4, heads=4, intermediate=384)
    model = scratch / "model"
    save_model(network, tokenizer, model)
    renderer = Renderer.from_pretrained(model)
    prompts: list[Prompt] = []
    rendered: list[str] = []
    for number in range(options.prompts * (options.steps + WARM_UP)):
        text = say(options.prompt_tokens - 12)
        ids = renderer.prompt_ids((text_message("user", text),), ())
        prompts.append(Prompt(f"p{number}", text))
        rendered.append(tokenizer.decode(ids))
    lengths = [len(renderer.prompt_ids((text_message("user", prompt.text),), ())) for prompt in prompts]
    path = scratch / "prompts.jsonl"
    path.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in rendered), encoding="utf-8")
    parameters = sum(parameter.numel() for parameter in network.parameters())
    print(
        f"{parameters / 1e6:.2f} M parameters; {options.prompts} prompts of {min(lengths)} to {max(lengths)} tokens "
        f"× {options.samples} samples of up to {options.new_tokens} new tokens a step"
    )
    return model, prompts, path


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", help="python of a virtual environment with trl")
    parser.add_argument("--prompts", type=int, default=4)
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--prompt-tokens", type=int, default=219)
    parser.add_argument("--new-tokens", type=int, default=24)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    rounds: list[dict[str, dict[str, Any]]] = []
    with tempfile.TemporaryDirectory() as place:
        scratch = Path(place)
        model, prompts, rendered = make_inputs(scratch, options)
        for number in range(options.rounds):
            run = scratch / f"run-{number}"
            run.mkdir()
            line: dict[str, dict[str, Any]] = {"firstchair": ours(model, prompts, options, run)}
            if options.peer:
                line["trl"] = theirs(options.peer, model, rendered, options)
            shown = (f"{name} {found['wall']:.3f} ({found['cpu']:.3f})" for name, found in line.items())
            print(f"seconds a step (CPU): {', '.join(shown)}", flush=True)
            rounds.append(line)
    for name in rounds[0]:
        tokens = statistics.mean(line[name]["new_tokens"] for line in rounds)
        print(f"{name}: {tokens:.1f} new tokens a sample on average")
    if options.peer:
        for clock in ("wall", "cpu"):
            ratio = statistics.median(line["trl"][clock] / line["firstchair"][clock] for line in rounds)
            print(f"{clock}: firstchair {ratio:.2f} times as fast as TRL {rounds[0]['trl']['version']}")


if __name__ == "__main__":
    main()
