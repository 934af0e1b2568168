"""Loading the configuration: where values come from, which win, and how faults are named."""

from pathlib import Path

import msgspec
import pytest

from treadle.ports import Capabilities
from treadle.settings import CapabilityOverrides, Flag, InvalidSettings, Provider, Settings, capabilities_of, load


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test may pick up a treadle.yaml that happens to lie in the working directory."""
    monkeypatch.chdir(tmp_path)


def write(folder: Path, text: str) -> Path:
    file = folder / "config.yaml"
    file.write_text(text, encoding="utf-8")
    return file


def faults(folder: Path, text: str, **environ: str) -> dict[str, str]:
    return {fault.path: str(fault) for fault in load(write(folder, text), environ=environ).faults}


def test_with_nothing_given_the_defaults_hold_and_there_is_no_fault() -> None:
    loaded = load(environ={})
    assert loaded.faults == []
    assert loaded.file == ""
    assert loaded.settings == Settings()
    assert (loaded.settings.server.host, loaded.settings.server.port) == ("127.0.0.1", 8321)
    assert Path(loaded.settings.data_dir).is_absolute()


def test_each_layer_wins_over_the_one_below_it(tmp_path: Path) -> None:
    file = write(tmp_path, "server: {port: 1001, max_body_bytes: 2001}\nlog_level: warning\n")
    environ = {"TREADLE_SERVER__PORT": "1002", "TREADLE_LOG_LEVEL": "error"}
    loaded = load(file, environ=environ, flags=[Flag("server.port", 1003, "--port")])
    assert loaded.faults == []
    assert loaded.settings.server.port == 1003
    assert loaded.settings.log_level == "error"
    assert loaded.settings.server.max_body_bytes == 2001
    assert str(loaded.origins["server.port"]) == "flag --port"
    assert str(loaded.origins["log_level"]) == "environment TREADLE_LOG_LEVEL"
    assert str(loaded.origins["server.max_body_bytes"]) == "file config.yaml:1"
    assert str(loaded.origins["server.host"]) == "default"


def test_the_file_is_found_by_variable_and_by_its_usual_name(tmp_path: Path) -> None:
    named = write(tmp_path, "log_level: debug")
    assert load(environ={"TREADLE_CONFIG": str(named)}).settings.log_level == "debug"
    (tmp_path / "treadle.yaml").write_text("log_level: error")
    assert load(environ={}).settings.log_level == "error"
    assert load(named, environ={}).settings.log_level == "debug"


def test_a_file_that_was_named_but_does_not_exist_is_a_fault(tmp_path: Path) -> None:
    loaded = load(tmp_path / "absent.yaml", environ={})
    assert len(loaded.faults) == 1
    assert "absent.yaml" in str(loaded.faults[0])


def test_the_data_folder_comes_from_its_variable_and_its_home_is_expanded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    assert load(environ={"TREADLE_DATA_DIR": "~/data"}).settings.data_dir == "/home/somebody/data"


def test_variables_take_every_kind_of_value() -> None:
    environ = {
        "TREADLE_SERVER__ALLOW_UNAUTHENTICATED": "yes",
        "TREADLE_SERVER__KEEP_ALIVE_SECONDS": "2.5",
        "TREADLE_SERVER__CORS_ORIGINS": "https://a.example, https://b.example",
        "TREADLE_MODELS__MY_BOX__URL": "http://box/v1",
        "TREADLE_MODELS__MY_BOX__MODELS": '["a,b"]',
        "TREADLE_MODELS__MY_BOX__EXTRA_BODY": '{"top_k": 4}',
        "TREADLE_MODELS__MY_BOX__CAPABILITIES__TOOLS": "off",
        "TREADLE_ALIASES__FAST": "my_box/a",
    }
    loaded = load(environ=environ)
    assert loaded.faults == []
    server, box = loaded.settings.server, loaded.settings.models["my_box"]
    assert server.allow_unauthenticated is True
    assert server.keep_alive_seconds == 2.5
    assert server.cors_origins == ["https://a.example", "https://b.example"]
    assert box.models == ["a,b"]
    assert bytes(box.extra_body["top_k"]) == b"4"
    assert capabilities_of(box).tools is False
    assert loaded.settings.aliases == {"fast": "my_box/a"}


def test_a_group_of_texts_may_be_one_variable_with_json() -> None:
    loaded = load(environ={"TREADLE_ALIASES": '{"fast": "a/b"}'})
    assert (loaded.faults, loaded.unused) == ([], [])
    assert loaded.settings.aliases == {"fast": "a/b"}
    assert load(environ={"TREADLE_ALIASES": ""}).faults == []
    assert [str(fault) for fault in load(environ={"TREADLE_ALIASES": "fast"}).faults] == [
        "aliases: must be a group of settings, not `fast` (environment TREADLE_ALIASES)"
    ]


def test_a_variable_reaches_a_section_whose_name_has_capitals_and_dashes(tmp_path: Path) -> None:
    file = write(tmp_path, "models: {My-Box: {url: 'http://box/v1'}}")
    loaded = load(file, environ={"TREADLE_MODELS__MY_BOX__KEY": "k"})
    assert list(loaded.settings.models) == ["My-Box"]
    assert loaded.settings.models["My-Box"].key == "k"


def test_a_mistyped_variable_is_a_fault_and_a_foreign_one_is_not() -> None:
    loaded = load(environ={"TREADLE_SERVER__PROT": "1", "TREADLE_PORT": "tcp://10.0.0.1:80", "TREADLE_SERVER": "x"})
    assert [str(fault) for fault in loaded.faults] == [
        "server.prot: is not a known setting; did you mean `port`? (environment TREADLE_SERVER__PROT)"
    ]
    assert loaded.unused == ["TREADLE_PORT", "TREADLE_SERVER"]


def test_an_unknown_key_is_named_by_its_full_path_and_line_with_a_suggestion(tmp_path: Path) -> None:
    found = faults(tmp_path, "models:\n  openai:\n    ky: x\nserverr: {}\n", OPENAI_API_KEY="k")
    assert found["models.openai.ky"] == (
        "models.openai.ky: is not a known setting; did you mean `key`? (file config.yaml:3)"
    )
    assert "did you mean `server`?" in found["serverr"]


def test_all_faults_are_collected_and_require_raises_them_together(tmp_path: Path) -> None:
    text = (
        "server: {port: 70000, keep_alive_seconds: 0}\nlog_level: loud\nstore: 5\nresponses: {max_infer_iters: 1.5}\n"
    )
    loaded = load(write(tmp_path, text), environ={})
    assert {fault.path for fault in loaded.faults} == {
        "server.port",
        "server.keep_alive_seconds",
        "log_level",
        "store",
        "responses.max_infer_iters",
    }
    with pytest.raises(InvalidSettings, match=r"(?s)server\.port: must be a whole number from 0 to 65535.*log_level"):
        loaded.require()


def test_no_fault_shows_a_secret(tmp_path: Path) -> None:
    found = faults(tmp_path, "secret_key: [hush]\nmodels: {openai: {key: {a: hush}, headers: {A: [hush]}}}\n")
    assert set(found) >= {"secret_key", "models.openai.key", "models.openai.headers.A"}
    assert "hush" not in str(found)


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("server:\n  port: [1, 2\n", "line 3, column 1"),
        ("a: b: c\n", "line 1, column 5"),
        ("\tserver: 1\n", "line 1, column 1"),
        ("a: *nowhere\n", "line 1, column 4"),
    ],
)
def test_broken_yaml_is_named_by_file_line_and_column(tmp_path: Path, text: str, where: str) -> None:
    loaded = load(write(tmp_path, text), environ={})
    assert len(loaded.faults) == 1
    assert f"config.yaml, {where}: not valid YAML" in str(loaded.faults[0])


@pytest.mark.parametrize("text", ["- a\n- b\n", "just words\n", "a: &x {b: *x}\n", "a: !!python/object:os.system {}\n"])
def test_yaml_that_is_no_configuration_is_a_fault_and_never_an_exception(tmp_path: Path, text: str) -> None:
    assert load(write(tmp_path, text), environ={}).faults


def test_a_file_that_is_not_text_is_a_fault(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_bytes(b"\xff\xfe\x00\x00\xff")
    assert "cannot be read" in str(load(file, environ={}).faults[0])


def test_a_key_that_is_given_twice_is_a_fault(tmp_path: Path) -> None:
    found = faults(tmp_path, "server: {port: 1}\nserver: {port: 2}\n")
    assert found["server"] == "server: is given twice (file config.yaml:2)"


def test_empty_files_sections_and_values_mean_not_set(tmp_path: Path) -> None:
    assert load(write(tmp_path, ""), environ={}).faults == []
    assert load(write(tmp_path, "# only a comment\n"), environ={}).settings == Settings()
    loaded = load(write(tmp_path, "server:\n  port:\nmodels:\nlocal:\nmodels:\n"[:-8]), environ={})
    assert loaded.faults == []
    assert loaded.settings == Settings()


def test_text_that_yaml_reads_as_something_else_stays_text(tmp_path: Path) -> None:
    text = "models: {azure: {url: 'https://a.example/openai/v1', key: 0123, api_version: 2024-10-21}}"
    azure = load(write(tmp_path, text), environ={}).require().models["azure"]
    assert (azure.key, azure.api_version) == ("0123", "2024-10-21")


def test_anchors_and_merged_mappings_work(tmp_path: Path) -> None:
    text = "models:\n  a: &common {url: 'http://a/v1', retries: 5}\n  b:\n    <<: *common\n    url: 'http://b/v1'\n"
    models = load(write(tmp_path, text), environ={}).require().models
    assert (models["b"].url, models["b"].retries) == ("http://b/v1", 5)


def test_listening_beyond_this_machine_needs_to_be_said_explicitly() -> None:
    exposed = [Flag("server.host", "0.0.0.0", "--host")]
    fault = load(environ={}, flags=exposed).faults[0]
    assert fault.path == "server.host"
    assert "--insecure" in fault.message
    assert load(environ={}, flags=[*exposed, Flag("server.allow_unauthenticated", True, "--insecure")]).faults == []


@pytest.mark.parametrize("host", ["127.0.0.1", "127.5.5.5", "localhost", "::1"])
def test_this_machine_has_several_names(host: str) -> None:
    assert load(environ={"TREADLE_SERVER__HOST": host}).faults == []


@pytest.mark.parametrize("host", ["", "::", "10.0.0.1", "example.org", "0"])
def test_every_other_address_is_taken_for_an_exposed_one(host: str) -> None:
    assert [fault.path for fault in load(environ={"TREADLE_SERVER__HOST": host}).faults] == ["server.host"]


def test_the_size_of_a_context_window_can_be_set_and_has_its_bounds(tmp_path: Path) -> None:
    text = "models: {box: {url: 'http://127.0.0.1:1/v1', capabilities: {context_window: %s}}}"
    loaded = load(write(tmp_path, text % 2048), environ={})
    assert loaded.faults == []
    assert capabilities_of(loaded.settings.models["box"]).context_window == 2048
    path = "models.box.capabilities.context_window"
    assert "must be a whole number of at least 1, not `0`" in faults(tmp_path, text % 0)[path]
    loaded = load(
        environ={"TREADLE_MODELS__BOX__CAPABILITIES__CONTEXT_WINDOW": "4096"}
        | {"TREADLE_MODELS__BOX__URL": "http://127.0.0.1:1/v1"}
    )
    assert capabilities_of(loaded.settings.models["box"]).context_window == 4096


def test_capabilities_can_be_corrected_field_by_field() -> None:
    assert CapabilityOverrides.__struct_fields__ == Capabilities.__struct_fields__
    provider = Provider(vendor="openai", capabilities=CapabilityOverrides(images=False, context_window=1000))
    table = capabilities_of(Provider(vendor="openai"))
    corrected = capabilities_of(provider)
    assert (corrected.images, corrected.context_window) == (False, 1000)
    assert msgspec.structs.replace(corrected, images=table.images, context_window=table.context_window) == table


@pytest.mark.parametrize("name", ["TREADLE_SERVR__PORT", "TREADLE_MODEL__OPENAI__KEY", "TREADLE_STORES__URL"])
def test_a_variable_that_nearly_names_a_section_is_a_fault(name: str) -> None:
    (fault,) = load(environ={name: "x"}).faults
    assert "did you mean" in fault.message
    assert name in str(fault)


def test_a_variable_that_names_nothing_like_a_section_is_somebody_elses() -> None:
    loaded = load(environ={"TREADLE_PORT_8321_TCP__ADDR": "10.0.0.1", "TREADLE_KUBERNETES__X": "y"})
    assert (loaded.faults, len(loaded.unused)) == ([], 2)
