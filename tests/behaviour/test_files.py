"""Files over HTTP: uploading in every form, reading back, lists, expiry, deletion, and refusals that name the field."""

from __future__ import annotations

import io
import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.behaviour import shared as one_server
from tests.behaviour.conftest import Driver, httpx2
from tests.behaviour.kit import error, serving
from tests.behaviour.manifest import behaviour
from treadle.testing.upstream import ScriptedUpstream

shared, model, server = one_server.shared, one_server.model, one_server.server

LARGE = 40_000_000


def upload(api: Driver, content: bytes = b"hello", name: str = "a.txt", **fields: str) -> Any:
    reply = api.http.post(
        f"{api.server.url}/files", files={"file": (name, content)}, data={"purpose": "user_data"} | fields
    )
    assert reply.status_code == 200, reply.text
    return reply.json()


def form(*parts: bytes, boundary: str = "b0undary", closed: bool = True) -> dict[str, Any]:
    """A form part by part, as it stands."""
    lines = [b"--" + boundary.encode() + b"\r\n" + part + b"\r\n" for part in parts]
    body = b"".join(lines) + (b"--" + boundary.encode() + b"--\r\n" if closed else b"")
    return {"content": body, "headers": {"content-type": f"multipart/form-data; boundary={boundary}"}}


def field(name: str, value: bytes) -> bytes:
    return b'Content-Disposition: form-data; name="' + name.encode() + b'"\r\n\r\n' + value


def file(content: bytes = b"hello", filename: bytes = b'filename="a.txt"', name: bytes = b"file") -> bytes:
    return b'Content-Disposition: form-data; name="' + name + b'"; ' + filename + b"\r\n\r\n" + content


PURPOSE = field("purpose", b"user_data")


# ------------------------------------------------------------------------------------- through the SDK


def test_a_file_goes_up_and_comes_back(client: Any) -> None:
    made = client.files.create(file=("notes.txt", b"one\ntwo\n"), purpose="assistants")
    assert made.id.startswith("file-")
    assert int(made.id.removeprefix("file-"), 16) >= 0
    assert (made.filename, made.bytes, made.purpose, made.expires_at) == ("notes.txt", 8, "assistants", None)
    assert client.files.retrieve(made.id) == made
    assert client.files.content(made.id).read() == b"one\ntwo\n"


def test_every_way_of_naming_a_file_works(client: Any, tmp_path: Path) -> None:
    path = tmp_path / "from disk.md"
    path.write_bytes(b"# From a path")
    with path.open("rb") as opened:
        given = [path, opened, b"bytes", io.BytesIO(b"a stream"), ("named.csv", io.BytesIO(b"a,b"), "text/csv")]
        made = [client.files.create(file=one, purpose="user_data") for one in given]
    contents = [client.files.content(one.id).read() for one in made]
    assert contents == [b"# From a path", b"# From a path", b"bytes", b"a stream", b"a,b"]
    assert [one.filename for one in made] == ["from disk.md", "from disk.md", "upload", "upload", "named.csv"]


def test_a_large_file_streams_both_ways(client: Any, tmp_path: Path) -> None:
    path = tmp_path / "large.bin"
    content = os.urandom(1_000_000) * (LARGE // 1_000_000)
    path.write_bytes(content)
    with path.open("rb") as opened:
        made = client.files.create(file=opened, purpose="user_data")
    assert made.bytes == LARGE
    with client.files.with_streaming_response.content(made.id) as response:
        assert response.headers["content-length"] == str(LARGE)
        assert b"".join(response.iter_bytes()) == content


def test_the_content_is_a_download_and_never_a_page(client: Any) -> None:
    made = client.files.create(file=("evil.html", b"<script>alert(1)</script>"), purpose="user_data")
    headers = client.files.with_raw_response.content(made.id).headers
    assert headers["content-type"] == "text/html"
    assert headers["content-disposition"] == 'attachment; filename="evil.html"'
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["content-security-policy"] == "default-src 'none'; sandbox"


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("a.pdf", "application/pdf"),
        ("a.PNG", "image/png"),
        ("a.docx", "application/vnd.openxmlformats-officedocument.wordprocessingml.document"),
        ("a.jsonl", "application/jsonl"),
        ("a.tar.gz", "application/gzip"),
        ("a.unheard-of", "application/octet-stream"),
        ("a", "application/octet-stream"),
    ],
)
def test_the_content_type_follows_the_name(client: Any, name: str, kind: str) -> None:
    made = client.files.create(file=(name, b"x"), purpose="user_data")
    assert client.files.with_raw_response.content(made.id).headers["content-type"] == kind


def test_a_deleted_file_is_gone(client: Any, api: Driver) -> None:
    made = client.files.create(file=b"x", purpose="user_data")
    gone = client.files.delete(made.id)
    assert (gone.id, gone.deleted, gone.object) == (made.id, True, "file")
    for reply in (
        api.get(f"/files/{made.id}"),
        api.get(f"/files/{made.id}/content"),
        api.delete(f"/files/{made.id}"),
    ):
        assert error(reply, 404)["param"] == "file_id"


def test_the_sdk_waits_for_processing_without_polling_twice(client: Any) -> None:
    made = client.files.create(file=b"x", purpose="user_data")
    assert client.files.wait_for_processing(made.id, poll_interval=0.01, max_wait_seconds=5).status == "processed"


# ------------------------------------------------------------------------------------------------ lists


@pytest.fixture
def listed(tmp_path: Path, model: ScriptedUpstream) -> Iterator[tuple[Driver, list[str]]]:
    """A server with seven files and nothing else, oldest first."""
    with serving(tmp_path, model) as api:
        names = [upload(api, name=f"{n}.txt", purpose="vision" if n % 3 == 0 else "batch")["id"] for n in range(7)]
        yield api, names


def test_lists_page_in_both_orders(listed: tuple[Driver, list[str]]) -> None:
    from openai import OpenAI

    api, names = listed
    with OpenAI(base_url=api.server.url, api_key="none", max_retries=0, _strict_response_validation=True) as client:
        assert [one.id for one in client.files.list()] == names[::-1]
        assert [one.id for one in client.files.list(limit=2)] == names[::-1], "the SDK pages on"
        assert [one.id for one in client.files.list(limit=3, order="asc")] == names
        assert [one.id for one in client.files.list(purpose="vision", limit=1)] == [names[6], names[3], names[0]]


def test_a_page_says_truly_whether_there_is_more(listed: tuple[Driver, list[str]]) -> None:
    api, names = listed
    page = api.get("/files?limit=4&order=asc").json()
    assert (page["object"], page["has_more"], page["first_id"], page["last_id"]) == ("list", True, names[0], names[3])
    page = api.get(f"/files?limit=3&order=asc&after={names[3]}").json()
    assert ([one["id"] for one in page["data"]], page["has_more"]) == (names[4:], False)
    page = api.get(f"/files?order=asc&after={names[6]}").json()
    assert (page["data"], page["has_more"], page["first_id"], page["last_id"]) == ([], False, "", "")
    # A cursor need not match the filter of the list.
    page = api.get(f"/files?order=asc&purpose=vision&after={names[1]}").json()
    assert [one["id"] for one in page["data"]] == [names[3], names[6]]


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("limit=0", "limit"),
        ("limit=10001", "limit"),
        ("limit=x", "limit"),
        ("order=up", "order"),
        ("after=file-00", "after"),
        ("after=../x", "after"),
        ("purpose=pleasure", "purpose"),
    ],
)
def test_a_bad_query_is_refused_by_name(api: Driver, query: str, param: str) -> None:
    assert error(api.get(f"/files?{query}"), 400)["param"] == param


# ----------------------------------------------------------------------------------------------- expiry


def test_an_expiry_is_taken_in_brackets_and_as_json(client: Any, api: Driver) -> None:
    made = client.files.create(file=b"x", purpose="user_data", expires_after={"anchor": "created_at", "seconds": 3600})
    assert made.expires_at == made.created_at + 3600
    json = upload(api, expires_after='{"anchor": "created_at", "seconds": 7200}')
    assert json["expires_at"] == json["created_at"] + 7200
    assert "expires_at" not in upload(api, expires_after="null")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"expires_after[seconds]": "3600"}, "expires_after.anchor"),
        ({"expires_after[anchor]": "created_at"}, "expires_after.seconds"),
        ({"expires_after[anchor]": "created_at", "expires_after[seconds]": "3599"}, "expires_after.seconds"),
        ({"expires_after[anchor]": "created_at", "expires_after[seconds]": "2592001"}, "expires_after.seconds"),
        ({"expires_after[anchor]": "created_at", "expires_after[seconds]": "soon"}, "expires_after.seconds"),
        ({"expires_after[anchor]": "last_active_at", "expires_after[seconds]": "3600"}, "expires_after.anchor"),
        ({"expires_after": "{"}, "expires_after"),
        ({"expires_after": "[" * 5000}, "expires_after"),
        ({"expires_after": "7"}, "expires_after"),
        ({"expires_after": '{"anchor": "created_at"}'}, "expires_after.seconds"),
        ({"purpose": "pleasure"}, "purpose"),
        ({"purpose": ""}, "purpose"),
        ({"purpose": "x" * 70_000}, "purpose"),
    ],
)
def test_a_bad_field_is_refused_by_name(api: Driver, fields: dict[str, str], param: str) -> None:
    reply = api.http.post(
        f"{api.server.url}/files", files={"file": ("a.txt", b"x")}, data={"purpose": "user_data"} | fields
    )
    assert error(reply, 400)["param"] == param


def test_an_expired_file_is_gone_at_once_and_removed_at_the_next_start(tmp_path: Path, model: ScriptedUpstream) -> None:
    with serving(tmp_path, model) as api:
        old = upload(api, **{"expires_after[anchor]": "created_at", "expires_after[seconds]": "3600"})["id"]
        young = upload(api)["id"]
        with closing(sqlite3.connect(tmp_path / "treadle.sqlite3", timeout=20)) as database, database:
            database.execute("UPDATE files SET expires_at = created_at - 1 WHERE id = ?", (old,))
        assert error(api.get(f"/files/{old}"), 404)["param"] == "file_id"
        error(api.get(f"/files/{old}/content"), 404)
        error(api.delete(f"/files/{old}"), 404)
        assert [one["id"] for one in api.get("/files").json()["data"]] == [young]
    with serving(tmp_path, model) as api:
        assert api.get(f"/files/{young}/content").content == b"hello"
    assert [path.name for path in blobs(tmp_path)] == [young]


# ------------------------------------------------------------------------------------- names and ids


def blobs(folder: Path) -> list[Path]:
    return [path for path in (folder / "blobs").rglob("*") if path.is_file()]


@behaviour("bug-66")
@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (b'filename="../../etc/passwd"', "passwd"),
        (b'filename="C:\\\\Users\\\\me\\\\a.txt"', "a.txt"),
        (b'filename="/"', "file"),
        (b'filename=".."', "file"),
        (b'filename=""', "file"),
        (b'filename=".bashrc"', "bashrc"),
        (b'filename="a%22b%0D%0Ac.txt"', 'a"bc.txt'),
        (b'filename="a\\"b.txt"', 'a"b.txt'),
        (b'filename="a\x00b\x1b.txt"', "ab.txt"),
        ('filename="naïve 😀.txt"'.encode(), "naïve 😀.txt"),
        ('filename="a\u202egnp.exe"'.encode(), "agnp.exe"),
        (b"filename*=UTF-8''na%C3%AFve.txt", "naïve.txt"),
        (b'filename="' + b"x" * 400 + b'.txt"', "x" * 251 + ".txt"),
    ],
)
def test_names_are_kept_safely(api: Driver, given: bytes, kept: str) -> None:
    reply = api.http.post(f"{api.server.url}/files", **form(PURPOSE, file(filename=given)))
    assert reply.status_code == 200, reply.text
    made = reply.json()
    assert made["filename"] == kept
    headers = api.get(f"/files/{made['id']}/content").headers
    assert headers["content-disposition"].startswith('attachment; filename="')
    assert headers["content-disposition"].isascii()
    assert headers["content-disposition"].count('"') == 2
    assert headers["x-content-type-options"] == "nosniff"


def test_a_name_beyond_ascii_comes_back_in_both_spellings(api: Driver) -> None:
    made = upload(api, name='naïve "q".txt')
    assert api.get(f"/files/{made['id']}/content").headers["content-disposition"] == (
        "attachment; filename=\"na_ve _q_.txt\"; filename*=UTF-8''na%C3%AFve%20%22q%22.txt"
    )


@behaviour("bug-66")
@pytest.mark.parametrize("bad", ["..", "a.b", "a:b", "a%00b", "a%20b", "x" * 200, "%2e%2e"])
def test_an_id_that_is_none_is_a_400(api: Driver, bad: str) -> None:
    for path in (f"/files/{bad}", f"/files/{bad}/content"):
        reply = api.http.request("GET", api.server.url + path, follow_redirects=False)
        if bad in ("..", "%2e%2e") and reply.status_code == 404:
            continue  # the client itself resolved the dots
        assert error(reply, 400)["param"] == "file_id"


@behaviour("bug-66")
def test_an_id_with_folders_leads_nowhere(api: Driver) -> None:
    for path in (
        "/files/..%2f..%2ftreadle.sqlite3",
        "/files/..%2f..%2ftreadle.sqlite3/content",
        "/files/%2fetc%2fpasswd",
    ):
        error(api.get(path), 404)


# --------------------------------------------------------------------------------------------- forms


def test_fields_may_come_before_and_after_the_file(api: Driver) -> None:
    expiry = field("expires_after[seconds]", b"3600"), field("expires_after[anchor]", b"created_at")
    for parts in ((PURPOSE, *expiry, file()), (file(), PURPOSE, *expiry), (expiry[0], file(), expiry[1], PURPOSE)):
        reply = api.http.post(f"{api.server.url}/files", **form(*parts))
        assert reply.status_code == 200, reply.text
        assert reply.json()["expires_at"] == reply.json()["created_at"] + 3600


def test_fields_that_nobody_knows_are_skipped(api: Driver) -> None:
    extra = field("model", b"x" * 200_000), file(b"y" * 200_000, name=b"thumbnail")
    reply = api.http.post(f"{api.server.url}/files", **form(extra[0], file(b"real"), extra[1], PURPOSE))
    assert api.get(f"/files/{reply.json()['id']}/content").content == b"real"


def test_content_that_looks_like_a_boundary_stays_as_it_is(api: Driver) -> None:
    content = b"\r\n--b0undar\r\n--b0undarX\r\n----\r\n\r\n--b0undary-not-at-a-line-start--b0undary"
    reply = api.http.post(
        f"{api.server.url}/files", **form(PURPOSE, file(content, b'filename="a.bin"'), boundary="b0undaryZ")
    )
    assert api.get(f"/files/{reply.json()['id']}/content").content == content


@pytest.mark.parametrize(
    ("parts", "param", "says"),
    [
        ((PURPOSE,), "file", "Missing"),
        ((file(),), "purpose", "Missing"),
        ((PURPOSE, file(), file()), "file", "more than one"),
        ((PURPOSE, PURPOSE, file()), "purpose", "more than once"),
        ((PURPOSE, field("file", b"text")), "file", "no filename"),
        ((PURPOSE, *(field(f"x{n}", b"") for n in range(100))), None, "more than 64 parts"),
        ((PURPOSE, b"X-Long: " + b"x" * 70_000 + b"\r\n" + file()), "file", "could not be read"),
        ((PURPOSE, b"no header at all\r\n\r\nx"), "file", "could not be read"),
        ((), None, "Missing"),
    ],
)
def test_a_form_that_cannot_be_taken_is_refused(
    api: Driver, parts: tuple[bytes, ...], param: str | None, says: str
) -> None:
    before = api.get("/files").json()["data"]
    found = error(api.http.post(f"{api.server.url}/files", **form(*parts)), 400)
    assert says in found["message"]
    assert param is None or found["param"] == param
    assert api.get("/files").json()["data"] == before


def test_a_form_without_its_end_is_refused(api: Driver) -> None:
    found = error(api.http.post(f"{api.server.url}/files", **form(PURPOSE, file(), closed=False)), 400)
    assert found["param"] == "file"
    assert "not complete" in found["message"]


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        ("multipart/form-data", 400),
        ("multipart/form-data; boundary=", 400),
        ("multipart/form-data; boundary=" + "x" * 300, 400),
        ("multipart/mixed; boundary=b0undary", 415),
        ("application/json", 415),
        ("", 415),
    ],
)
def test_a_body_that_is_no_form_is_refused(api: Driver, kind: str, status: int) -> None:
    given = form(PURPOSE, file())
    reply = api.http.post(f"{api.server.url}/files", content=given["content"], headers={"content-type": kind})
    error(reply, status)


def test_a_compressed_form_is_refused(api: Driver) -> None:
    given = form(PURPOSE, file())
    headers = given["headers"] | {"content-encoding": "gzip"}
    error(api.http.post(f"{api.server.url}/files", content=given["content"], headers=headers), 415)


def test_what_is_wrong_is_said_before_the_bytes_have_come(api: Driver) -> None:
    """The purpose came first and is wrong: the file is not waited for."""
    answered = threading.Event()

    def slowly() -> Iterator[bytes]:
        yield b"--b0undary\r\n" + field("purpose", b"pleasure") + b"\r\n--b0undary\r\n"
        yield b'Content-Disposition: form-data; name="file"; filename="a"\r\n\r\nx'
        answered.wait(1)
        yield b"\r\n--b0undary--\r\n"

    headers = {"content-type": "multipart/form-data; boundary=b0undary"}
    found = error(api.http.post(f"{api.server.url}/files", content=slowly(), headers=headers), 400)
    assert found["param"] == "purpose"


def test_a_file_over_the_limit_is_a_413_and_leaves_nothing(tmp_path: Path, model: ScriptedUpstream) -> None:
    with serving(tmp_path, model, "files: {max_bytes: 100000}") as api:
        assert upload(api, bytes(100_000))["bytes"] == 100_000
        for size in (100_001, 1_000_000, 3_000_000):
            reply = api.http.post(
                f"{api.server.url}/files", files={"file": ("a", bytes(size))}, data={"purpose": "user_data"}
            )
            found = error(reply, 413)
            assert (found["param"], found["code"]) == ("file", "file_too_large")
        assert len(api.get("/files").json()["data"]) == 1
        assert len(blobs(tmp_path)) == 1


def test_a_head_tells_of_the_content_without_sending_it(api: Driver) -> None:
    made = upload(api, b"hello")
    reply = api.http.head(f"{api.server.url}/files/{made['id']}/content")
    assert (reply.status_code, reply.headers["content-length"], reply.content) == (200, "5", b"")


def test_content_whose_bytes_are_lost_is_a_404(tmp_path: Path, model: ScriptedUpstream) -> None:
    with serving(tmp_path, model) as api:
        made = upload(api)
        for path in blobs(tmp_path):
            path.unlink()
        assert "not there any more" in error(api.get(f"/files/{made['id']}/content"), 404)["message"]


def test_the_document_describes_the_form(api: Driver) -> None:
    operation = httpx2.get(api.server.root + "/openapi.json").json()["paths"]["/v1/files"]["post"]
    schema = operation["requestBody"]["content"]["multipart/form-data"]["schema"]
    assert schema["required"] == ["file", "purpose"]
    assert set(schema["properties"]) == {"file", "purpose", "expires_after[anchor]", "expires_after[seconds]"}
