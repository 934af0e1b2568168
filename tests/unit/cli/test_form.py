"""The form that uploads a file, read back by the server's own reader."""

from pathlib import Path

from python_multipart.multipart import parse_options_header

from treadle.cli.form import Upload, digest_of


async def sent(upload: Upload) -> bytes:
    found = b"".join([part async for part in upload.body.parts()])
    assert len(found) == upload.body.length
    return found


async def test_the_digest_is_that_of_what_was_sent(tmp_path: Path) -> None:
    content = bytes(range(256)) * 4000
    (tmp_path / "a").write_bytes(content)
    with (tmp_path / "a").open("rb") as file:
        upload = Upload(file, "a")
        assert content in await sent(upload)
        assert upload.fault is None
        file.seek(0)
        assert upload.digest == digest_of(file)
        assert file.tell() == 0


async def test_a_file_that_grows_is_sent_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"before")
    with path.open("rb") as file:
        upload = Upload(file, "a")
        path.write_bytes(b"before and after")
        assert b"before\r\n" in await sent(upload)
        assert upload.fault is None


async def test_a_file_that_shrinks_is_a_fault_and_the_form_ends_in_order(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"x" * 1000)
    with path.open("rb") as file:
        upload = Upload(file, "a")
        path.write_bytes(b"x")
        assert (await sent(upload)).endswith(b"--\r\n")
        assert str(upload.fault) == "it became shorter while it was read"


async def test_names_cannot_leave_their_header(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"")
    with (tmp_path / "a").open("rb") as file:
        head = (await sent(Upload(file, 'a"; x="\r\nSet-Cookie: \udcff.md'))).split(b"\r\n\r\n")[-2]
    line = next(line for line in head.split(b"\r\n") if b'name="file"' in line)
    _, options = parse_options_header(line.partition(b": ")[2])
    assert set(options) == {b"name", b"filename"}
    assert options[b"filename"].decode() == "a%22; x=%22%0D%0ASet-Cookie: \ufffd.md"
