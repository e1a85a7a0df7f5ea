"""The peer of ``sft_speed.py``: TRL's SFTTrainer on rows that are tokens already. Runs in an environment of its own.

    python sft_speed_peer.py MODEL ROWS.jsonl unpacked|wrapped fp32|bf16 BATCH

Prints one JSON line. Gradient checkpointing, which TRL switches on, is off, as in Firstchair: it costs only time.
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
from trl import SFTConfig, SFTTrainer

WARM_UP = 2


class Clock(TrainerCallback):
    """Seconds and real tokens of the steps behind the warm-up."""

    def __init__(self) -> None:
        self.started, self.seconds, self.tokens, self.step = 0.0, 0.0, 0, 0
        self.cpu_started, self.cpu_seconds = 0.0, 0.0

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Start the clock."""
        self.step = state.global_step
        self.started, self.cpu_started = time.perf_counter(), time.process_time()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Stop it."""
        if self.step >= WARM_UP:
            self.seconds += time.perf_counter() - self.started
            self.cpu_seconds += time.process_time() - self.cpu_started


class Counting(SFTTrainer):
    """Counts tokens that are no padding."""

    clock: Clock

    def compute_loss(self, model: Any, inputs: Any, *arguments: Any, **options: Any) -> Any:
        """The trainer's own loss."""
        if self.clock.step >= WARM_UP:
            mask = inputs.get("attention_mask")
            self.clock.tokens += int(mask.sum()) if mask is not None else inputs["input_ids"].numel()
        return super().compute_loss(model, inputs, *arguments, **options)


def main() -> None:
    """Train once over the rows and report."""
    model_dir, rows, packing, precision, batch = sys.argv[1:6]
    with open(rows, encoding="utf-8") as handle:
        data = Dataset.from_list([json.loads(line) for line in handle])
    with tempfile.TemporaryDirectory() as out:
        config = SFTConfig(
            output_dir=out,
            use_cpu=True,
            bf16=precision == "bf16",
            fp16=False,
            per_device_train_batch_size=int(batch),
            num_train_epochs=1,
            max_length=1024,
            packing=packing == "wrapped",
            packing_strategy="wrapped",
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
        model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
        clock = Clock()
        trainer = Counting(
            model=model,
            args=config,
            train_dataset=data,
            processing_class=AutoTokenizer.from_pretrained(model_dir),
            callbacks=[clock],
        )
        trainer.clock = clock
        prepared = trainer.train_dataset
        first = trainer.data_collator([prepared[index] for index in range(min(int(batch), len(prepared)))])
        with torch.no_grad():
            loss = float(SFTTrainer.compute_loss(trainer, trainer.model, dict(first)))
        trainer.train()
    speeds = {"wall": clock.tokens / clock.seconds, "cpu": clock.tokens / clock.cpu_seconds}
    print(json.dumps({**speeds, "loss": loss, "version": trl.__version__}))


if __name__ == "__main__":
    main()
