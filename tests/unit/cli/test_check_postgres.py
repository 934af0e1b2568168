"""`treadle check` and `treadle serve` with the store in Postgres: tried, and what is wrong said in a line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.postgres_kit import Cluster
from treadle.cli.main import main
from treadle.store.db import HEAD

pytest.importorskip("psycopg", reason="the extra `postgres` is not installed")


def lines(url: str) -> str:
    return f"store: {{url: '{url}'}}\nsecret_key: k\n"


def test_check_tries_the_database(bare: Path, capsys: pytest.CaptureFixture[str], postgres_url: str) -> None:
    (bare / "c.yaml").write_text(lines(postgres_url))
    code = main(["check", "--config", str(bare / "c.yaml")])
    said = capsys.readouterr()
    assert (code, said.err) == (0, "")
    (line,) = (line for line in said.out.splitlines() if line.startswith("ok     store: Postgres at "))
    assert line.endswith(f"can be used; its schema is at revision {HEAD}")


def test_check_says_what_is_wrong(bare: Path, capsys: pytest.CaptureFixture[str], cluster: Cluster) -> None:
    url = cluster.url("nowhere").replace("postgres:@", "me:hush@")
    cluster.run("CREATE ROLE me LOGIN")
    try:
        (bare / "c.yaml").write_text(lines(url))
        assert main(["check", "--config", str(bare / "c.yaml")]) == 1
    finally:
        cluster.run("DROP ROLE me")
    said = capsys.readouterr().err
    assert said.startswith("error: store.url: Postgres at ")
    assert 'database "nowhere" does not exist (file c.yaml:1)' in said
    assert said.count("\n") == 1
    assert "hush" not in said


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("postgresql://me:hush@127.0.0.1:1/x", "Postgres at 127.0.0.1:1/x cannot be used: Connection refused"),
        ("postgresql://me:hu%sh@127.0.0.1/x", "not an address that Postgres knows"),
    ],
)
def test_serve_ends_with_1_and_the_reason(bare: Path, url: str, reason: str) -> None:
    (bare / "c.yaml").write_text(lines(url))
    command = [sys.executable, "-m", "treadle", "serve", "--config", str(bare / "c.yaml"), "--port", "0"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert reason in ended.stderr
    assert "hu" not in ended.stderr.replace(reason, "")
