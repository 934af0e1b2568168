"""docs/configuration.md and docs/models.md document every setting and every vendor, and no others."""

import re
from pathlib import Path

from treadle.models.vendors import VENDORS
from treadle.settings.environment import variable_of
from treadle.settings.explain import documented, shown

DOCS = Path(__file__).parents[2] / "docs"


def rows(page: str) -> list[list[str]]:
    """The cells of all table rows whose first cell is code."""
    text = (DOCS / page).read_text(encoding="utf-8")
    found = re.findall(r"^\| `[^|]*\|.*$", text, flags=re.MULTILINE)
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1]] for row in found]


def code(cell: str) -> str:
    return cell.strip("`")


def test_every_setting_is_documented_and_nothing_else_is() -> None:
    written = [code(row[0]) for row in rows("configuration.md") if len(row) == 5]
    assert sorted(written) == sorted(doc.path for doc in documented())


def test_documented_variables_and_meanings_are_the_real_ones() -> None:
    real = {doc.path: doc for doc in documented()}
    for path, _, _, variable, meaning in (row for row in rows("configuration.md") if len(row) == 5):
        doc = real[code(path)]
        assert code(variable) == variable_of(doc.path.replace("<name>", "NAME")), path
        assert meaning == doc.meaning, path


def test_documented_defaults_are_the_real_ones() -> None:
    real = {doc.path: doc for doc in documented()}
    for path, _, default, _, _ in (row for row in rows("configuration.md") if len(row) == 5):
        value = real[code(path)].default
        if code(path) == "data_dir":
            continue  # differs by platform; described in words
        expected = "as in the vendor table" if value is None else shown(value() if callable(value) else value)
        assert code(default) == expected, path


def test_every_vendor_is_documented_with_its_variables() -> None:
    written = {code(row[0]): row for row in rows("models.md") if len(row) == 5}
    assert list(written) == [row.name for row in VENDORS]
    for row in VENDORS:
        _, title, url, key, notes = written[row.name]
        assert title == row.title
        assert code(url) == (row.url or "")
        assert re.findall(r"[A-Z_]{5,}", key) == [name for name in (row.key_variable, row.url_variable) if name]
        assert notes == row.notes.replace("|", "\\|")
