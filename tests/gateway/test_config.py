"""gateway.yaml: what is wrong is named with its field, and no secret is ever repeated."""

from pathlib import Path

import pytest

from firstchair.core.config import validate
from firstchair.core.errors import ConfigError
from firstchair.gateway.config import GatewayConfig, Provider, load_config
from firstchair.gateway.serve import sink_settings
from firstchair.gateway.sink import SinkConfig

SECRET = "sk-ant-CANARY-0123456789abcdef"
PROVIDER = {"type": "anthropic", "base_url": "https://api.anthropic.com"}
SLOT = {"slot": "main", "primary": {"provider": "claude", "model": "claude-sonnet-4-6"}}


def problem(data: dict) -> str:
    with pytest.raises(ConfigError) as caught:
        validate(GatewayConfig, {"providers": {"claude": PROVIDER}, **data}, source="gateway.yaml")
    return str(caught.value)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"providers": {}}, "providers"),
        ({"worker": 2}, "did you mean workers?"),
        ({"providers": {"claude": {**PROVIDER, "base_url": "ftp://x"}}}, "providers.claude.base_url: expected http"),
        ({"providers": {"claude": {**PROVIDER, "base_url": "http://x:99999"}}}, "is no URL"),
        ({"providers": {"claude": {**PROVIDER, "base_url": "https://x/v1?key=1"}}}, "neither ? nor #"),
        ({"providers": {"claude": {**PROVIDER, "headers": {"x": "a\r\nb: c"}}}}, "printable ASCII"),
        ({"providers": {"claude": {**PROVIDER, "headers": {"Host": "x"}}}}, "set by the gateway itself"),
        ({"providers": {"claude": {**PROVIDER, "api_key_env": "A", "api_key_file": "b"}}}, "keep one"),
        ({"providers": {"claude": {**PROVIDER, "want_tokens": True}}}, "returns no token ids"),
        ({"providers": {"claude": {**PROVIDER, "tokenizer": "x"}}}, "without context_window"),
        ({"providers": {"claude": {**PROVIDER, "template_hash": "a" * 64}}}, "nobody knows how anthropic renders"),
        ({"providers": {"claude": {**PROVIDER, "template_hash": "abc"}}}, "template_hash: String should match"),
        ({"listen": {"port": 80, "admin_port": 80}}, "need one each"),
        ({"listen": {"host": "0.0.0.0"}, "auth": {"require_keys": False}}, "turn keys on or listen on 127.0.0.1"),
        ({"listen": {"admin_host": "::"}, "auth": {"require_keys": False}}, "listen.admin_host is ::"),
        ({"slots": [SLOT, SLOT]}, "main stands twice"),
        ({"slots": [{**SLOT, "primary": {"provider": "gpt", "model": "x"}}]}, "slots.main.primary: provider gpt"),
        ({"slots": [{**SLOT, "shadow": [{"provider": "gpt", "model": "x"}]}]}, "slots.main.shadow[0]"),
        ({"breaker": {"open_s": 9, "max_open_s": 3}}, "lower open_s"),
        ({"limits": {"max_body_mb": 0}}, "limits.max_body_mb"),
    ],
)
def test_a_mistake_is_named_with_its_field(data, words):
    assert words in problem(data)


@pytest.mark.parametrize(
    "provider",
    [
        {**PROVIDER, "base_url": f"https://user:{SECRET}@api.anthropic.com"},
        {**PROVIDER, "api_key_env": SECRET},
        {**PROVIDER, "headers": {"authorization": f"Bearer {SECRET}"}},
        {**PROVIDER, "headers": {"X-Api-Key": SECRET}},
    ],
)
def test_a_secret_in_the_wrong_place_is_refused_and_not_repeated(provider):
    told = problem({"providers": {"claude": provider}})
    assert "api_key" in told
    assert SECRET not in told


def test_open_house_is_allowed_on_loopback_only():
    config = validate(
        GatewayConfig,
        {"providers": {"claude": PROVIDER}, "auth": {"require_keys": False}, "listen": {"host": "127.0.0.1"}},
        source="x",
    )
    assert not config.auth.require_keys


@pytest.mark.parametrize(
    ("kind", "base_url", "dialect", "url"),
    [
        ("anthropic", "https://api.anthropic.com", "anthropic", "https://api.anthropic.com/v1/messages"),
        ("anthropic", "https://api.anthropic.com/v1/", "anthropic", "https://api.anthropic.com/v1/messages"),
        ("openai", "https://api.openai.com/v1", "responses", "https://api.openai.com/v1/responses"),
        ("openai", "https://api.openai.com", "openai", "https://api.openai.com/v1/chat/completions"),
        ("openai-compatible", "http://h:1/api/v1", "openai", "http://h:1/api/v1/chat/completions"),
    ],
)
def test_calls_go_where_the_vendors_sdks_would_send_them(kind, base_url, dialect, url):
    assert Provider(type=kind, base_url=base_url).url(dialect) == url


def test_a_provider_is_spoken_to_in_the_clients_own_dialect_if_it_can_be():
    openai = Provider(type="openai", base_url="http://x")
    vllm = Provider(type="openai-compatible", base_url="http://x")
    assert [openai.dialect_for(name) for name in ("openai", "responses", "anthropic")] == [
        "openai",
        "responses",
        "openai",
    ]
    assert [vllm.dialect_for(name) for name in ("openai", "responses", "anthropic")] == ["openai"] * 3


def test_keys_come_from_the_environment_or_a_file(monkeypatch, tmp_path):
    monkeypatch.setenv("UPSTREAM_KEY", SECRET + "\n")
    assert Provider(**PROVIDER, api_key_env="UPSTREAM_KEY").secret("claude") == SECRET
    (tmp_path / "key").write_text(SECRET + "\n")
    assert Provider(**PROVIDER, api_key_file=tmp_path / "key").secret("claude") == SECRET
    assert Provider(**PROVIDER).secret("claude") is None
    monkeypatch.delenv("UPSTREAM_KEY")
    with pytest.raises(ConfigError, match=r"providers\.claude\.api_key_env: UPSTREAM_KEY is not set"):
        Provider(**PROVIDER, api_key_env="UPSTREAM_KEY").secret("claude")
    with pytest.raises(ConfigError, match=r"providers\.claude\.api_key_file"):
        Provider(**PROVIDER, api_key_file=tmp_path / "none").secret("claude")
    (tmp_path / "key").write_text(f"{SECRET}\r\nx: y")
    with pytest.raises(ConfigError) as caught:
        Provider(**PROVIDER, api_key_file=tmp_path / "key").secret("claude")
    assert SECRET not in str(caught.value)


def test_relative_paths_count_from_the_folder_of_the_file(tmp_path):
    path = tmp_path / "gateway.yaml"
    path.write_text(
        "providers: {claude: {type: anthropic, base_url: 'https://x', api_key_file: k}}\n"
        "recording: {store: postgresql://me@h/db}\nspool: a/b\nprices: /etc/p.yaml\n"
    )
    config = load_config(path)
    assert config.database == str(tmp_path / "gateway.db")
    assert config.recording.store == "postgresql://me@h/db"
    assert config.spool == tmp_path / "a/b"
    assert config.prices == Path("/etc/p.yaml")
    assert config.providers["claude"].api_key_file == tmp_path / "k"


def test_the_sink_works_by_the_configuration(tmp_path):
    recording = {"idle_s": 5, "max_unsaved_s": 50, "max_branches": 7, "keep_days": 2}
    data = {"providers": {"claude": PROVIDER}, "spool": tmp_path, "recording": recording}
    settings = sink_settings(validate(GatewayConfig, data, source="gateway.yaml"))
    assert (settings.idle_s, settings.max_unsaved_s, settings.max_branches) == (5, 50, 7)
    assert settings.keep_s == 2 * 86_400
    assert settings.blobs == tmp_path / "blobs"
    plain = sink_settings(validate(GatewayConfig, {"providers": {"claude": PROVIDER}}, source="gateway.yaml"))
    assert plain == SinkConfig(spool=plain.spool, database=plain.database, store=plain.store, blobs=plain.blobs)
