"""Images and files in messages, by id, by address and inline: what reaches the model, and what is refused."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from time import sleep
from typing import Any

import pytest

from tests.behaviour.conftest import LOOPBACK, Driver, sent, text_of
from tests.behaviour.kit import error, serving
from tests.behaviour.manifest import behaviour
from treadle.testing.gates import Gate
from treadle.testing.turns import Reply
from treadle.testing.upstream import ScriptedUpstream
from treadle.testing.web import FakeWeb

PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(200))
JPEG = b"\xff\xd8\xff\xe0" + bytes(range(200))
SVG = b'<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>'
NOTES = "The meeting is on Tuesday.\nBring naïve tea 😀."


@dataclass
class Place:
    """A server that may go to `web`, in front of models that see and take files, and of ones that do not."""

    api: Driver
    model: ScriptedUpstream
    web: FakeWeb
    folder: Path

    def upload(self, content: bytes, name: str, purpose: str = "user_data") -> str:
        reply = self.api.http.post(
            f"{self.api.server.url}/files", files={"file": (name, content)}, data={"purpose": purpose}
        )
        assert reply.status_code == 200, reply.text
        found: str = reply.json()["id"]
        return found

    def ask(self, *parts: dict[str, Any], model: str = "able", **more: Any) -> tuple[dict[str, Any], list[Any]]:
        """The response to a question with these parts, and the user's content as the model saw it."""
        self.model.script(Reply(text="I see."))
        response = self.api.create(model=f"{model}/scripted", input=[question(*parts)], **more)
        assert text_of(response) == "I see."
        content = sent(self.model, len(self.model.requests))[-1]["content"]
        return response, content if isinstance(content, list) else [content]

    def refused(self, *parts: dict[str, Any], status: int = 400, model: str = "able") -> dict[str, Any]:
        asked = len(self.model.requests)
        found = error(self.api.post(model=f"{model}/scripted", input=[question(*parts)]), status)
        assert len(self.model.requests) == asked, "the model is not asked"
        return found


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("input-files")
    with ScriptedUpstream() as model, FakeWeb() as web:
        lines = [
            f"  able: {{kind: openai_chat, url: '{model.url}', capabilities: {{images: true, files: true}}}}",
            f"  seeing: {{kind: openai_chat, url: '{model.url}', capabilities: {{images: true, files: false}}}}",
            f"  plain: {{kind: openai_chat, url: '{model.url}', capabilities: {{images: false, files: false}}}}",
            LOOPBACK,
            "files: {max_input_bytes: 3000000}",
        ]
        with serving(folder, model, *lines) as api:
            yield Place(api, model, web, folder)


@pytest.fixture
def place(running: Place) -> Iterator[Place]:
    running.model.requests.clear()
    running.web.requests.clear()
    running.web._pages.clear()
    yield running
    running.model.assert_consumed()


def question(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "input_text", "text": "What is it?"}, *parts]}


def image(**given: Any) -> dict[str, Any]:
    return {"type": "input_image", **given}


def file(**given: Any) -> dict[str, Any]:
    return {"type": "input_file", **given}


def data(kind: str, content: bytes) -> str:
    return f"data:{kind};base64,{b64encode(content).decode()}"


def pdf(text: str) -> bytes:
    """The smallest document that shows a line of text."""
    stream = f"BT /F1 24 Tf 72 720 Td ({text}) Tj ET".encode()
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        b"<< /Type /Page /Parent 2 0 R /Contents 4 0 R /Resources << /Font << /F1 5 0 R >> >> >>",
        b"<< /Length %d >>\nstream\n%b\nendstream" % (len(stream), stream),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    body, offsets = b"%PDF-1.4\n", []
    for number, one in enumerate(objects, 1):
        offsets.append(len(body))
        body += b"%d 0 obj\n%b\nendobj\n" % (number, one)
    table = b"".join(b"%010d 00000 n \n" % offset for offset in offsets)
    head = b"xref\n0 6\n0000000000 65535 f \n"
    return body + head + table + b"trailer << /Size 6 /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF" % len(body)


# ----------------------------------------------------------------------------------------------- images


@behaviour("bug-67")
@pytest.mark.parametrize("content", [PNG, JPEG], ids=["png", "jpeg"])
def test_an_image_reaches_the_model_as_data_however_it_is_given(place: Place, content: bytes) -> None:
    kind = "image/png" if content is PNG else "image/jpeg"
    wanted = {"type": "image_url", "image_url": {"url": data(kind, content), "detail": "low"}}
    by_id = place.upload(content, "no ending", "vision")
    by_url = place.web.page("/picture", content, "application/octet-stream")
    for given in ({"file_id": by_id}, {"image_url": by_url}, {"image_url": data(kind, content)}):
        _, seen = place.ask(image(detail="low", **given))
        assert seen[1] == wanted, given


@behaviour("bug-67")
def test_what_is_stored_and_shown_stays_as_it_was_sent(place: Place) -> None:
    by_id, by_url = place.upload(PNG, "a.png"), place.web.page("/a.png", PNG, "image/png")
    response, _ = place.ask(image(file_id=by_id), image(image_url=by_url), file(file_id=by_id))
    flags = "include[]=message.input_image.image_url"
    [item] = place.api.get(f"/responses/{response['id']}/input_items?{flags}").json()["data"]
    assert [part.get("file_id") for part in item["content"]] == [None, by_id, None, by_id]
    assert item["content"][2]["image_url"] == by_url
    assert b64encode(PNG)[:40] not in (place.folder / "treadle.sqlite3").read_bytes()


def test_an_image_of_a_function_output_is_found_too(place: Place) -> None:
    by_id = place.upload(PNG, "a.png")
    tool = {"type": "function", "name": "look", "parameters": {}}
    call = {"type": "function_call", "call_id": "call_1", "name": "look", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "call_1", "output": [image(file_id=by_id)]}
    place.model.script(Reply(text="I see."))
    place.api.create(model="able/scripted", input=[question(), call, output], tools=[tool])
    assert sent(place.model)[-1]["content"][0]["image_url"]["url"] == data("image/png", PNG)
    output["output"] = [image(file_id="file-00")]
    found = error(place.api.post(model="able/scripted", input=[question(), call, output], tools=[tool]), 404)
    assert found["param"] == "input[2].output[0].file_id"


def test_a_model_that_does_not_see_gets_a_note_and_nothing_is_fetched(place: Place) -> None:
    by_id, by_url = place.upload(PNG, "a.png"), place.web.page("/a.png", PNG, "image/png")
    _, seen = place.ask(image(file_id=by_id), image(image_url=by_url), file(file_id=by_id), model="plain")
    assert seen == ["What is it?" + "\n[An image stands here; this model does not read images.]" * 3]
    assert place.web.requests == []


@behaviour("bug-67")
@pytest.mark.parametrize("status", [404, 500])
def test_an_address_without_an_image_is_named(place: Place, status: int) -> None:
    url = place.web.page("/gone.png", "no", status=status)
    found = place.refused(image(image_url=url))
    assert (found["param"], found["code"]) == ("input[0].content[1].image_url", "failed_to_download_image")
    assert url in found["message"]
    assert str(status) in found["message"]
    found = place.refused(file(file_url=url))
    assert (found["param"], found["code"]) == ("input[0].content[1].file_url", "failed_to_download_file")


def test_an_address_that_leads_inside_is_refused(place: Place) -> None:
    url = place.web.redirect("/there.png", "http://169.254.169.254/latest/meta-data")
    found = place.refused(image(image_url=url))
    assert (found["param"], found["code"]) == ("input[0].content[1].image_url", "failed_to_download_image")


@pytest.mark.parametrize("content", [b"<html>", SVG, b"PNG"], ids=["page", "svg", "text"])
def test_what_is_no_image_is_refused_as_one(place: Place, content: bytes) -> None:
    kind = "image/svg+xml" if content is SVG else "image/png"
    by_id, by_url = place.upload(content, "a.svg" if content is SVG else "a.png"), place.web.page("/a", content, kind)
    for given, field in ((image(file_id=by_id), "file_id"), (image(image_url=by_url), "image_url")):
        found = place.refused(given)
        assert (found["param"], found["code"]) == (f"input[0].content[1].{field}", "unsupported_image_media_type")


def test_an_empty_image_is_refused(place: Place) -> None:
    assert place.refused(image(file_id=place.upload(b"", "a.png")))["code"] == "empty_image_file"


# ------------------------------------------------------------------------------------------------ files


@behaviour("bug-67")
def test_a_file_is_passed_on_as_data_to_a_model_that_takes_files(place: Place) -> None:
    content = pdf("Hello")
    wanted = {"type": "file", "file": {"file_data": data("application/pdf", content), "filename": "a report.pdf"}}
    by_id = place.upload(content, "a report.pdf")
    by_url = place.web.page("/files/a%20report.pdf", content, "application/pdf")
    place.web.page("/files/a report.pdf", content, "application/pdf")
    inline = file(file_data=data("application/pdf", content), filename="a report.pdf")
    bare = file(file_data=b64encode(content).decode(), filename="a report.pdf")
    for given in (file(file_id=by_id), file(file_url=by_url), inline, bare):
        _, seen = place.ask(given)
        assert seen[1] == wanted


@behaviour("bug-67")
@pytest.mark.parametrize("model", ["seeing", "plain"])
def test_a_file_is_text_under_its_name_for_a_model_that_takes_none(place: Place, model: str) -> None:
    content = NOTES.encode()
    by_id = place.upload(content, "notes.txt")
    by_url = place.web.page("/notes.txt", content, "text/plain")
    inline = file(file_data=data("text/plain", content), filename="notes.txt")
    for given in (file(file_id=by_id), file(file_url=by_url), inline):
        _, seen = place.ask(given, model=model)
        assert seen == [f"What is it?\n[File: notes.txt]\n{NOTES}\n[End of file: notes.txt]"]


def test_a_document_is_read_for_a_model_that_takes_no_files(place: Place) -> None:
    pytest.importorskip("pypdfium2", reason="pypdfium2 comes with the knowledge extra")
    by_id = place.upload(pdf("Hello from the page"), "a.pdf")
    _, seen = place.ask(file(file_id=by_id), model="plain")
    assert seen[0].startswith("What is it?\n[File: a.pdf]\n")
    assert "Hello from the page" in seen[0]


def test_a_picture_that_comes_as_a_file_is_an_image_where_there_is_no_place_for_files(place: Place) -> None:
    by_id = place.upload(PNG, "a.png")
    for given in (file(file_id=by_id), file(file_data=data("image/png", PNG), filename="a.png")):
        for model in ("seeing", "able"):
            _, seen = place.ask(given, model=model)
            assert seen[1]["image_url"]["url"] == data("image/png", PNG)


def test_a_document_that_nothing_can_read_is_named(place: Place) -> None:
    by_id = place.upload(b"PK\x05\x06" + bytes(18), "a.zip")
    found = place.refused(file(file_id=by_id), model="plain")
    assert found["param"] == "input[0].content[1].file_id"
    assert found["code"] in ("unsupported_file", "invalid_file")


@pytest.mark.parametrize("content", ["data:application/pdf;base64,%%%", "data:application/pdf", "no base64!"])
def test_inline_data_that_is_broken_is_named(place: Place, content: str) -> None:
    found = place.refused(file(file_data=content, filename="a.pdf"), model="plain")
    assert (found["param"], found["code"]) == ("input[0].content[1].file_data", "invalid_base64")


def test_a_long_text_is_cut_with_a_note(place: Place) -> None:
    by_id = place.upload(b"word " * 100_000, "long.txt")
    _, seen = place.ask(file(file_id=by_id), model="plain")
    assert len(seen[0]) < 401_000
    assert "[The file goes on; only its first 400000 characters are shown.]" in seen[0]


# ------------------------------------------------------------------------------------------------ bounds


@behaviour("bug-67")
@pytest.mark.parametrize("kind", ["input_image", "input_file"])
@pytest.mark.parametrize("model", ["able", "plain"])
@pytest.mark.parametrize("name", ["file-00", "../x", "a\x00b", "x" * 500])
def test_an_unknown_file_is_named(place: Place, kind: str, model: str, name: str) -> None:
    found = place.refused({"type": kind, "file_id": name}, status=404, model=model)
    assert found["param"] == "input[0].content[1].file_id"


def test_everything_together_is_bounded(place: Place) -> None:
    large = [place.upload(PNG + bytes(1_200_000), f"{n}.png") for n in range(3)]
    place.ask(*(image(file_id=one) for one in large[:2]))
    found = place.refused(*(image(file_id=one) for one in large), status=413)
    assert found["param"].startswith("input[0].content[")
    assert "files.max_input_bytes" in found["message"]


def test_addresses_are_fetched_together(place: Place) -> None:
    """None is answered before all have been asked for."""
    gate = Gate()
    urls = [place.web.slow(f"/{n}.png", PNG[:9], gate, PNG[9:], type="image/png") for n in range(6)]
    asked = place.web.requests

    def all_asked() -> None:
        while len(asked) < 6 and not gate.is_set():
            sleep(0.005)
        gate.set()

    opener = Thread(target=all_asked)
    opener.start()
    try:
        _, seen = place.ask(*(image(image_url=url) for url in urls))
    finally:
        gate.set()
        opener.join(10)
    assert [part["image_url"]["url"] for part in seen[1:]] == [data("image/png", PNG)] * 6


# ------------------------------------------------------------------------------------------------ chains


def test_a_later_turn_sees_the_same_again_without_fetching_it_again(place: Place) -> None:
    by_id, by_url = place.upload(PNG, "a.png"), place.web.page("/a.png", PNG, "image/png")
    first, seen = place.ask(image(file_id=by_id), image(image_url=by_url), file(file_id=by_id))
    place.web.page("/a.png", JPEG, "image/jpeg")
    place.ask(previous_response_id=first["id"])
    assert sent(place.model, 2)[0]["content"] == seen
    assert len(place.web.requests) == 1
    _, fresh = place.ask(image(image_url=by_url), previous_response_id=first["id"])
    assert fresh[1]["image_url"]["url"] == data("image/jpeg", JPEG), "a new message means what is there now"
    assert sent(place.model, 3)[0]["content"] == seen


@behaviour("bug-67")
def test_a_file_that_was_deleted_is_a_note_in_later_turns(place: Place) -> None:
    by_id, notes = place.upload(PNG, "a.png"), place.upload(NOTES.encode(), "notes.txt")
    first, _ = place.ask(image(file_id=by_id), file(file_id=notes), model="seeing")
    for one in (by_id, notes):
        assert place.api.delete(f"/files/{one}").status_code == 200
    second, _ = place.ask(previous_response_id=first["id"], model="seeing")
    parts = sent(place.model, 2)[0]["content"]
    assert parts == (
        "What is it?"
        f"\n[The image that stood here cannot be shown any more: File '{by_id}' not found.]"
        f"\n[The file that stood here cannot be shown any more: File '{notes}' not found.]"
    )
    place.ask(previous_response_id=second["id"], model="plain")


def test_an_address_that_has_gone_is_a_note_in_later_turns(tmp_path: Path, place: Place) -> None:
    url = place.web.page("/a.png", PNG, "image/png")
    with serving(tmp_path, place.model, LOOPBACK) as api:
        place.model.script(Reply(text="I see."))
        first = api.create(input=[question(image(image_url=url))])
    place.web.page("/a.png", "gone", status=410)
    with serving(tmp_path, place.model, LOOPBACK) as api:  # nothing is cached there
        place.model.script(Reply(text="I see."))
        api.create(previous_response_id=first["id"], input="And now?")
    note = sent(place.model, 2)[0]["content"]
    assert "[The image that stood here cannot be shown any more: " in note
    assert "410" in note


def test_what_does_not_fit_any_more_is_old(place: Place) -> None:
    large = [place.upload(PNG + bytes([n]) * 1_200_000, f"{n}.png") for n in range(3)]
    response, _ = place.ask(image(file_id=large[0]))
    response, _ = place.ask(image(file_id=large[1]), previous_response_id=response["id"])
    place.ask(image(file_id=large[2]), previous_response_id=response["id"])
    messages = [message["content"] for message in sent(place.model, 3) if message["role"] == "user"]
    assert "cannot be shown any more" in messages[0]
    assert [message[1]["type"] for message in messages[1:]] == ["image_url", "image_url"]


def test_tokens_of_a_file_are_counted(place: Place) -> None:
    by_id = place.upload(NOTES.encode() * 100, "notes.txt")
    count = place.api.post("/responses/input_tokens", model="plain/scripted", input=[question(file(file_id=by_id))])
    assert count.json()["input_tokens"] > 1000
