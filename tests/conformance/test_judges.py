"""The judges outside Python: that their launcher works, and that what the docs say was run is what is pinned."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ASK = """
import json, os, sys, urllib.request
body = json.dumps({"model": os.environ["TREADLE_MODEL"], "input": sys.argv[1]}).encode()
headers = {"content-type": "application/json"}
request = urllib.request.Request(os.environ["TREADLE_URL"] + "/v1/responses", body, headers)
with urllib.request.urlopen(request, timeout=20) as reply:
    print(json.load(reply)["output"][0]["content"][0]["text"])
"""


def _judge(*command: str) -> subprocess.CompletedProcess[str]:
    launcher = str(ROOT / "conformance" / "with_server.py")
    return subprocess.run(
        [sys.executable, launcher, *command], capture_output=True, text=True, timeout=50, check=False, cwd=ROOT
    )


def test_the_launcher_puts_a_server_with_a_scripted_model_behind_a_judge() -> None:
    done = _judge(sys.executable, "-c", ASK, "Reply with exactly: ahoy")
    assert (done.returncode, done.stdout.strip()) == (0, "ahoy"), done.stderr


def test_the_launcher_passes_on_a_judge_that_fails() -> None:
    assert _judge(sys.executable, "-c", "raise SystemExit(3)").returncode == 3


@pytest.mark.parametrize("package", sorted((ROOT / "conformance").glob("*/package.json")), ids=lambda p: p.parent.name)
def test_the_documented_versions_are_the_pinned_ones(package: Path) -> None:
    page = (ROOT / "docs" / "compatibility.md").read_text(encoding="utf-8")
    for name, version in json.loads(package.read_text(encoding="utf-8"))["dependencies"].items():
        assert re.fullmatch(r"\d+\.\d+\.\d+", version), f"{name} is not pinned"
        if name in ("zod", "bun"):
            continue  # tools of the judges, not clients
        label = "`openai` for Node" if name == "openai" else f"`{name}`"
        rows = [line for line in page.splitlines() if line.startswith("|") and label in line.split("|")[1]]
        assert [row.split("|")[2].strip() for row in rows] == [version], name
