"""The peer of ``grpo_speed.py``: TRL's GRPOTrainer on the same prompts. Runs in an environment of its own.

    python grpo_speed_peer.py MODEL PROMPTS.jsonl PROMPTS SAMPLES NEW_TOKENS STEPS

Prints one JSON line.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from typing import Any

import torch
import trl
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

WARM_UP = 2


class Clock(TrainerCallback):
    """Seconds of the steps behind the warm-up."""

    def __init__(self) -> None:
        self.wall, self.cpu, self.steps = 0.0, 0.0, 0

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The warm-up ends, or another step is done."""
        if state.global_step == WARM_UP:
            self.wall, self.cpu = time.perf_counter(), time.process_time()
        elif state.global_step > WARM_UP:
            self.steps = state.global_step - WARM_UP
            self.seconds = {
                "wall": (time.perf_counter() - self.wall) / self.steps,
                "cpu": (time.process_time() - self.cpu) / self.steps,
            }


LENGTHS: list[int] = []


def odd(completions: list[str], completion_ids: list[list[int]], **kwargs: Any) -> list[float]:
    """The reward: whether the reply has an odd number of letters."""
    LENGTHS.extend(map(len, completion_ids))
    return [float(len(text) % 2) for text in completions]


def main() -> None:
    """Train and report."""
    model_dir, path, prompts, samples, new_tokens, steps = sys.argv[1:7]
    with open(path, encoding="utf-8") as handle:
        data = Dataset.from_list([json.loads(line) for line in handle])
    with tempfile.TemporaryDirectory() as out:
        config = GRPOConfig(
            output_dir=out,
            use_cpu=True,
            bf16=False,
            fp16=False,
            per_device_train_batch_size=int(prompts) * int(samples),
            num_generations=int(samples),
            max_completion_length=int(new_tokens),
            temperature=1.0,
            beta=0.0,
            max_steps=int(steps) + WARM_UP,
            gradient_checkpointing=False,
            learning_rate=1e-4,
            lr_scheduler_type="constant",
            weight_decay=0.0,
            adam_beta2=0.95,
            max_grad_norm=1.0,
            logging_strategy="no",
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            seed=0,
        )
        clock = Clock()
        trainer = GRPOTrainer(
            model=AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32),
            reward_funcs=odd,
            args=config,
            train_dataset=data,
            processing_class=AutoTokenizer.from_pretrained(model_dir, padding_side="left"),
            callbacks=[clock],
        )
        trainer.train()
    print(json.dumps({**clock.seconds, "new_tokens": sum(LENGTHS) / len(LENGTHS), "version": trl.__version__}))


if __name__ == "__main__":
    main()
