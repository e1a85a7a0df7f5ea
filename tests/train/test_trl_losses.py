"""The objectives against TRL's own loss functions; ``bench/trl_losses.py`` made the numbers."""

import json
from pathlib import Path

import pytest
from tests.train.table_scorer import EntropyTable, cut, example, run_step

from firstchair.train.dpo import DpoObjective
from firstchair.train.grpo import GrpoObjective
from firstchair.train.rl_config import Dpo, Grpo

CASES = [json.loads(line) for line in Path(__file__).with_suffix(".jsonl").with_stem("trl_losses").open()]
LONGEST, BETA = CASES[0]["longest"], CASES[0]["beta"]

GRPO = {
    "grpo": Grpo(reduction="sample"),
    "dr_grpo": Grpo(reduction="constant", row_tokens=LONGEST),
    "dapo": Grpo(policy={"clip_high": 0.28}),
    "grpo_kl": Grpo(reduction="sample", kl={"coefficient": BETA}),
    "dapo_unbiased_kl": Grpo(kl={"coefficient": BETA, "unbiased": True}),
    "dual_clip": Grpo(policy={"dual_clip": 1.5}),
    "entropy": Grpo(entropy=0.2),
    "gspo": Grpo(reduction="sample", policy={"ratio": "sequence"}),
    "gspo_token_mean": Grpo(policy={"ratio": "sequence"}),
}
DPO = {
    "sigmoid": Dpo(beta=BETA),
    "sigmoid_norm": Dpo(beta=BETA, length_normalised=True),
    "ipo": Dpo(beta=BETA, loss="ipo", length_normalised=True),  # TRL's IPO divides by length
}


def assert_same(found, expected):
    loss, gradient, _ = found
    # Columns are float32, TRL's numbers float64.
    assert loss == pytest.approx(expected["loss"], abs=1e-6)
    for row, values in zip(gradient.tolist(), expected["gradient"], strict=True):
        assert row[: len(values)] == pytest.approx(values, abs=1e-6)


@pytest.mark.parametrize("name", GRPO)
@pytest.mark.parametrize("case", CASES)
def test_policy_losses_and_gradients_are_those_of_trl(name, case):
    inputs = case["inputs"]
    rows = []
    for key, old in enumerate(inputs["old"]):
        columns = {
            "behaviour": old,
            "old": old,
            "reference": inputs["reference"][key],
            "advantage": [inputs["advantage"][key]] * len(old),
        }
        rows.append(example(key, columns, trained=len(old)))
    scorer = EntropyTable(inputs["logp"], inputs["entropy"])
    assert_same(run_step(GrpoObjective(GRPO[name]), scorer, cut(rows, [3, 1])), case["results"][name])


@pytest.mark.parametrize("name", DPO)
@pytest.mark.parametrize("case", CASES)
def test_preference_losses_and_gradients_are_those_of_trl(name, case):
    inputs = case["inputs"]
    pairs = len(inputs["logp"]) // 2
    rows = []
    for group in range(pairs):
        for key in (group, pairs + group):
            reference = inputs["reference"][key]
            columns = {"reference": reference, "chosen": [float(key < pairs)] * len(reference)}
            rows.append(example(key, columns, trained=len(reference), group=group))
    assert_same(
        run_step(DpoObjective(DPO[name]), EntropyTable(inputs["logp"]), cut(rows, [2, 2])), case["results"][name]
    )
