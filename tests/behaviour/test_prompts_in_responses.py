"""Prompts in responses: where they stand, values as text, images and files, and what is refused."""

from __future__ import annotations

from base64 import b64encode
from typing import Any

import pytest

from tests.behaviour.conftest import sent
from tests.behaviour.kit import FUNCTION, error, final
from tests.behaviour.manifest import behaviour
from tests.behaviour.mcp_kit import declared
from tests.behaviour.prompts_kit import DATA, PNG, UNKNOWN, Place, file, image, place, running, system, text, user
from treadle.testing.mcp import FakeMcpServer
from treadle.testing.turns import Call, Reply

__all__ = ["place", "running"]


def test_the_text_comes_first_and_instructions_behind_it(place: Place) -> None:
    prompt = place.prompt("You are a {{ role }} for {{role}} and {{ area }}.", "role", "area")
    values = {"role": "guide", "area": {"type": "input_text", "text": "Rome"}}
    response = place.ask(prompt, values=values, instructions="Be short.")
    rendered = "You are a guide for guide and Rome.\n\nBe short."
    assert place.seen() == [system(rendered), user("Hello")]
    assert response["instructions"] == rendered
    assert response["prompt"] == {"id": prompt, "version": "1", "variables": values}
    assert place.api.get(f"/responses/{response['id']}").json() == response
    items = place.api.get(f"/responses/{response['id']}/input_items").json()["data"]
    assert [item["content"][0]["text"] for item in items] == ["Hello"]


def test_a_stream_shows_the_prompt_from_its_first_event(place: Place) -> None:
    prompt = place.prompt("Be {{ tone }}.", "tone")
    place.model.script(Reply(text="Yes."))
    named = {"id": prompt, "variables": {"tone": "kind"}}
    events = place.api.stream(model="able/scripted", input="Hello", prompt=named)
    for event in (events[0], events[-1]):
        assert event["response"]["prompt"] == {**named, "version": "1"}
        assert event["response"]["instructions"] == "Be kind."
    assert place.api.get(f"/responses/{final(events)['id']}").json() == final(events)


def test_a_response_without_a_prompt_shows_null(place: Place) -> None:
    place.model.script(Reply(text="Yes."))
    assert place.api.create(input="Hello")["prompt"] is None


@behaviour("prompt-versions")
def test_the_default_version_is_used_unless_one_is_named_and_earlier_turns_stay_as_they_were(place: Place) -> None:
    prompt = place.prompt("One.")
    first = place.ask(prompt)
    assert place.seen()[0] == system("One.")
    place.update(prompt, 1, "Two.")
    second = place.ask(prompt, previous_response_id=first["id"])
    assert place.seen() == [
        system("Two."),
        user("Hello"),
        {"role": "assistant", "content": "Yes."},
        user("Hello"),
    ]
    assert (first["prompt"]["version"], second["prompt"]["version"]) == ("1", "2")
    for version in ("1", 1, "01"):
        pinned = place.ask(prompt, version=version)
        assert place.seen()[0] == system("One.")
        assert pinned["prompt"] == {"id": prompt, "version": "1", "variables": None}
    place.put(f"/prompts/{prompt}/set-default-version", version=1)
    place.ask(prompt)
    assert place.seen()[0] == system("One.")
    place.api.delete(f"/prompts/{prompt}")
    assert place.api.get(f"/responses/{first['id']}").json() == first
    assert place.api.get(f"/responses/{second['id']}").json()["instructions"] == "Two."


@behaviour("prompt-once")
def test_a_prompt_is_like_instructions_not_carried_into_the_next_turn(place: Place) -> None:
    prompt = place.prompt("See {{ it }}.", "it")
    conversation = place.api.post("/conversations").json()["id"]
    by_chain = place.ask(prompt, values={"it": image(image_url=DATA)})
    place.ask(prompt, values={"it": image(image_url=DATA)}, conversation=conversation)
    for more in ({"previous_response_id": by_chain["id"]}, {"conversation": conversation}):
        place.model.script(Reply(text="No."))
        following = place.api.create(input="And?", **more)
        assert place.seen() == [user("Hello"), {"role": "assistant", "content": "Yes."}, user("And?")]
        assert (following["prompt"], following["instructions"]) == (None, None)


def test_a_prompt_given_again_stands_where_it_stood_so_that_what_was_seen_stays_the_same(place: Place) -> None:
    prompt = place.prompt("See {{ it }}.", "it")
    values = {"it": image(image_url=DATA)}
    first = place.ask(prompt, values=values)
    before = place.seen()
    place.ask(prompt, "And?", values=values, previous_response_id=first["id"])
    assert place.seen()[: len(before)] == before
    assert [message["role"] for message in place.seen()[len(before) :]] == ["assistant", "user"]


@behaviour("prompt-alone")
def test_without_any_input_the_prompt_is_the_input_and_stays_in_the_history(place: Place) -> None:
    prompt = place.prompt("Tell of {{ topic }} in {{ photo }}.", "topic", "photo")
    values = {"topic": "dragons", "photo": image(image_url=DATA)}
    first = place.ask(prompt, None, values=values, instructions="Be short.")
    asked = user(
        [
            text("Tell of dragons in [Image: photo]."),
            text("[Image: photo]"),
            {"type": "image_url", "image_url": {"url": DATA, "detail": "auto"}},
        ]
    )
    assert place.seen() == [system("Be short."), asked]
    assert first["instructions"] == "Be short."
    [item] = place.api.get(f"/responses/{first['id']}/input_items").json()["data"]
    assert item["content"][0] == {"type": "input_text", "text": "Tell of dragons in [Image: photo]."}
    place.update(prompt, 1, "Something else.")
    place.model.script(Reply(text="No."))
    place.api.create(input="And?", previous_response_id=first["id"])
    assert place.seen() == [asked, {"role": "assistant", "content": "Yes."}, user("And?")]


def test_with_a_history_and_no_input_the_prompt_stays_in_the_instructions(place: Place) -> None:
    prompt = place.prompt("Say it again.")
    place.model.script(Reply(text="No."))
    first = place.api.create(input="Hello")
    place.ask(prompt, [], previous_response_id=first["id"])
    assert place.seen() == [system("Say it again."), user("Hello"), {"role": "assistant", "content": "No."}]


def test_a_conversation_begins_with_the_prompt_where_there_is_no_input(place: Place) -> None:
    prompt = place.prompt("Begin.")
    conversation = place.api.post("/conversations").json()["id"]
    place.ask(prompt, None, conversation=conversation)
    items = place.api.get(f"/conversations/{conversation}/items?order=asc").json()["data"]
    assert [(item["role"], item["content"][0]["text"]) for item in items] == [("user", "Begin."), ("assistant", "Yes.")]


def test_a_prompt_without_a_model_takes_the_servers_default(place: Place) -> None:
    prompt = place.prompt("Begin.")
    place.model.script(Reply(text="Yes."))
    reply = place.api.http.post(f"{place.api.server.url}/responses", json={"prompt": {"id": prompt}})
    assert (reply.status_code, reply.json()["model"]) == (200, "able/scripted")


def test_rounds_of_tools_see_the_prompt_too(place: Place) -> None:
    prompt = place.prompt("Use {{ it }}.", "it")
    values = {"it": image(image_url=DATA)}
    place.model.script(Reply(calls=[Call("get_weather", {})]))
    named = {"id": prompt, "variables": values}
    first = place.api.create(model="able/scripted", input="Hello", prompt=named, tools=[FUNCTION])
    output = {"type": "function_call_output", "call_id": first["output"][0]["call_id"], "output": "rain"}
    place.ask(prompt, [output], values=values, previous_response_id=first["id"], tools=[FUNCTION])
    assert [message["role"] for message in place.seen()] == ["system", "user", "user", "assistant", "tool"]


def test_every_round_with_tools_of_an_mcp_server_sees_the_prompt(place: Place, mcp: FakeMcpServer) -> None:
    prompt = place.prompt("Use {{ it }}.", "it")
    place.model.script(Reply(calls=[Call("echo", {"text": "a"})]))
    place.ask(prompt, values={"it": image(image_url=DATA)}, tools=[declared(mcp)])
    assert len(mcp.calls) == 1
    for number in (1, 2):
        first, picture, *_ = sent(place.model, number)
        assert first == system("Use [Image: it].")
        assert picture["content"][1]["image_url"]["url"] == DATA


def test_counting_tokens_counts_the_prompt(place: Place) -> None:
    prompt = place.prompt("word " * 100 + "{{ x }}", "x")

    def count(**more: Any) -> int:
        reply = place.api.post("/responses/input_tokens", input="Hello", **more)
        assert reply.status_code == 200, reply.text
        found: int = reply.json()["input_tokens"]
        return found

    bare = count()
    some = count(prompt={"id": prompt, "variables": {"x": "a"}})
    more = count(prompt={"id": prompt, "variables": {"x": "a " * 50}})
    assert bare + 90 < some < more - 20
    fault = error(place.api.post("/responses/input_tokens", input="Hello", prompt={"id": prompt}), 400)
    assert fault["param"] == "prompt.variables.x"


# ------------------------------------------------------------------------------------------------ plain replacement


@behaviour("prompt-plain")
@pytest.mark.parametrize(
    "value",
    [
        "{{ other }}",
        "{{other}}{{ x }}",
        "{{ 7 * 7 }}",
        "{% for a in b %}{{ a }}{% endfor %}",
        "{{ x.__class__.__mro__ }}",
        "{0} {x} {x!r} %s %(x)s ${x} $(id) `id`",
        r"\1 \g<0> \\ \x41",
        "}} {{",
        "\x00\u202e😀",
        "",
    ],
)
def test_a_value_is_put_in_as_it_is_and_never_read_again(place: Place, value: str) -> None:
    prompt = place.prompt("<{{ x }}|{{other}}|{{x}}>", "x", "other")
    place.ask(prompt, values={"x": value, "other": "O"})
    assert place.seen()[0] == system(f"<{value}|O|{value}>")


@behaviour("prompt-plain")
def test_what_only_looks_like_a_placeholder_is_text(place: Place) -> None:
    written = r"{{ 7*7 }} {{ a.b }} {{ a|upper }} {{ a b }} {{}} {{ }} {x} {%x%} {{{ x }}} ${x} {{ x }"
    prompt = place.prompt(written, "x")
    place.ask(prompt, values={"x": "X"})
    assert place.seen()[0] == system(written.replace("{{ x }}", "X"))


def test_names_of_any_alphabet_and_any_blanks_work(place: Place) -> None:
    prompt = place.prompt("{{名字}} {{\n\tnaïve_1 }}", "名字", "naïve_1")
    place.ask(prompt, values={"名字": "A", "naïve_1": "B"})
    assert place.seen()[0] == system("A B")


@behaviour("prompt-plain")
def test_values_in_many_places_cannot_fill_the_memory(place: Place) -> None:
    prompt = place.prompt("{{x}}" * 20_000, "x")
    fault = place.refused({"id": prompt, "variables": {"x": "y" * 100_000}})
    assert (fault["param"], fault["code"]) == ("prompt.variables", "string_above_max_length")
    place.ask(prompt, values={"x": "y" * 100})
    assert len(place.seen()[0]["content"]) == 2_000_000


# ---------------------------------------------------------------------------------------------- images and files


def test_images_and_files_follow_the_text_under_their_names(place: Place) -> None:
    prompt = place.prompt("Compare {{ paper }} with {{ photo }}, {{ photo }} first.", "photo", "paper")
    paper, by_id = b"%PDF-1.4 no more", place.upload(PNG, "a.png")
    by_url = place.web.page("/a.png", PNG, "image/png")
    inline = f"data:application/pdf;base64,{b64encode(paper).decode()}"
    for given in ({"file_id": by_id}, {"image_url": by_url}, {"image_url": DATA}):
        values = {"paper": file(file_data=inline, filename="p.pdf"), "photo": image(detail="low", **given)}
        response = place.ask(prompt, values=values)
        assert place.seen() == [
            system("Compare [File: paper] with [Image: photo], [Image: photo] first."),
            user(
                [
                    text("[Image: photo]"),
                    {"type": "image_url", "image_url": {"url": DATA, "detail": "low"}},
                    text("[File: paper]"),
                    {"type": "file", "file": {"file_data": inline, "filename": "p.pdf"}},
                ]
            ),
            user("Hello"),
        ]
        echoed = response["prompt"]["variables"]
        assert echoed["paper"] == values["paper"]
        assert {name: value for name, value in echoed["photo"].items() if value} == values["photo"]


def test_a_model_that_takes_no_files_gets_their_text(place: Place) -> None:
    prompt = place.prompt("Review {{ contract }}.", "contract")
    by_id = place.upload(b"Clause 4: tea at five.", "contract.txt")
    place.ask(prompt, values={"contract": file(file_id=by_id)}, model="plain/scripted")
    assert "Clause 4: tea at five." in place.seen()[1]["content"]


def test_a_picture_that_no_placeholder_names_is_shown_all_the_same(place: Place) -> None:
    prompt = place.prompt("Describe it.", "it")
    place.ask(prompt, values={"it": image(image_url=DATA)})
    assert place.seen()[1]["content"][1]["image_url"]["url"] == DATA


@behaviour("prompt-refused")
@pytest.mark.parametrize(
    ("value", "status", "param"),
    [
        (image(file_id="file-unknown"), 404, "prompt.variables.x.file_id"),
        (file(file_id="../../etc/passwd"), 404, "prompt.variables.x.file_id"),
        (image(), 400, "prompt.variables.x.image_url"),
        (file(filename="a"), 400, "prompt.variables.x.file_data"),
        (image(image_url="http://169.254.169.254/latest/meta-data"), 400, "prompt.variables.x.image_url"),
        (file(file_url="http://10.0.0.1/"), 400, "prompt.variables.x.file_url"),
        (file(file_url="file:///etc/passwd"), 400, "prompt.variables.x.file_url"),
        (file(file_data="%%%"), 400, "prompt.variables.x.file_data"),
        (image(image_url="x", detail="huge"), 400, "prompt.variables.x.detail"),
        ({"type": "input_audio", "input_audio": {"data": "", "format": "mp3"}}, 400, "prompt.variables.x.type"),
        ({"type": "output_text", "text": "a"}, 400, "prompt.variables.x.type"),
        ({"type": "input_text"}, 400, "prompt.variables.x.text"),
        ({"text": "a"}, 400, "prompt.variables.x.type"),
        ({"type": "input_text", "text": 5}, 400, "prompt.variables.x.text"),
        (None, 400, "prompt.variables.x"),
        (5, 400, "prompt.variables.x"),
        (["a"], 400, "prompt.variables.x"),
    ],
)
def test_a_value_that_cannot_be_is_refused_by_name(place: Place, value: Any, status: int, param: str) -> None:
    prompt = place.prompt("See {{ x }}.", "x")
    named = {"id": prompt, "variables": {"x": value}}
    for more in ({}, {"input": None}):
        fault = place.refused(named, status, **more)
        assert fault["param"] == param, fault


@behaviour("prompt-refused")
def test_a_picture_too_many_and_an_address_that_is_not_there_are_refused_by_name(place: Place) -> None:
    prompt = place.prompt("See {{ a }} {{ b }}.", "a", "b")
    gone = place.web.page("/gone.png", "", status=404)
    fault = place.refused({"id": prompt, "variables": {"a": image(image_url=gone), "b": "x"}})
    assert (fault["param"], fault["code"]) == ("prompt.variables.a.image_url", "failed_to_download_image")
    values = {name: image(file_id=place.upload(PNG + bytes(2_000_000), "a.png")) for name in ("a", "b")}
    fault = place.refused({"id": prompt, "variables": values}, 413)
    assert fault["param"].startswith("prompt.variables.")


@behaviour("prompt-refused")
def test_variables_that_are_missing_or_unknown_are_named(place: Place) -> None:
    prompt = place.prompt("{{ a }} {{ b }}", "a", "b", "unused")
    for variables in (None, {}, {"b": "x"}):
        fault = place.refused({"id": prompt, "variables": variables})
        assert (fault["param"], fault["code"]) == ("prompt.variables.a", "missing_required_parameter")
    for name in ("c", "A", "", "a ", "a.b", "__class__", "n" * 500, "\x00"):
        fault = place.refused({"id": prompt, "variables": {"a": "1", "b": "2", name: "3"}})
        assert fault["param"] == f"prompt.variables.{name[:64]}"
    many = {f"v{n}": "x" for n in range(101)}
    assert place.refused({"id": prompt, "variables": many})["param"] == "prompt.variables"
    place.ask(prompt, values={"a": "1", "b": "2"})
    place.update(prompt, 1, "{{ b }}", "b")
    assert place.refused({"id": prompt, "variables": {"a": "1", "b": "2"}})["param"] == "prompt.variables.a"


@behaviour("prompt-refused")
@pytest.mark.parametrize(
    ("prompt", "status", "param"),
    [
        ({"id": UNKNOWN}, 404, "prompt.id"),
        ({"id": UNKNOWN, "version": "1"}, 404, "prompt.id"),
        ({"id": "a\x00b"}, 404, "prompt.id"),
        ({"id": ""}, 400, "prompt.id"),
        ({"id": 5}, 400, "prompt.id"),
        ({"id": "x" * 257}, 400, "prompt.id"),
        ({}, 400, "prompt.id"),
        ("pmpt_x", 400, "prompt"),
        ([], 400, "prompt"),
        ({"id": UNKNOWN, "variables": []}, 400, "prompt.variables"),
        ({"id": UNKNOWN, "version": 1.5}, 400, "prompt.version"),
    ],
)
def test_a_prompt_that_is_not_there_or_not_named_is_refused(place: Place, prompt: Any, status: int, param: str) -> None:
    fault = place.refused(prompt, status)
    assert fault["param"] == param, fault
    if status == 404:
        assert "not found" in fault["message"]


@behaviour("prompt-refused")
def test_a_version_that_is_not_there_is_refused(place: Place) -> None:
    prompt = place.prompt("One.")
    for version in ("2", "0", "99", str(2**31), "9" * 20, 0, 2**40):
        assert place.refused({"id": prompt, "version": version}, 404)["param"] == "prompt.version", version
    for version in ("", "x", "-1", "1.0", " 1", "1\n", "１", "latest", "9" * 21, -1):
        assert place.refused({"id": prompt, "version": version})["param"] == "prompt.version", version
