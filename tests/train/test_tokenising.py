import json

import numpy as np
import pytest

from firstchair.chat.messages import ToolCall, assistant_message, text_message
from firstchair.chat.renderer import Renderer
from firstchair.core.errors import ConfigError, DataError, IntegrityError
from firstchair.data.sft import SftRecord, read_sft, write_sft
from firstchair.train.config import SftData
from firstchair.train.models import model_vocab_size
from firstchair.train.token_sets import TokenSet
from firstchair.train.tokenising import SftLines, build_token_set, token_rules


@pytest.fixture
def renderer(model_dir):
    return Renderer.from_pretrained(model_dir)


@pytest.fixture
def build(renderer, model_dir, tmp_path):
    """Tokenise a file with the tiny model; keyword arguments are fields of ``data``."""

    def make(path, *, workers=0, name="tokens", **fields):
        data = SftData(train=path, **fields)
        rules = token_rules(path, data, model_dir, renderer, model_vocab_size(model_dir), SftLines())
        return build_token_set(rules, tmp_path / name, renderer=renderer, workers=workers)

    return make


@pytest.fixture
def lines(corpus):
    return corpus.read_text(encoding="utf-8").split("\n")[:-1]


def write(path, lines, end="\n"):
    path.write_bytes(end.join([*lines, ""]).encode("utf-8"))
    return path


def test_tokens_are_those_that_the_renderer_gives(build, renderer, corpus):
    rows = build(corpus)
    records = list(read_sft(corpus))
    assert len(rows) == len(records)
    for row, record in zip(rows, records, strict=True):
        conversation = record.to_conversation(renderer)
        assert row.ids.tolist() == conversation.ids
        assert row.loss_mask.tolist() == conversation.loss_mask
    assert rows.counts.tokens == sum(map(len, rows))
    assert rows.counts.trained_tokens == sum(row.trained_tokens for row in rows)


def test_call_arguments_can_be_spaced_as_servers_write_them(model_dir, tmp_path):
    tight = SftRecord(
        id="tight",
        messages=(
            text_message("user", "find it"),
            assistant_message(calls=(ToolCall(id="c", name="find", arguments='{"key":"k1"}'),)),
        ),
        loss=(False, True),
    )
    write_sft(tmp_path / "tight.jsonl", [tight])
    vocab_size = model_vocab_size(model_dir)
    found = {}
    for arguments in ("verbatim", "respaced"):
        renderer = Renderer.from_pretrained(model_dir, arguments=arguments)
        data = SftData(train=tmp_path / "tight.jsonl", arguments=arguments)
        rules = token_rules(data.train, data, model_dir, renderer, vocab_size, SftLines())
        # Worker processes make a renderer of their own from the rules.
        assert rules.renderer().template_hash == renderer.template_hash == rules.source.template_hash
        (row,) = build_token_set(rules, tmp_path / arguments, renderer=renderer)
        assert row.ids.tolist() == tight.to_conversation(renderer).ids
        found[arguments] = renderer.decode(row.ids.tolist())
    assert '{"key":"k1"}' in found["verbatim"]
    assert '{"key": "k1"}' in found["respaced"]


def test_the_end_of_turn_token_of_every_assistant_message_is_trained(build, renderer, corpus):
    (stop,) = renderer.stop_ids
    records = list(read_sft(corpus))
    for row, record in zip(build(corpus), records, strict=True):
        assert int(((row.ids == stop) & row.loss_mask).sum()) == record.trained_spans


def test_worker_processes_give_the_same_files(build, corpus, tmp_path):
    build(corpus, name="one")
    build(corpus, name="two", workers=1)
    for file in ("ids.i32", "mask.u8", "offsets.i64", "manifest.json"):
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()


def test_finished_files_are_opened_and_files_of_other_data_are_replaced(build, lines, tmp_path):
    path = write(tmp_path / "a.jsonl", lines[:3])
    build(path)
    stamp = (tmp_path / "tokens" / "ids.i32").stat().st_mtime_ns
    build(path)
    assert (tmp_path / "tokens" / "ids.i32").stat().st_mtime_ns == stamp
    write(path, lines[:2])
    assert len(build(path)) == 2


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_line_ends_and_a_byte_order_mark_do_not_matter(build, lines, tmp_path, end, mark):
    path = write(tmp_path / "b.jsonl", [mark + lines[0], *lines[1:3]], end)
    assert len(build(path)) == 3


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"id": "x", "messages": [', "not strict JSON"),
        ("[1]", "found list; expected one JSON object a line"),
        ('{"id": "x", "messages": [{"role": "user", "content": "hi"}]}', "no assistant message"),
        ('{"messages": [{"role": "assistant", "content": NaN}]}', "not JSON"),
        ('{"messages": [{"role": "assistant", "content": "\\ud800"}]}', "lone surrogate"),
    ],
)
def test_a_bad_line_is_named_with_file_and_line(build, lines, tmp_path, line, message):
    path = write(tmp_path / "bad.jsonl", [lines[0], line, lines[1]])
    with pytest.raises(DataError, match=f"bad.jsonl:2: .*{message}"):
        build(path)
    assert not (tmp_path / "tokens").exists()


def test_bad_lines_within_the_allowance_are_listed(build, lines, tmp_path):
    path = write(tmp_path / "bad.jsonl", [lines[0], "{", lines[1]])
    rows = build(path, skip_bad=1)
    assert len(rows) == 2
    (listed,) = rows.counts.bad_lines
    assert "bad.jsonl:2" in listed


def test_a_session_that_cannot_be_rendered_counts_as_a_bad_line(build, lines, tmp_path):
    picture = [{"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}]
    messages = [{"role": "user", "content": picture}, {"role": "assistant", "content": "a cat"}]
    path = write(tmp_path / "bad.jsonl", [lines[0], json.dumps({"messages": messages}), lines[2]])
    with pytest.raises(DataError, match=r"bad\.jsonl:2: messages\[0\]\.content\[0\]: an image"):
        build(path)
    rows = build(path, skip_bad=1)
    assert len(rows) == 2
    (listed,) = rows.counts.bad_lines
    assert listed.startswith(f"{path}:2: messages[0].content[0]: an image")


def test_a_record_with_nothing_to_learn_is_refused_even_when_bad_lines_may_be_skipped(build, lines, tmp_path):
    record = json.loads(lines[1])
    for message in record["messages"]:
        message["loss"] = False
    path = write(tmp_path / "empty.jsonl", [lines[0], json.dumps(record)])
    with pytest.raises(DataError, match=r"empty\.jsonl:2: messages: no message has loss: true"):
        build(path, skip_bad=5)


def test_a_long_row_is_refused_by_default(build, corpus):
    with pytest.raises(DataError, match=r"train.jsonl:1: messages: .* tokens; data.max_tokens is 80; raise it"):
        build(corpus, max_tokens=80)


def test_long_rows_can_be_skipped_and_are_counted(build, corpus):
    whole = build(corpus, name="whole")
    limit = sorted(map(len, whole))[len(whole) // 2]
    rows = build(corpus, max_tokens=limit, over_long="skip")
    assert 0 < len(rows) < len(whole)
    assert rows.counts.skipped == rows.counts.over_long == len(whole) - len(rows)
    assert rows.counts.longest == max(map(len, whole))


def test_long_rows_can_be_cut_on_the_left_and_keep_their_last_reply(build, corpus):
    whole = build(corpus, name="whole")
    rows = build(corpus, max_tokens=60, over_long="truncate-left-keep-last")
    assert rows.counts.truncated == len(whole)
    for before, after in zip(whole, rows, strict=True):
        assert len(after) <= 60
        assert after.ids.tolist() == before.ids[-len(after) :].tolist()
        assert not after.loss_mask[0]
        assert after.trained_tokens > 0
    assert rows.counts.truncated_tokens == sum(map(len, whole)) - sum(map(len, rows))


def test_ids_beyond_the_models_vocabulary_are_refused(renderer, model_dir, corpus, tmp_path):
    rules = token_rules(corpus, SftData(train=corpus), model_dir, renderer, 30, SftLines())
    with pytest.raises(DataError, match="the model knows 30 tokens: is this its tokenizer"):
        build_token_set(rules, tmp_path / "tokens", renderer=renderer)


def test_a_missing_file_is_a_mistake_in_the_recipe(build, tmp_path):
    with pytest.raises(ConfigError, match="no such file; check the path"):
        build(tmp_path / "none.jsonl")


def test_an_empty_file_gives_an_empty_set(build, tmp_path):
    path = tmp_path / "none.jsonl"
    path.write_bytes(b"")
    assert len(build(path)) == 0


@pytest.mark.parametrize("change", [lambda raw: raw[:-8], lambda raw: bytes([raw[0] ^ 1]) + raw[1:]])
@pytest.mark.parametrize("file", ["ids.i32", "mask.u8", "offsets.i64"])
def test_changed_token_files_are_refused(build, corpus, tmp_path, file, change):
    build(corpus)
    path = tmp_path / "tokens" / file
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(IntegrityError, match=f"{file}: bytes differ from those written; delete the folder"):
        build(corpus)


def test_token_files_without_checksums_are_refused(build, corpus, tmp_path):
    build(corpus)
    path = tmp_path / "tokens" / "manifest.json"
    manifest = json.loads(path.read_text(encoding="utf-8"))
    del manifest["files"]
    path.write_text(json.dumps(manifest), encoding="utf-8")
    with pytest.raises(IntegrityError, match="missing required field `files`; delete the folder"):
        TokenSet.open(tmp_path / "tokens")


def test_rows_are_read_by_memory_map(build, corpus):
    row = build(corpus)[0]
    assert isinstance(row.ids, np.memmap)


def trajectories(tmp_path):
    """Records of trajectories: correct and clean, correct but unclean, wrong, not graded, and correct by itself."""
    flags = {
        "good": {"correct": True, "clean": True, "routed": True, "unclean": []},
        "unclean": {"correct": True, "clean": False, "routed": True, "unclean": ["cut", "capitals"]},
        "wrong": {"correct": False, "clean": True, "routed": True},
        "ungraded": {"correct": None, "clean": True, "routed": True},
        "alone": {"correct": True, "clean": False, "routed": False, "unclean": ["no_delegation"]},
    }
    records = [
        SftRecord(
            id=name,
            messages=(text_message("user", "find it"), text_message("assistant", name)),
            loss=(False, True),
            meta=meta,
        )
        for name, meta in flags.items()
    ]
    write_sft(tmp_path / "made.jsonl", records)
    return tmp_path / "made.jsonl"


@pytest.mark.parametrize(
    ("fields", "taken", "why"),
    [
        ({}, "good unclean wrong ungraded alone", {}),
        ({"select": "correct"}, "good unclean alone", {"wrong": 1, "not graded": 1}),
        ({"select": "correct_routed"}, "good unclean", {"wrong": 1, "not graded": 1, "no model was asked": 1}),
        ({"clean_only": True}, "good wrong ungraded", {"unclean: cut": 1, "unclean: no_delegation": 1}),
        (
            {"select": "correct_routed", "clean_only": True},
            "good",
            {"unclean: cut": 1, "wrong": 1, "not graded": 1, "no model was asked": 1},
        ),
    ],
)
def test_records_are_chosen_by_what_they_say_and_the_others_counted_by_why(
    build, renderer, tmp_path, fields, taken, why
):
    rows = build(trajectories(tmp_path), **fields)
    said = [renderer.decode(row.ids[row.loss_mask].tolist()).split("<")[0].strip() for row in rows]
    assert " ".join(said) == taken
    assert rows.counts.left_out == why
    assert rows.counts.records == len(rows) == 5 - sum(why.values())


def test_the_choice_is_part_of_what_the_tokens_are(build, tmp_path):
    path = trajectories(tmp_path)
    choices = ({"select": "correct"}, {"select": "all"}, {"clean_only": True})
    assert len({build(path, **fields).source.key() for fields in choices}) == 3


def test_a_record_that_does_not_say_whether_it_is_correct_is_refused(build, corpus):
    with pytest.raises(DataError, match=r":1: meta\.correct: found nothing; expected true or false"):
        build(corpus, select="correct")
