"""The page at `/docs`: whole in itself, and readable in a browser where there is one."""

from __future__ import annotations

import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest

from treadle.testing.server import RunningServer, settings_for

PAGE = Path(__file__).parents[3] / "src" / "treadle" / "http" / "docs.html"
BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
VOID = {"meta", "link", "input", "br", "img"}


class Outline(HTMLParser):
    """What a page loads, the ids it has, and whether its tags are balanced."""

    def __init__(self) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.ids: set[str] = set()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.loads += [value or "" for name, value in attrs if name in ("src", "href")]
        self.ids |= {value or "" for name, value in attrs if name == "id"}
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_needs_nothing_but_the_document() -> None:
    text = PAGE.read_text(encoding="utf-8")
    outline = Outline()
    outline.feed(text)
    assert outline.open == []
    assert set(outline.loads) == {"openapi.json", "data:,"}
    assert not re.search(r"https?://|//cdn|@import|innerHTML", text)
    assert set(re.findall(r'getElementById\("(\w+)"\)', text)) <= outline.ids
    assert len(text.splitlines()) < 400


def test_a_browser_shows_operations_and_schemas(tmp_path: Path) -> None:
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        pytest.skip("no Chromium on this machine")
    with RunningServer(settings_for(tmp_path, "http://127.0.0.1:1/v1")) as server:
        ran = subprocess.run(
            [
                browser,
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                f"--user-data-dir={tmp_path / 'browser'}",
                "--enable-logging=stderr",
                "--virtual-time-budget=10000",
                "--dump-dom",
                f"{server.root}/docs#ToolChoice",
            ],
            capture_output=True,
            text=True,
            timeout=50,
            check=True,
        )
    shown = ran.stdout
    assert "CONSOLE" not in ran.stderr, ran.stderr
    for path in ("/v1/responses", "/v1/conversations/{conversation_id}/items", "/v1/models/{model_id}"):
        assert f"<b>{path}</b>" in shown
    assert '<a href="#ResponseStreamEvent">' in shown
    # The schema that the address names is open, others are not.
    assert re.search(r'<details class="entry" id="ToolChoice"[^>]* open=""', shown)
    assert not re.search(r'<details class="entry" id="Tool"[^>]* open=""', shown)
