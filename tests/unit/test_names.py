"""Names and docstrings: the module is the adjective, the class the noun, and each module says what it owns."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "treadle"
BANNED = {"Impl", "Manager", "Helper", "Helpers", "Util", "Utils", "Handler", "Base", "Mixin", "Factory"}
VENDORS = {"OpenAI", "Anthropic", "Gemini", "Ollama"}  # on wire types only: the protocol is nobody's


def words(name: str) -> set[str]:
    return set(re.findall(r"[A-Z]+(?![a-z])|[A-Z][a-z0-9]*|[a-z0-9]+", name))


def faults(root: Path) -> list[str]:
    found = []
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root).as_posix()
        tree = ast.parse(path.read_bytes())
        if tree.body and not ast.get_docstring(tree):
            found.append(f"{name}: the module does not say what it owns")
        for node in ast.walk(tree):
            if not isinstance(node, ast.ClassDef):
                continue
            banned = words(node.name) & BANNED
            found.extend(f"{name}: class {node.name}: `{word}` says nothing" for word in sorted(banned))
            if name.startswith("wire/") and any(vendor in node.name for vendor in VENDORS):
                found.append(f"{name}: class {node.name}: wire types carry no vendor's name")
    return found


def test_class_names_are_plain_nouns_and_modules_have_docstrings() -> None:
    assert faults(SOURCE) == []


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("a.py", "x = 1"),
        ("a.py", '"""Owns a."""\nclass ItemManager: ...'),
        ("a.py", '"""Owns a."""\nclass BaseStore: ...'),
        ("wire/a.py", '"""Owns a."""\nclass OpenAIMessage: ...'),
    ],
)
def test_a_bad_name_or_a_missing_docstring_is_found(tmp_path: Path, path: str, text: str) -> None:
    (tmp_path / path).parent.mkdir(exist_ok=True)
    (tmp_path / path).write_text(text)
    assert len(faults(tmp_path)) == 1


def test_words_that_merely_contain_a_banned_one_are_fine(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text('"""Owns a."""\nclass Database: ...\nclass KnowledgeBaseless: ...')
    assert faults(tmp_path) == []
