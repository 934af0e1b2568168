"""The example of docs/files.md runs as it is written; its configuration is one that the server takes."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from treadle.app.files import FileStorage
from treadle.backends.blobs_s3 import S3Blobs
from treadle.errors import InvalidRequest
from treadle.ports import Blobs
from treadle.settings import load
from treadle.store.connect import connect
from treadle.testing.server import RunningServer, settings_for
from treadle.testing.upstream import Reply, ScriptedUpstream

pytest.importorskip("openai", reason="the openai client comes with the test extra")

PAGE = (Path(__file__).parents[2] / "docs" / "files.md").read_text(encoding="utf-8")


def block(language: str) -> str:
    found = re.search(rf"^```{language}\n(.*?)^```$", PAGE, flags=re.DOTALL | re.MULTILINE)
    assert found is not None
    return found[1]


def test_the_example_runs_as_written(tmp_path: Path) -> None:
    (tmp_path / "report.pdf").write_bytes(b"A report that is really text.")
    with ScriptedUpstream() as model:
        model.script(Reply(text="It says that all is well."))
        with RunningServer(settings_for(tmp_path, model.url)) as server:
            code = block("python").replace("http://127.0.0.1:8321/v1", server.url)
            code = code.replace("ollama/qwen3:8b", "scripted/scripted")
            ran = subprocess.run(
                [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=50, check=False
            )
        assert ran.returncode == 0, ran.stderr
        assert ran.stdout == "report.pdf 29\nIt says that all is well.\n"
        content = model.requests[0].body["messages"][0]["content"]
        assert "[File: report.pdf]\nA report that is really text.\n[End of file: report.pdf]" in content
    assert (tmp_path / "copy.pdf").read_bytes() == b"A report that is really text."


def _unplugged() -> Blobs:
    raise AssertionError("no plug-in is asked for")


def storage(folder: Path, lines: str) -> FileStorage:
    file = folder / "treadle.yaml"
    file.write_text(f"data_dir: {folder}\n{lines}")
    settings = load(file, environ={"S3_SECRET": "hidden"}).require()
    return FileStorage(settings, connect(str(folder / "treadle.sqlite3")), _unplugged)


async def test_the_configuration_is_taken(tmp_path: Path) -> None:
    pytest.importorskip("aiobotocore", reason="aiobotocore comes with the s3 extra")
    found = storage(tmp_path, block("yaml"))
    assert isinstance(found.blobs, S3Blobs)
    assert found.blobs._place.bucket == "my-bucket"
    assert found.blobs._place.prefix == "treadle/"
    assert found.blobs._place.secret == "hidden"
    assert "hidden" not in repr(found.blobs)
    await found.blobs.close()


@pytest.mark.parametrize("url", ["s3://", "s3:///prefix", "https://bucket", "bucket", "s3://bucket?x=1"])
def test_an_address_that_is_none_is_refused_at_the_start(tmp_path: Path, url: str) -> None:
    with pytest.raises(InvalidRequest, match=r"files\.url"):
        storage(tmp_path, f"files: {{url: '{url}'}}")
