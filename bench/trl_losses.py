"""What TRL's own loss functions give for a few random inputs: the data of ``tests/train/test_trl_losses.py``.

    python bench/trl_losses.py tests/train/trl_losses.jsonl

Runs in an environment of its own with ``trl==1.16.*``; no model is loaded, TRL's methods are handed the numbers.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import trl
from torch import Tensor
from trl.trainer.dpo_trainer import DPOTrainer
from trl.trainer.grpo_trainer import GRPOTrainer

LENGTHS = (3, 5, 1, 4)
LONGEST = 7
"""Dr. GRPO's constant."""
BETA = 0.3
"""Of the KL term and of DPO."""

GRPO: dict[str, dict[str, Any]] = {
    "grpo": {"loss_type": "grpo"},
    "dr_grpo": {"loss_type": "dr_grpo"},
    "dapo": {"loss_type": "dapo", "epsilon_high": 0.28},
    "grpo_kl": {"loss_type": "grpo", "beta": BETA},
    "dapo_unbiased_kl": {"loss_type": "dapo", "beta": BETA, "use_bias_correction_kl": True},
    "dual_clip": {"loss_type": "dapo", "delta": 1.5},
    "entropy": {"loss_type": "dapo", "entropy_coef": 0.2},
    "gspo": {"loss_type": "grpo", "importance_sampling_level": "sequence"},
    "gspo_token_mean": {"loss_type": "dapo", "importance_sampling_level": "sequence"},
}
DPO: dict[str, dict[str, Any]] = {
    "sigmoid": {"loss_types": ["sigmoid"]},
    "sigmoid_norm": {"loss_types": ["sigmoid_norm"]},
    "ipo": {"loss_types": ["ipo"]},
}


def padded(rows: list[list[float]]) -> Tensor:
    """Rows side by side, 0 behind their end: ``[B, longest]`` float64."""
    width = max(map(len, rows))
    return torch.tensor([row + [0.0] * (width - len(row)) for row in rows], dtype=torch.float64)


def random_rows(generator: torch.Generator, scale: float, shift: float) -> list[list[float]]:
    """One random number per token, rounded so that JSON holds it exactly."""
    return [
        [round(float(value) * scale + shift, 4) for value in torch.randn(length, generator=generator)]
        for length in LENGTHS
    ]


def shifted(rows: list[list[float]], by: list[list[float]]) -> list[list[float]]:
    """Sums, token by token."""
    return [[round(a + b, 4) for a, b in zip(row, other, strict=True)] for row, other in zip(rows, by, strict=True)]


def inputs_of(seed: int) -> dict[str, Any]:
    """Log-probabilities of policy, of then and of the reference, entropies, advantages; many are clipped."""
    generator = torch.Generator().manual_seed(seed)
    logp = random_rows(generator, 0.7, -2.0)
    return {
        "logp": logp,
        "old": shifted(logp, random_rows(generator, 0.4, 0.0)),
        "reference": shifted(logp, random_rows(generator, 0.5, 0.1)),
        "entropy": random_rows(generator, 0.1, 1.5),
        "advantage": [round(float(value), 4) for value in torch.randn(len(LENGTHS), generator=generator)],
    }


def accelerator() -> Any:
    """One process."""
    return SimpleNamespace(
        device=torch.device("cpu"),
        num_processes=1,
        sync_gradients=True,
        gather=lambda value: value,
        gather_for_metrics=lambda value: value,
        reduce=lambda value, reduction: value,
    )


def outcome(loss: Tensor, logp: Tensor) -> dict[str, Any]:
    """The loss and its gradient by log-probability."""
    loss.backward()
    assert logp.grad is not None
    gradient = [row[:length].tolist() for row, length in zip(logp.grad, LENGTHS, strict=True)]
    return {"loss": float(loss.detach()), "gradient": gradient}


def grpo(values: dict[str, Any], variant: dict[str, Any]) -> dict[str, Any]:
    """``GRPOTrainer._compute_loss`` of one batch in one step."""
    logp, mask = padded(values["logp"]).requires_grad_(), padded([[1.0] * length for length in LENGTHS])
    prompt = torch.ones(len(LENGTHS), 1, dtype=torch.long)
    trainer = SimpleNamespace(
        _get_per_token_logps_and_entropies=lambda *args, **named: (logp, padded(values["entropy"]), None),
        model=SimpleNamespace(training=True),
        aux_loss_enabled=False,
        top_entropy_quantile=1.0,
        off_policy_mask_threshold=None,
        importance_sampling_level=variant.get("importance_sampling_level", "token"),
        beta=variant.get("beta", 0.0),
        loss_type=variant["loss_type"],
        epsilon_low=0.2,
        epsilon_high=variant.get("epsilon_high", 0.2),
        use_vllm=False,
        current_gradient_accumulation_steps=1,
        max_completion_length=LONGEST,
        accelerator=accelerator(),
        use_adaptive_entropy=False,
        _entropy_bonus_enabled="entropy_coef" in variant,
        entropy_coef=variant.get("entropy_coef", 0.0),
        _metrics=defaultdict(lambda: defaultdict(list)),
        args=SimpleNamespace(
            delta=variant.get("delta"),
            use_bias_correction_kl=variant.get("use_bias_correction_kl", False),
            steps_per_generation=1,
        ),
    )
    batch = {
        "prompt_ids": prompt,
        "prompt_mask": prompt,
        "completion_ids": mask.long(),
        "completion_mask": mask,
        "advantages": torch.tensor(values["advantage"], dtype=torch.float64),
        "old_per_token_logps": padded(values["old"]),
        "ref_per_token_logps": padded(values["reference"]),
        "num_items_in_batch": mask.sum(),
    }
    return outcome(GRPOTrainer._compute_loss(trainer, None, batch), logp)


def dpo(values: dict[str, Any], variant: dict[str, Any]) -> dict[str, Any]:
    """``DPOTrainer._compute_loss``: the first half of the rows is chosen, the second rejected."""
    logp, mask = padded(values["logp"]).requires_grad_(), padded([[1.0] * length for length in LENGTHS])
    zeros = torch.zeros_like(mask)
    outputs = SimpleNamespace(log_probs=logp * mask, entropy=zeros, mean_logits=zeros, is_top1=zeros > 0)
    chosen, rejected = padded(values["reference"]).sum(1).chunk(2)

    class Model:
        training = True

        def __call__(self, **named: Any) -> Any:
            return outputs

    trainer = SimpleNamespace(
        model=Model(),
        accelerator=accelerator(),
        aux_loss_enabled=False,
        ld_alpha=None,
        precompute_ref_logps=True,
        f_divergence_type="reverse_kl",
        loss_types=variant["loss_types"],
        loss_weights=[1.0],
        beta=BETA,
        label_smoothing=0.0,
        use_weighting=False,
        _metrics=defaultdict(lambda: defaultdict(list)),
        _total_train_tokens=0,
        _tp_size=1,
    )
    prompt = torch.ones(len(LENGTHS), 1)
    batch = {
        "input_ids": torch.cat([prompt, mask], 1).long(),
        "attention_mask": torch.cat([prompt, mask], 1),
        "completion_mask": torch.cat([prompt * 0, mask], 1).long(),
        "ref_chosen_logps": chosen,
        "ref_rejected_logps": rejected,
    }
    return outcome(DPOTrainer._compute_loss(trainer, trainer.model, batch, False), logp)


def main() -> None:
    """Write every variant, one line for each seed."""
    lines = []
    for seed in range(3):
        values = inputs_of(seed)
        results = {name: grpo(values, variant) for name, variant in GRPO.items()}
        results |= {name: dpo(values, variant) for name, variant in DPO.items()}
        made_by = {"trl": trl.__version__, "longest": LONGEST, "beta": BETA}
        lines.append(json.dumps({**made_by, "inputs": values, "results": results}) + "\n")
    Path(sys.argv[1]).write_text("".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
