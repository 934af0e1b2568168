"""Blobs in an object store, against a server of somebody else's that speaks S3."""

from __future__ import annotations

import logging
import uuid
from collections.abc import AsyncIterator, Iterator

import pytest

from treadle.backends.blobs_s3 import S3Blobs, S3Place
from treadle.errors import NotFound, StorageFault
from treadle.testing.conformance import BlobSuite
from treadle.testing.conformance_blobs import keys, later, pieces, whole

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


@pytest.fixture
def place(endpoint: str) -> S3Place:
    import boto3

    bucket = f"treadle-{uuid.uuid4().hex[:12]}"
    place = S3Place(
        bucket=bucket, prefix="files/", endpoint=endpoint, region="us-east-1", key_id="key", secret="hidden-secret"
    )
    client = boto3.client(
        "s3", endpoint_url=endpoint, region_name="us-east-1", aws_access_key_id="key", aws_secret_access_key="s"
    )
    client.create_bucket(Bucket=bucket)
    client.put_object(Bucket=bucket, Key="somebody-elses", Body=b"x")
    client.put_object(Bucket=bucket, Key="files/folder/of-somebody", Body=b"x")
    return place


@pytest.fixture
async def blobs(place: S3Place) -> AsyncIterator[S3Blobs]:
    blobs = S3Blobs(place)
    yield blobs
    await blobs.close()


class TestS3Blobs(BlobSuite):
    @pytest.fixture
    def blobs(self, blobs: S3Blobs) -> S3Blobs:
        return blobs


async def test_it_stays_below_its_prefix(blobs: S3Blobs, place: S3Place) -> None:
    await blobs.put("file-1", pieces(b"x"))
    assert await keys(blobs, later()) == {"file-1"}
    elsewhere = S3Blobs(S3Place(**{name: getattr(place, name) for name in place.__struct_fields__} | {"prefix": "b/"}))
    with pytest.raises(NotFound):
        await whole(elsewhere, "file-1")
    await elsewhere.close()


async def test_uploads_that_nobody_goes_on_with_are_ended(blobs: S3Blobs, place: S3Place) -> None:
    client = await blobs._opened()
    await client.create_multipart_upload(Bucket=place.bucket, Key="files/file-half")
    assert "Uploads" in await client.list_multipart_uploads(Bucket=place.bucket)
    assert await keys(blobs, 0) == set()
    assert "Uploads" in await client.list_multipart_uploads(Bucket=place.bucket), "it may still be going on"
    await keys(blobs, later())
    assert "Uploads" not in await client.list_multipart_uploads(Bucket=place.bucket)


async def test_a_refusal_is_a_fault_of_storage_without_secrets(place: S3Place) -> None:
    fields = {name: getattr(place, name) for name in place.__struct_fields__}
    blobs = S3Blobs(S3Place(**fields | {"bucket": "there-is-no-such-bucket"}))
    with pytest.raises(StorageFault, match="NoSuchBucket") as caught:
        await blobs.put("file-1", pieces(b"x"))
    assert "hidden-secret" not in str(caught.value)
    await blobs.close()


async def test_a_store_that_is_away_is_a_fault_of_storage() -> None:
    blobs = S3Blobs(
        S3Place(bucket="b", endpoint="http://127.0.0.1:9", region="us-east-1", key_id="key", secret="hidden-secret")
    )
    with pytest.raises(StorageFault, match="could not be used"):
        await whole(blobs, "file-1")
    await blobs.close()
