"""Blobs as objects of an S3-compatible store (extra `s3`).

What fits into one part goes up in one request. Larger ones go up in parts, which become an object at once and only when
all are there.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Awaitable
from contextlib import AsyncExitStack
from typing import Any, TypeVar

import aiohttp
import msgspec

from treadle import ports
from treadle.errors import NotFound, StorageFault

log = logging.getLogger("treadle.blobs")

T = TypeVar("T")

PART = 8_388_608
"""Bytes of a part. S3 takes at most 10,000 of them, and none but the last below 5 MiB."""
READ = 262_144
_LISTED = 1000

_KEY = re.compile(r"[A-Za-z0-9_-]{1,128}\Z")
_ABSENT = frozenset({"NoSuchKey", "404", "NotFound"})


class S3Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where the objects are, and how to get there. Empty: as the machine's own AWS settings say."""

    bucket: str
    prefix: str = ""
    endpoint: str = ""
    region: str = ""
    key_id: str = ""
    secret: str = ""


class S3Blobs(ports.Blobs):
    """The `Blobs` port over a bucket, which must be there. Close it when the app stops."""

    def __init__(self, place: S3Place) -> None:
        self._place = place
        self._stack = AsyncExitStack()
        self._opening = asyncio.Lock()
        self._client: Any = None  # the SDK makes its classes at run time; every use of one is in this file

    async def close(self) -> None:
        self._client = None
        await self._stack.aclose()

    async def put(self, key: str, parts: AsyncIterator[bytes]) -> int:
        name = self._name(key)
        upload = _Upload(await self._opened(), self._place.bucket, name)
        waiting = bytearray()
        try:
            async for part in parts:
                waiting += part
                while len(waiting) > PART:
                    await upload.add(bytes(memoryview(waiting)[:PART]))
                    del waiting[:PART]
            return await upload.finish(bytes(waiting))
        except BaseException:
            await upload.discard()
            raise

    async def read(self, key: str, start: int = 0, end: int | None = None) -> AsyncIterator[bytes]:
        if end is not None and end <= start:
            return
        client, wanted = await self._opened(), {"Bucket": self._place.bucket, "Key": self._name(key)}
        if start or end is not None:
            wanted["Range"] = f"bytes={start}-{'' if end is None else end - 1}"
        try:
            answer = await _asked(client.get_object(**wanted))
        except _NothingThere:
            return
        async with answer["Body"] as body:
            while piece := await _asked(body.read(READ)):
                yield piece

    async def delete(self, key: str) -> None:
        client = await self._opened()
        await _asked(client.delete_object(Bucket=self._place.bucket, Key=self._name(key)))

    async def stored(self, before: float) -> AsyncIterator[list[str]]:
        client = await self._opened()
        await self._abort(client, before)
        given = {"Bucket": self._place.bucket, "Prefix": self._place.prefix, "MaxKeys": _LISTED}
        while True:
            page = await _asked(client.list_objects_v2(**given))
            names = [entry["Key"] for entry in page.get("Contents", ()) if entry["LastModified"].timestamp() < before]
            # Others may use the bucket too.
            keys = [name[len(self._place.prefix) :] for name in names]
            yield [key for key in keys if _KEY.match(key)]
            if not page.get("IsTruncated"):
                return
            given["ContinuationToken"] = page["NextContinuationToken"]

    async def _abort(self, client: Any, before: float) -> None:
        """Ends uploads that nobody goes on with. Many a store that speaks S3 cannot list them; then they are its own
        to clear up."""
        bucket = self._place.bucket
        try:
            page = await _asked(client.list_multipart_uploads(Bucket=bucket, Prefix=self._place.prefix))
        except StorageFault as fault:
            log.info("unfinished uploads cannot be listed: %s", fault.message)
            return
        for upload in page.get("Uploads", ()):
            if upload["Initiated"].timestamp() < before:
                await _asked(
                    client.abort_multipart_upload(Bucket=bucket, Key=upload["Key"], UploadId=upload["UploadId"])
                )

    async def _opened(self) -> Any:
        async with self._opening:
            if self._client is None:
                given = self._place
                # The SDK reads megabytes of descriptions of the service.
                session, config = await asyncio.to_thread(_session, path_style=bool(given.endpoint))
                client = session.create_client(
                    "s3",
                    endpoint_url=given.endpoint or None,
                    region_name=given.region or None,
                    aws_access_key_id=given.key_id or None,
                    aws_secret_access_key=given.secret or None,
                    config=config,
                )
                self._client = await _asked(self._stack.enter_async_context(client))
        return self._client

    def _name(self, key: str) -> str:
        if not _KEY.match(key):
            raise ValueError(f"{key!r} is no key of a blob")
        return self._place.prefix + key


class _Upload:
    """A blob in the making."""

    def __init__(self, client: Any, bucket: str, name: str) -> None:
        self._client = client
        self._where = {"Bucket": bucket, "Key": name}
        self._id = ""
        self._parts: list[dict[str, object]] = []
        self._size = 0
        self._finishing = False

    async def add(self, data: bytes) -> None:
        if not self._id:
            self._id = (await _asked(self._client.create_multipart_upload(**self._where)))["UploadId"]
        number = len(self._parts) + 1
        answer = await _asked(self._client.upload_part(**self._where, UploadId=self._id, PartNumber=number, Body=data))
        self._parts.append({"PartNumber": number, "ETag": answer["ETag"]})
        self._size += len(data)

    async def finish(self, rest: bytes) -> int:
        """Sends the last part, and gives the size of all once the store has acknowledged the object."""
        if not self._id:
            self._finishing = True
            await _asked(self._client.put_object(**self._where, Body=rest))
            return len(rest)
        await self.add(rest)
        self._finishing = True
        await _asked(
            self._client.complete_multipart_upload(
                **self._where, UploadId=self._id, MultipartUpload={"Parts": self._parts}
            )
        )
        return self._size

    async def discard(self) -> None:
        """What cannot be removed now is removed by whoever looks for what nobody owns."""
        try:
            if self._id:
                await _asked(self._client.abort_multipart_upload(**self._where, UploadId=self._id))
        except StorageFault as fault:
            log.warning("an upload that broke off could not be ended: %s", fault.message)
        try:
            if self._finishing:
                await _asked(self._client.delete_object(**self._where))
        except StorageFault as fault:
            log.warning("an upload that broke off could not be removed: %s", fault.message)


class _NothingThere(Exception):
    """The range lies behind the end of the object."""


def _session(*, path_style: bool) -> tuple[Any, Any]:
    from aiobotocore.config import AioConfig
    from aiobotocore.session import get_session

    session = get_session()
    session.get_component("data_loader").load_service_model("s3", "service-2")
    config = AioConfig(
        connect_timeout=10,
        read_timeout=60,
        retries={"max_attempts": 3, "mode": "standard"},
        # Stores of one's own rarely have a name of their own for each bucket, and some do not know the new checksums.
        s3={"addressing_style": "path" if path_style else "auto"},
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
    )
    return session, config


async def _asked(call: Awaitable[T]) -> T:
    """The answer, or a fault that tells neither addresses nor keys."""
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        return await call
    except ClientError as error:
        code = str(error.response.get("Error", {}).get("Code", "unknown"))
        if code in _ABSENT:
            raise NotFound("The content of this file is not there any more.") from None
        if code == "InvalidRange":
            raise _NothingThere from None
        raise StorageFault(f"The object store refused ({code[:64]}).") from error
    except (BotoCoreError, aiohttp.ClientError, OSError, TimeoutError) as error:
        raise StorageFault(f"The object store could not be used ({type(error).__name__}).") from error
