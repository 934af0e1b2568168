"""Templates are checked when the server starts, and filling one reads neither values nor attributes."""

from __future__ import annotations

from pathlib import Path

import pytest

from treadle.settings import InvalidSettings, load
from treadle.wire.templates import filled, template_fault


@pytest.mark.parametrize(
    ("template", "filled_in"),
    [
        ("{a}{b}{a}", "1{a}1"),
        ("{c} {} {0} {{a}} {a", "{c} {} {0} {1} {a"),
        ('{"a": 1}', '{"a": 1}'),
        ("{a.real} {a!r} {a:>9} {a[0]}", "{a.real} {a!r} {a:>9} {a[0]}"),
        ("%s $a ${a}", "%s $a $1"),
    ],
)
def test_values_are_put_in_as_they_are(template: str, filled_in: str) -> None:
    assert filled(template, {"a": "1", "b": "{a}"}) == filled_in


@pytest.mark.parametrize(
    "template", ["{b}", "{a.b}", "{a!r}", "{a:10}", "{a[0]}", "{ a }", "{a }", "{ä}", "{__class__}"]
)
def test_whatever_is_no_known_placeholder_is_named(template: str) -> None:
    fault = template_fault(f"x {template}", {"a"})
    assert fault is not None
    assert f"`{template}`" in fault


def test_braces_around_anything_else_are_braces() -> None:
    assert template_fault('{"a": 1} {} {0} {\n}', {"a"}) is None
    assert template_fault("x", {"a"}, {"a"}) == "must hold the placeholder `{a}`"


@pytest.mark.parametrize(
    ("line", "path"),
    [
        ("context_template: '{txt}'", "context_template"),
        ("context_template: '{index}'", "context_template"),
        ("context_template: '{text} {query}'", "context_template"),
        ("header_template: '{text}'", "header_template"),
        ("footer_template: '{query.__class__}'", "footer_template"),
        ("annotation_template: '{filename}'", "annotation_template"),
        ("annotation_template: '<|{file_id}|>'", "annotation_template"),
        ("context_template: '{text}'", "annotation_template"),
        ("{context_template: '{text}', annotation_template: 'Cite.'}", "annotation_template"),
    ],
)
def test_the_server_does_not_start_with_templates_that_cannot_work(tmp_path: Path, line: str, path: str) -> None:
    file = tmp_path / "treadle.yaml"
    file.write_text(f"file_search: {line if line[0] == '{' else '{' + line + '}'}\n")
    with pytest.raises(InvalidSettings) as caught:
        load(file, environ={}).require()
    (fault,) = caught.value.faults
    assert fault.path == f"file_search.{path}"


@pytest.mark.parametrize(
    "line",
    [
        "{}",
        "{context_template: '{text}', annotation_template: ''}",
        "{context_template: '{file_id} {text}', annotation_template: 'Cite as <|{file_id}|>.'}",
        "{context_template: '{index} {text}', annotation_template: 'Write the number in 【】.'}",
        "{header_template: '{num_chunks} for {query}', footer_template: 'End of {num_chunks}.'}",
    ],
)
def test_templates_that_work_are_accepted(tmp_path: Path, line: str) -> None:
    file = tmp_path / "treadle.yaml"
    file.write_text(f"file_search: {line}\n")
    load(file, environ={}).require()
