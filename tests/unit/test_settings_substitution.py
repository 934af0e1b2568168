"""`${env.…}` in the configuration file."""

from pathlib import Path

import pytest

from treadle.settings import load
from treadle.settings.substitution import substitute


@pytest.mark.parametrize(
    ("text", "environ", "expected"),
    [
        ("plain", {}, "plain"),
        ("${env.A}", {"A": "x"}, "x"),
        ("${env.A}", {"A": ""}, ""),
        ("a${env.A}b${env.B}c", {"A": "1", "B": "2"}, "a1b2c"),
        ("${env.A:=d}", {}, "d"),
        ("${env.A:=d}", {"A": ""}, "d"),
        ("${env.A:=d}", {"A": "x"}, "x"),
        ("${env.A:=}", {}, ""),
        ("${env.A:=http://h:1/v1}", {}, "http://h:1/v1"),
        ("${env.A:+v}", {}, ""),
        ("${env.A:+v}", {"A": ""}, ""),
        ("${env.A:+v}", {"A": "x"}, "v"),
        ("$${env.A}", {"A": "x"}, "${env.A}"),
        ("${env.A}", {"A": "${env.B}", "B": "no"}, "${env.B}"),
        ("costs $5 {}", {}, "costs $5 {}"),
    ],
)
def test_a_substitution_gives(text: str, environ: dict[str, str], expected: str) -> None:
    done = substitute(text, environ)
    assert done.text == expected
    assert done.faults == ()


@pytest.mark.parametrize("text", ["${HOME}", "${env.A:-x}", "${env.1A}", "${env.}", "${}", "${env.A"])
def test_what_is_not_understood_is_a_fault_that_shows_how_to_write_it(text: str) -> None:
    assert "${env.NAME:=default}" in substitute(text, {"A": "x"}).faults[0]


def test_an_unset_variable_names_the_setting_the_line_and_the_variable(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("server:\n  host: 127.0.0.1\nmodels:\n  mine: {url: 'http://h/v1', key: '${env.MY_KEY}'}\n")
    assert [str(fault) for fault in load(file, environ={}).faults] == [
        "models.mine.key: the environment variable MY_KEY is not set (file c.yaml:4)"
    ]


def test_a_scalar_that_is_one_substitution_takes_the_type_of_its_setting(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(
        "server: {port: '${env.PORT}', keep_alive_seconds: '${env.KA:=3}', allow_unauthenticated: '${env.OPEN:=true}',"
        " max_body_bytes: '${env.NONE:=}'}\n"
        "store: {url: '${env.DB:=}'}\nlocal: {enabled: '${env.LOCAL:+false}'}\n"
    )
    settings = load(file, environ={"PORT": "9000", "LOCAL": "1"}).require()
    assert settings.server.port == 9000
    assert settings.server.keep_alive_seconds == 3.0
    assert settings.server.allow_unauthenticated is True
    assert settings.server.max_body_bytes == 67108864
    assert settings.store.url == ""
    assert settings.local.enabled is False


def test_a_text_that_only_contains_a_substitution_does_not_become_a_number(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("server: {port: '8${env.REST}'}\n")
    assert [fault.path for fault in load(file, environ={"REST": "321"}).faults] == ["server.port"]


def test_substitution_reaches_lists_and_free_json(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(
        "models:\n  mine:\n    url: http://h/v1\n    models: ['${env.M}']\n"
        "    extra_body: {top_k: '${env.K}', note: 'k=${env.K}'}\n"
    )
    mine = load(file, environ={"M": "a", "K": "4"}).require().models["mine"]
    assert mine.models == ["a"]
    assert {name: bytes(value) for name, value in mine.extra_body.items()} == {"top_k": b"4", "note": b'"k=4"'}
