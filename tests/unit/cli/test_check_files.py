"""`treadle check` of an object store for files."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from treadle.app.trial import Trial, try_app
from treadle.settings import load

pytest.importorskip("aiobotocore", reason="aiobotocore comes with the s3 extra")
moto = pytest.importorskip("moto.moto_server.threaded_moto_server", reason="moto comes with the test extra")


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


async def tried(folder: Path, files: str) -> list[Trial]:
    file = folder / "treadle.yaml"
    file.write_text(f"data_dir: {folder}\nlocal: {{enabled: false}}\nfiles: {files}\n")
    return [one for one in await try_app(load(file, environ={}).require()) if one.path.startswith("files")]


async def test_a_bucket_that_is_there_answers(tmp_path: Path, endpoint: str) -> None:
    import boto3

    given = {"region_name": "us-east-1", "aws_access_key_id": "key", "aws_secret_access_key": "secret"}
    boto3.client("s3", endpoint_url=endpoint, **given).create_bucket(Bucket="here")
    keys = f"endpoint: '{endpoint}', region: us-east-1, key_id: key, key: secret"
    assert await tried(tmp_path, f"{{url: 's3://here/files', {keys}}}") == [
        Trial("files.url", "s3://here/files answers")
    ]
    [found] = await tried(tmp_path, f"{{url: 's3://nowhere', {keys}}}")
    assert found.wrong
    assert "NoSuchBucket" in found.text


async def test_an_address_that_is_none_is_told_once(tmp_path: Path) -> None:
    [found] = await tried(tmp_path, "{url: 'ftp://x'}")
    assert found == Trial("files.url", "expected s3://bucket or s3://bucket/prefix", wrong=True)


async def test_without_an_object_store_nothing_is_said(tmp_path: Path) -> None:
    assert await tried(tmp_path, "{max_bytes: 1000}") == []
