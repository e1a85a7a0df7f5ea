"""From rollouts to what the trainer eats: one example per token stream, with what the sampler thought of its tokens.

What can be learnt from decides, not how well it went: an episode that a limit cut is kept (an objective may mask it),
one that broke or was cancelled is not, and neither is one in which nothing was sampled. Each is counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from firstchair.chat.token_conversation import TokenConversation
from firstchair.core.errors import DataError
from firstchair.rollout.rollouts import Rollout, RolloutStatus
from firstchair.train.examples import Example

BEHAVIOUR = "behaviour"
"""Column: log-probability of each token under the policy that sampled it, at temperature 1, in nats."""


@dataclass(frozen=True, slots=True)
class RolloutCounts:
    """What became of the rollouts: ``rollouts`` = kept + aborted + failed + empty + all_masked + over_long."""

    rollouts: int = 0
    kept: int = 0
    truncated: int = 0
    """Of the kept ones, those that a limit cut."""
    aborted: int = 0
    failed: int = 0
    empty: int = 0
    """No token was sampled."""
    all_masked: int = 0
    """Tokens were sampled, and none of them is in the loss."""
    over_long: int = 0
    """A stream is longer than the trainer's context."""
    examples: int = 0
    """More than the kept rollouts where a template rewrites history."""
    tokens: int = 0
    trained_tokens: int = 0


@dataclass(frozen=True, slots=True)
class RolloutExamples:
    """Examples and where they come from."""

    examples: tuple[Example, ...]
    """``key`` is the index of the rollout among those given; ``group`` its group; column ``behaviour``."""
    kept_S: NDArray[np.bool_]
    """``[S]``, one per rollout given: whether it has an example. A group's baseline must not count the others."""
    counts: RolloutCounts


def rollout_examples(
    rollouts: Sequence[Rollout], *, vocab_size: int, max_tokens: int, over_long: Literal["error", "skip"] = "error"
) -> RolloutExamples:
    """The examples of ``rollouts``.

    Raises ``DataError`` naming the rollout when the engine did not tell ids and log-probabilities of every call, when
    lengths differ, when an id is outside the vocabulary, when a log-probability is not finite or positive, and when a
    stream has more than ``max_tokens`` tokens unless ``over_long`` is ``skip``: then the whole rollout is left out.
    """
    fates: list[str] = []
    examples: list[Example] = []
    for key, rollout in enumerate(rollouts):
        try:
            fate = _fate(rollout, max_tokens, over_long)
            if fate == "kept":
                examples += [_example(segment, key, rollout.group, vocab_size) for segment in rollout.segments]
        except DataError as error:
            raise DataError(error.reason, path=f"rollout {rollout.name}", field=error.field) from None
        fates.append(fate)
    counts = RolloutCounts(
        rollouts=len(rollouts),
        truncated=sum(
            fate == "kept" and rollout.status is RolloutStatus.TRUNCATED
            for fate, rollout in zip(fates, rollouts, strict=True)
        ),
        examples=len(examples),
        tokens=sum(map(len, examples)),
        trained_tokens=sum(example.trained_tokens for example in examples),
        **{fate: fates.count(fate) for fate in ("kept", "aborted", "failed", "empty", "all_masked", "over_long")},
    )
    return RolloutExamples(tuple(examples), np.array([fate == "kept" for fate in fates], np.bool_), counts)


def _fate(rollout: Rollout, max_tokens: int, over_long: Literal["error", "skip"]) -> str:
    """Which field of the counts the rollout belongs to."""
    if rollout.status in (RolloutStatus.ABORTED, RolloutStatus.FAILED):
        return rollout.status.value
    # One without an error acted, whether or not its message was left in the conversation.
    acted = sum(call.error is None for call in rollout.episode.session.calls)
    if acted != len(rollout.revisions):
        raise DataError(
            f"the engine told ids and log-probabilities of {len(rollout.revisions)} of {acted} calls; train with an "
            "engine that tells all, and a policy with a renderer",
            field="segments",
        )
    if not any(span.end > span.start for segment in rollout.segments for span in segment.assistant_spans()):
        return "empty"
    if not any(segment.trained_tokens for segment in rollout.segments):
        return "all_masked"
    longest = max(map(len, rollout.segments))
    if longest <= max_tokens:
        return "kept"
    if over_long == "skip":
        return "over_long"
    raise DataError(
        f"{longest:,} tokens; {max_tokens:,} fit the trainer; raise that, limit the episode, or skip such rollouts",
        field="segments",
    )


def _example(segment: TokenConversation, key: int, group: int, vocab_size: int) -> Example:
    segment.validate(vocab_size=vocab_size, need_logprobs=True)
    mask = np.array(segment.loss_mask, np.bool_)
    behaviour = np.array(segment.logprobs, np.float32)
    # Appending checks this too; a stream that came from a file did not pass there.
    if not np.isfinite(behaviour).all() or (behaviour > 1e-3).any():
        raise DataError("found a log-probability that is not a finite number of at most 0", field="logprobs")
    example = Example(np.array(segment.ids, np.int32), mask, {BEHAVIOUR: behaviour}, key=key, group=group)
    example.validate(vocab_size=vocab_size)
    return example
