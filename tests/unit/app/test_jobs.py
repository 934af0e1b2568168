"""Who does the jobs: this process on SQLite, and on Postgres whoever has workers."""

from __future__ import annotations

from pathlib import Path

import pytest

from treadle.app import create_app, create_worker
from treadle.cli.main import main
from treadle.settings import Settings
from treadle.settings.background import Background


def test_a_server_on_sqlite_that_would_leave_its_jobs_to_nobody_does_not_begin(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"`background\.workers`: 0 .* needs Postgres"):
        create_app(Settings(data_dir=str(tmp_path), background=Background(workers=0)))


def test_there_are_no_workers_apart_on_sqlite(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="needs Postgres"):
        create_worker(Settings(data_dir=str(tmp_path)))
    (tmp_path / "treadle.yaml").write_text(f"data_dir: {tmp_path}\n")
    assert main(["worker", "--config", str(tmp_path / "treadle.yaml")]) == 1
    assert capsys.readouterr().err == "error: `store.url`: a worker apart from its server needs Postgres\n"


def test_a_worker_without_workers_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "treadle.yaml").write_text(f"data_dir: {tmp_path}\nbackground: {{workers: 0}}\n")
    assert main(["worker", "--config", str(tmp_path / "treadle.yaml")]) == 1
    said = capsys.readouterr().err
    assert "this worker would do nothing" in said
    assert "TREADLE_BACKGROUND__WORKERS=10" in said, "it says what to do"
