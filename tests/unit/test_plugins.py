"""Which plug-ins may run, what their sections may hold, and what is said of those that cannot be used."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.plugin_kit import TOOL, installed
from treadle.app.plugins import OpenPlugins, hosts_in
from treadle.cli.main import main
from treadle.errors import InvalidRequest
from treadle.plugins import SEARCH, survey
from treadle.settings import Knowledge, Loaded, Settings, load
from treadle.settings.explain import explain
from treadle.settings.files import Files
from treadle.settings.plugins import SEARCHES

Install = Callable[..., Path]
ONE = {"treadle.tools": {"greeter": "acme_tools:Greeter"}}


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    def install(
        source: str = TOOL.format(cls="Greeter"), entry_points: Mapping[str, Mapping[str, str]] = ONE, **more: str
    ) -> Path:
        return installed(tmp_path, monkeypatch, source, entry_points, **more)

    return install


def loaded(allowed: list[str] | None = None, environ: Mapping[str, str] | None = None, **sections: Any) -> Loaded:
    section = sections | ({} if allowed is None else {"allowed": allowed})
    return load(environ=environ or {}, overrides={"plugins": section})


def faults(*allowed: str, **sections: Any) -> list[str]:
    return [str(fault) for fault in loaded(list(allowed), **sections).faults]


def standing(name: str, *allowed: str) -> tuple[str, str]:
    (found,) = [one for one in survey(allowed) if one.offer.name == name and not one.offer.built_in]
    return found.state, found.why


def test_our_own_search_services_are_plug_ins() -> None:
    ours = {one.offer.name: one for one in survey([]) if one.offer.built_in}
    assert {name for name, one in ours.items() if one.offer.group == SEARCH} == set(SEARCHES)
    assert {one.state for one in ours.values()} == {"built in"}
    assert {one.offer.distribution for one in ours.values()} == {"treadle"}


def test_what_is_installed_but_not_named_is_not_even_imported(install: Install) -> None:
    install("raise SystemExit('imported')")
    assert standing("greeter") == ("not allowed", "`plugins.allowed` does not name it")
    assert loaded().require().plugins.configs == {}
    assert "acme_tools" not in sys.modules


def test_a_named_plug_in_gets_its_section_checked_with_its_own_class(install: Install) -> None:
    install()
    settings = loaded(["greeter"], greeter={"greeting": "hi"}).require()
    assert settings.plugins.configs["greeter"].greeting == "hi"  # type: ignore[attr-defined]
    assert loaded(["greeter"]).require().plugins.configs["greeter"].greeting == "hello"  # type: ignore[attr-defined]
    assert standing("greeter", "greeter") == ("allowed", "")


def test_mistakes_in_a_section_have_the_whole_path_and_the_line(install: Install, tmp_path: Path) -> None:
    install(
        "import msgspec\nfrom typing import Annotated\n"
        + TOOL.format(cls="Greeter").replace(
            'greeting: str = "hello"',
            'key: str\n        times: Annotated[int, msgspec.Meta(ge=1)] = 1\n        greeting: str = "hello"',
        )
    )
    file = tmp_path / "t.yaml"
    file.write_text("plugins:\n  allowed: [greeter]\n  greeter:\n    greting: hi\n    times: 0\n")
    assert sorted(map(str, load(file, environ={}).faults)) == [
        "plugins.greeter.greting: is not a known setting; did you mean `greeting`? (file t.yaml:4)",
        "plugins.greeter.key: is needed (file t.yaml:4)",
        "plugins.greeter.times: must be a whole number of at least 1, not `0` (file t.yaml:5)",
    ]


def test_what_an_authors_own_check_raises_is_a_mistake_of_the_section(install: Install) -> None:
    check = """

        def __post_init__(self):
            if self.greeting == "no":
                raise ValueError("be\\n polite")
"""
    install(TOOL.format(cls="Greeter").replace('greeting: str = "hello"', 'greeting: str = "hello"' + check))
    assert faults("greeter", greeter={"greeting": "no"}) == [
        "plugins.greeter: is refused: ValueError: be polite (argument)"
    ]


def test_variables_set_plug_ins_settings_whatever_their_names_look_like(install: Install) -> None:
    install(entry_points={"treadle.tools": {"My-Greeter": "acme_tools:Greeter"}})
    environ = {"TREADLE_PLUGINS__ALLOWED": "My-Greeter", "TREADLE_PLUGINS__MY_GREETER__GREETING": "hi"}
    found = load(environ=environ)
    assert found.require().plugins.configs["My-Greeter"].greeting == "hi"  # type: ignore[attr-defined]
    lines = {line.path: line for line in explain(found)}
    assert str(lines["plugins.My-Greeter.greeting"].origin) == "environment TREADLE_PLUGINS__MY_GREETER__GREETING"


def test_explain_shows_settings_and_hides_what_looks_like_a_secret(install: Install) -> None:
    fields = """
        greeting: Annotated[str, msgspec.Meta(description="What to say.")] = "hello"
        api_key: str = ""
        pin: Secret = ""
"""
    source = TOOL.format(cls="Greeter").replace('greeting: str = "hello"', fields)
    install("from typing import Annotated\nfrom treadle.plugins import Secret\n" + source)
    found = loaded(["greeter"], greeter={"api_key": "s3cret", "pin": "s3cret", "greeting": "hi"})
    lines = {line.path: (line.value, line.meaning) for line in explain(found) if line.path.startswith("plugins.")}
    assert lines == {
        "plugins.allowed": (
            '["greeter"]',
            "Plug-ins that may run, by name. No other is ever loaded, whatever is installed.",
        ),
        "plugins.greeter.greeting": ('"hi"', "What to say."),
        "plugins.greeter.api_key": ("***", ""),
        "plugins.greeter.pin": ("***", ""),
    }


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("import nowhere_at_all", "cannot be imported: ModuleNotFoundError: No module named 'nowhere_at_all'"),
        ("raise SystemExit(3)", "cannot be imported: SystemExit: 3"),
        ("x = 1", "cannot be imported: AttributeError"),
        ("Greeter = 7", "is not a class"),
        ("class Greeter: pass", "has no `Config` that is a msgspec Struct"),
        (
            "import msgspec\nclass Greeter:\n    class Config(msgspec.Struct): pass\n    def open(c, s): pass",
            "has no `async open(config, services)`",
        ),
    ],
)
def test_a_broken_plug_in_is_one_line_with_its_entry_point_and_its_distribution(
    install: Install, source: str, says: str
) -> None:
    install(source)
    (fault,) = faults("greeter")
    head = "plugins.greeter: The plug-in `greeter = acme_tools:Greeter` (treadle.tools) of acme-tools 1.2.0 "
    assert fault.startswith(head + says)
    assert "\n" not in fault


@pytest.mark.parametrize("kind", ["mcp", "function", "file_search", "web_search_preview", "namespace"])
def test_a_plug_in_cannot_take_the_type_of_a_built_in_tool(install: Install, kind: str) -> None:
    install(entry_points={"treadle.tools": {kind: "acme_tools:Greeter"}})
    (fault,) = faults(kind)
    assert fault.startswith("plugins.allowed: the plug-in `")
    assert fault.endswith(f" of acme-tools 1.2.0 is refused: `{kind}` is the type of a built-in tool (argument)")


def test_a_plug_in_cannot_take_the_name_of_what_comes_with_treadle(install: Install) -> None:
    install(entry_points={"treadle.search": {"brave": "acme_tools:Greeter"}})
    assert standing("brave") == ("refused", "`brave` is the name of a plug-in that comes with Treadle")
    assert faults("brave") == []  # ours is meant, and theirs is not loaded
    assert "acme_tools" not in sys.modules


def test_nobody_runs_if_two_packages_offer_one_name(install: Install) -> None:
    install()
    install(name="other-tools", module="other_tools", entry_points={"treadle.search": {"greeter": "other_tools:G"}})
    (fault,) = faults("greeter")
    assert "acme-tools 1.2.0" in fault
    assert "other-tools 1.2.0" in fault
    assert {one.state for one in survey([]) if one.offer.name == "greeter"} == {"not allowed"}


def test_a_name_that_nobody_offers_and_a_section_that_nobody_reads_are_mistakes(install: Install) -> None:
    install()
    assert faults("greter") == [
        "plugins.allowed: no installed package offers `greter`; did you mean `greeter`? (argument)"
    ]
    assert faults(greeter={"greeting": "hi"}) == [
        "plugins.greeter: is not among the plug-ins that `plugins.allowed` names, so it does not run (argument)"
    ]
    assert faults(alowed=["greeter"]) == [
        "plugins.alowed: is not among the plug-ins that `plugins.allowed` names; did you mean `allowed`? (argument)"
    ]
    assert faults("brave", brave={"key": "k"}) == [
        "plugins.brave: comes with Treadle and is configured elsewhere, a search service under `web_search` (argument)"
    ]


@pytest.mark.parametrize("name", ["a.b", "allowed", "a b", "7up"])
def test_names_that_could_not_be_configured_are_refused(install: Install, name: str) -> None:
    install(entry_points={"treadle.tools": {name: "acme_tools:Greeter"}})
    assert standing(name, name)[0] == "refused"


def test_a_search_service_is_one_of_ours_or_a_plug_in_that_may_run(install: Install) -> None:
    install(entry_points={"treadle.search": {"finder": "acme_tools:Greeter"}, **ONE})

    def kind(name: str, *allowed: str, **more: str) -> list[str]:
        overrides = {"plugins": {"allowed": list(allowed)}, "web_search": {"kind": name, **more}}
        return [fault.path for fault in load(environ={}, overrides=overrides).faults]

    assert kind("finder", "finder") == []
    assert kind("finder") == ["web_search.kind"]
    assert kind("greeter", "greeter") == ["web_search.kind"]
    assert kind("finder", "finder", key="k") == ["web_search.kind"]


CHOICES = {
    "treadle.vector": ("knowledge.index", "index_url"),
    "treadle.extract": ("knowledge.extractor", ""),
    "treadle.blobs": ("files.blobs", "url"),
}


@pytest.mark.parametrize("group", CHOICES)
def test_parts_under_vector_stores_and_files_are_ours_or_plug_ins_that_may_run(install: Install, group: str) -> None:
    path, beside = CHOICES[group]
    install(entry_points={group: {"shelf": "acme_tools:Greeter"}, **ONE})
    section, _, setting = path.partition(".")

    def chosen(name: str, *allowed: str, **more: str) -> list[str]:
        overrides = {"plugins": {"allowed": list(allowed)}, section: {setting: name, **more}}
        return [str(fault) for fault in load(environ={}, overrides=overrides).faults]

    assert chosen("shelf", "shelf") == []
    ours = "one of `sqlite`, `pgvector`, `qdrant`" if group == "treadle.vector" else "empty"
    assert chosen("shelf") == [f"{path}: must be {ours}, not `shelf`; plug-ins: see `plugins.allowed` (argument)"]
    (fault,) = chosen("greeter", "greeter")
    assert fault.startswith(f"{path}: must be ")
    if beside:
        (fault,) = chosen("shelf", "shelf", **{beside: "s3://here"})
        assert fault == (
            f"{path}: the plug-in `shelf` has its address and key in its own section, `plugins.shelf` (argument)"
        )


def test_a_plug_in_cannot_take_the_name_of_our_indexes(install: Install) -> None:
    install(entry_points={"treadle.vector": {"qdrant": "acme_tools:Greeter"}})
    assert standing("qdrant", "qdrant") == ("refused", "`qdrant` is an index that comes with Treadle")


def test_what_a_setting_names_and_is_not_there_is_told_at_the_start() -> None:
    for section, path in (
        ({"knowledge": Knowledge(index="shelf")}, "knowledge.index"),
        ({"knowledge": Knowledge(extractor="shelf")}, "knowledge.extractor"),
        ({"files": Files(blobs="shelf")}, "files.blobs"),
    ):
        with pytest.raises(InvalidRequest, match=rf"`{path}`: there is no plug-in `shelf`\.$"):
            OpenPlugins(Settings(**section)).wanted()  # type: ignore[arg-type]


def test_models_of_a_plug_in_cannot_hide_those_of_a_provider(install: Install) -> None:
    install(entry_points={"treadle.models": {"box": "acme_tools:Greeter"}})
    overrides = {"plugins": {"allowed": ["box"]}, "models": {"box": {"url": "http://127.0.0.1:1/v1"}}}
    (fault,) = load(environ={}, overrides=overrides).faults
    assert fault.message.endswith("has the name of another provider of models")


def test_addresses_of_a_section_are_found_wherever_they_stand() -> None:
    section = {
        "url": "https://a.example/x",
        "more": [{"b": "http://[::1]:8080"}, "no http://c", 7],
        "bad": "http://h:x",
    }
    assert list(hosts_in(section)) == ["a.example:443", "[::1]:8080"]


def test_the_command_lists_what_is_installed_and_fails_for_what_cannot_be_used(
    install: Install, tmp_path: Path
) -> None:
    sites = [
        install(),
        install("import gone", {"treadle.tools": {"broken": "bad_tools:X"}}, name="bad-tools", module="bad_tools"),
        install(
            "", {"treadle.tools": {"mcp": "mc:X"}, "treadle.search": {"idle": "mc:Y"}}, name="Mc.Tools", module="mc"
        ),
    ]
    (tmp_path / "treadle.yaml").write_text(f"data_dir: {tmp_path}\nplugins: {{allowed: [greeter, broken]}}\n")
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([*map(str, sites), *sys.path]), "TREADLE_CONFIG": ""}
    command = [sys.executable, "-m", "treadle", "plugins"]
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=30)
    lines = [re.split(r" {2,}", line) for line in done.stdout.splitlines()]
    assert [line[:4] for line in lines if not line[2].startswith("treadle")] == [
        ["treadle.search", "idle", "mc-tools 1.2.0", "not allowed"],
        ["treadle.tools", "broken", "bad-tools 1.2.0", "broken"],
        ["treadle.tools", "greeter", "acme-tools 1.2.0", "allowed"],
        ["treadle.tools", "mcp", "mc-tools 1.2.0", "refused"],
    ]
    why = {line[1]: line[4] for line in lines if len(line) > 4}
    assert why["broken"].startswith("The plug-in `broken = bad_tools:X` (treadle.tools) of bad-tools 1.2.0 cannot be")
    assert why["mcp"] == "`mcp` is the type of a built-in tool"
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith(
        "error: plugins.broken: The plug-in `broken = bad_tools:X` (treadle.tools) of bad-tools"
    )


def test_the_command_is_content_with_what_can_be_used(
    install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    install()
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith(("TREADLE_", "OTEL_"))]:
        monkeypatch.delenv(name)
    assert main(["plugins"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    assert "greeter" in captured.out
