import math

import pytest

from firstchair.core.config import validate
from firstchair.core.errors import ConfigError
from firstchair.train.config import Batch
from firstchair.train.rl_config import Dpo, Grpo, Overlong


def test_defaults_are_valid():
    assert Grpo().reduction == "token"
    assert Dpo().loss == "sigmoid"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"reduction": "constant"}, r"row_tokens \(None\) goes with reduction=constant"),
        ({"row_tokens": 5}, r"row_tokens \(5\) goes with reduction=constant.* found reduction=token"),
        ({"kl": {"place": "reward", "unbiased": True}}, "kl: unbiased weighs a gradient"),
        ({"kl": {"place": "both"}}, "kl.place: Input should be 'loss' or 'reward'"),
        ({"kl": {"estimator": "k4"}}, "kl.estimator: Input should be 'k1', 'k2', 'k3' or 'low_var'"),
        ({"kl": {"coefficient": -0.1}}, "kl.coefficient: .*greater than or equal to 0"),
        (
            {"off_policy": {"correction": "truncate"}, "policy": {"old": "behaviour"}},
            "off_policy.correction=truncate weighs by trainer / sampler",
        ),
        (
            {"off_policy": {"correction": "gate"}, "policy": {"old": "behaviour"}},
            "off_policy.correction=gate weighs by trainer / sampler",
        ),
        ({"off_policy": {"low": 2.0, "high": 2.0}}, r"off_policy: low \(2.0\) must be below high \(2.0\)"),
        ({"off_policy": {"low": -0.1}}, "off_policy.low: .*greater than or equal to 0"),
        ({"off_policy": {"high": math.inf}}, "off_policy.high: .*finite"),
        ({"off_policy": {"low": math.nan}}, "off_policy.low"),
        ({"policy": {"clip_low": -0.1}}, "policy.clip_low: .*greater than or equal to 0"),
        ({"policy": {"clip_high": math.inf}}, "policy.clip_high: .*finite"),
        ({"policy": {"dual_clip": 1.0}}, "policy.dual_clip: .*greater than 1"),
        ({"policy": {"ratio": "one"}, "steps_per_batch": 2}, "policy.ratio=one .* found trainer and 2"),
        ({"policy": {"ratio": "one", "old": "behaviour"}}, "policy.ratio=one .* found behaviour and 1"),
        (
            {"advantage": {"credit": "branch"}, "kl": {"place": "reward", "coefficient": 0.1}},
            "advantage.credit=branch needs advantages before .* put the KL into the loss",
        ),
        ({"entropy": -1.0}, "entropy: .*greater than or equal to 0"),
        ({"steps_per_batch": 0}, "steps_per_batch: .*greater than or equal to 1"),
        (
            {"advantage": {"overlong": {"limit_tokens": 4, "buffer_tokens": 5}}},
            r"buffer_tokens \(5\) must not exceed",
        ),
        ({"policy": {"clip": 0.2}}, "policy.clip: unknown field; did you mean clip_"),
    ],
)
def test_what_does_not_fit_together_is_refused_with_the_field(fields, message):
    with pytest.raises(ConfigError, match=message):
        validate(Grpo, fields, source="test")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"beta": 0.0}, "beta: .*greater than 0"),
        ({"label_smoothing": 0.5}, "label_smoothing: .*less than 0.5"),
        ({"loss": "ipo", "label_smoothing": 0.1}, "label_smoothing belongs to loss=sigmoid"),
        ({"loss": "hinge"}, "loss: Input should be 'sigmoid' or 'ipo'"),
    ],
)
def test_preferences_are_checked_too(fields, message):
    with pytest.raises(ConfigError, match=message):
        validate(Dpo, fields, source="test")


def test_fine_tuning_has_no_constant_and_refuses_that_reduction():
    with pytest.raises(ConfigError, match="reduction: Input should be 'token' or 'sample'"):
        validate(Batch, {"reduction": "constant"}, source="test")


def test_the_overlong_buffer_may_be_the_whole_reply():
    assert Overlong(limit_tokens=4, buffer_tokens=4).penalty == 1.0
