import pytest

from firstchair.chat.messages import assistant_message, text_message
from firstchair.chat.text_encoder import StreamDecoder
from firstchair.chat.token_conversation import Span, TokenConversation
from firstchair.core.errors import DataError
from firstchair.testing.tokenizers import make_renderer


def test_sampled_and_environment_tokens_tile_the_stream():
    stream = TokenConversation()
    stream.append_env([1, 2], message_index=0)
    stream.append_sampled([3, 4], [-0.5, -1.0], message_index=1)
    stream.append_env([5], role="tool", message_index=2)
    stream.validate(vocab_size=6, need_logprobs=True)
    assert stream.loss_mask == [False, False, True, True, False]
    assert stream.logprobs == [0.0, 0.0, -0.5, -1.0, 0.0]
    assert stream.spans[1] == Span("assistant", 1, 2, 4)


@pytest.mark.parametrize(
    ("ids", "logprobs", "message"),
    [
        ([1, 2], [-0.5], "1 log-probabilities for 2"),
        ([1], [float("nan")], "nan"),
        ([1], [0.5], "at most 0"),
        ([1], [float("-inf")], "finite"),
    ],
)
def test_bad_log_probabilities_never_enter(ids, logprobs, message):
    stream = TokenConversation()
    with pytest.raises(DataError, match=message):
        stream.append_sampled(ids, logprobs)
    assert len(stream) == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c.ids.append(1), "lengths differ"),
        (lambda c: c.ids.__setitem__(0, 10**9), "vocabulary"),
        (lambda c: c.spans.pop(), "spans end at"),
        (lambda c: c.loss_mask.__setitem__(0, True), "outside assistant spans"),
        (lambda c: c.spans.__setitem__(0, Span("user", 0, 1, 2)), "follow on"),
    ],
)
def test_a_damaged_conversation_is_refused_where_it_enters(change, message):
    renderer = make_renderer("tiny")
    conversation = renderer.conversation((text_message("user", "a"), assistant_message("b")))
    conversation.validate(vocab_size=renderer.vocab_size)
    change(conversation)
    with pytest.raises(DataError, match=message):
        conversation.validate(vocab_size=renderer.vocab_size)


def test_a_recording_does_not_pass_for_sampled_tokens():
    conversation = make_renderer("tiny").conversation((text_message("user", "a"), assistant_message("b")))
    with pytest.raises(DataError, match="recorded, not sampled"):
        conversation.validate(need_logprobs=True)


def test_decoding_and_encoding_again_is_not_the_identity_so_sampled_ids_are_kept():
    renderer = make_renderer("tiny")
    letters = [renderer.encoder.encode(letter)[0] for letter in "read"]
    assert renderer.encoder.encode(renderer.decode(letters)) != letters
    stream = TokenConversation()
    stream.append_sampled(letters, [-1.0] * 4)
    assert stream.ids == letters


def test_a_character_split_over_tokens_streams_whole():
    renderer = make_renderer("tiny")
    text = "a é 漢 🙂 b"
    decoder = StreamDecoder(renderer.encoder)
    pieces = [decoder.push(token) for token in renderer.encoder.encode(text)]
    assert "".join(pieces) + decoder.flush() == text
    assert all("\ufffd" not in piece for piece in pieces)
    assert "" in pieces


def test_a_stream_that_ends_inside_a_character_shows_it_as_broken():
    renderer = make_renderer("tiny")
    decoder = StreamDecoder(renderer.encoder)
    ids = renderer.encoder.encode("a🙂")[:-1]
    shown = "".join(decoder.push(token) for token in ids)
    assert shown == "a"
    assert "\ufffd" in decoder.flush()
