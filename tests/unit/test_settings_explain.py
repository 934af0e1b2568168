"""What `treadle config --explain` is made of."""

from pathlib import Path

from treadle.settings import Flag, load
from treadle.settings.explain import documented, explain


def test_every_setting_is_explained_with_its_origin(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("aliases: {fast: ollama/llama}\nmodels: {ollama: {capabilities: {tools: false}}}\n")
    loaded = load(file, environ={"TREADLE_LOG_LEVEL": "debug"}, flags=[Flag("server.port", 1, "--port")])
    lines = {line.path: (line.value, str(line.origin)) for line in explain(loaded)}
    assert lines["server.port"] == ("1", "flag --port")
    assert lines["log_level"] == ('"debug"', "environment TREADLE_LOG_LEVEL")
    assert lines["aliases"] == ('{"fast":"ollama/llama"}', "file c.yaml:1")
    assert lines["models.ollama.url"] == ('"http://127.0.0.1:11434/v1"', "vendor table ollama")
    assert lines["models.ollama.capabilities.tools"] == ("false", "file c.yaml:2")
    assert "models.ollama.capabilities.images" not in lines
    assert lines["server.host"] == ('"127.0.0.1"', "default")


def test_secrets_are_not_shown_and_unset_ones_are_seen_to_be_unset(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(
        "secret_key: hush1\nstore: {url: 'postgresql://me:hush2@db:5432/x'}\n"
        "models:\n  mine: {url: 'http://h/v1', key: hush3, headers: {X-Team: hush4}}\n  other: {url: 'http://o/v1'}\n"
    )
    lines = {line.path: line.value for line in explain(load(file, environ={}))}
    assert "hush" not in str(lines)
    assert lines["secret_key"] == "***"
    assert lines["store.url"] == '"postgresql://me:***@db:5432/x"'
    assert lines["models.mine.key"] == "***"
    assert lines["models.mine.headers"] == '{"X-Team":"***"}'
    assert lines["models.other.key"] == '""'
    file.write_text("secret_key: k\nstore: {url: 'postgresql://db/x?user=me&password=hush&sslmode=require'}\n")
    lines = {line.path: line.value for line in explain(load(file, environ={}))}
    assert lines["store.url"] == '"postgresql://db/x?user=me&password=***&sslmode=require"'


def test_every_setting_has_a_meaning() -> None:
    assert [doc.path for doc in documented() if not doc.meaning] == []
    assert "models.<name>.capabilities.reasoning_back" in [doc.path for doc in documented()]
