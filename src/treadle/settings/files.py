"""Settings of files: how large, how long, and where their bytes are."""

from __future__ import annotations

from typing import Annotated

import msgspec

Doc = msgspec.Meta


class Files(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Uploaded files, and those that the server writes."""

    max_bytes: Annotated[int, Doc(description="Largest file that can be uploaded, in bytes.", ge=1)] = 536870912
    url: Annotated[
        str,
        Doc(
            description="Where the bytes are: s3://bucket/prefix for an S3-compatible store (extra `s3`). Empty: the "
            "folder `blobs` in the data folder."
        ),
    ] = ""
    blobs: Annotated[str, Doc(description="The plug-in that keeps the bytes. Empty: they are where `url` says.")] = ""
    endpoint: Annotated[
        str, Doc(description="Address of an S3-compatible store that is not Amazon's, such as https://minio.lan:9000.")
    ] = ""
    region: Annotated[str, Doc(description="Its region. Empty: as AWS's own settings of this machine say.")] = ""
    key_id: Annotated[str, Doc(description="Access key id. Empty: as AWS's own settings of this machine say.")] = ""
    key: Annotated[str, Doc(description="Secret access key that belongs to it.", extra={"secret": True})] = ""
    max_input_bytes: Annotated[
        int,
        Doc(description="All images and files that one response may show a model, in bytes.", ge=1),
    ] = 52428800
    kept_days: Annotated[
        int,
        Doc(
            description="How long a file lives that the server writes of its own accord, such as the whole of a tool "
            "result that was too long to show.",
            ge=1,
            le=3650,
        ),
    ] = 30
