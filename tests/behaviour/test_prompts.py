"""Stored prompts: versions, the default one, lists, and what is refused."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.behaviour.kit import error
from tests.behaviour.manifest import behaviour
from tests.behaviour.prompts_kit import UNKNOWN, Place, place, running

__all__ = ["place", "running"]


def test_a_prompt_is_made_read_and_deleted(place: Place) -> None:
    made = place.api.post("/prompts", prompt="Be {{ tone }}.", variables=["tone", "unused"]).json()
    assert made == {
        "id": made["prompt_id"],
        "object": "prompt",
        "created_at": made["created_at"],
        "prompt_id": made["prompt_id"],
        "prompt": "Be {{ tone }}.",
        "version": 1,
        "variables": ["tone", "unused"],
        "is_default": True,
    }
    assert len(made["id"]) == 53
    assert int(made["id"].removeprefix("pmpt_"), 16), "clients look for 48 hex digits"
    path = f"/prompts/{made['id']}"
    assert place.api.get(path).json() == place.api.get(f"{path}?version=1").json() == made
    assert place.api.delete(path).json() == {"id": made["id"], "object": "prompt.deleted", "deleted": True}
    for reply in (place.api.get(path), place.api.delete(path), place.api.get(f"{path}/versions")):
        assert error(reply, 404)["param"] == "prompt_id"
    assert place.refused({"id": made["id"]}, 404)["param"] == "prompt.id"


def test_each_update_is_a_new_version_and_old_ones_stay(place: Place) -> None:
    prompt = place.prompt("One.")
    second = place.update(prompt, 1, "Two {{ x }}.", "x")
    assert (second["version"], second["is_default"], second["variables"]) == (2, True, ["x"])
    third = place.update(prompt, 2, "Three.", set_as_default=False)
    assert (third["version"], third["is_default"]) == (3, False)
    assert place.api.get(f"/prompts/{prompt}").json() == second
    assert place.api.get(f"/prompts/{prompt}?version=3").json() == third
    listed = place.api.get(f"/prompts/{prompt}/versions").json()
    assert [(one["version"], one["prompt"], one["is_default"]) for one in listed["data"]] == [
        (1, "One.", False),
        (2, "Two {{ x }}.", True),
        (3, "Three.", False),
    ]
    assert (listed["first_id"], listed["last_id"], listed["has_more"]) == ("1", "3", False)
    chosen = place.put(f"/prompts/{prompt}/set-default-version", version=1).json()
    assert (chosen["version"], chosen["is_default"]) == (1, True)
    assert place.api.get(f"/prompts/{prompt}").json() == chosen
    fourth = place.update(prompt, 3, "Four.")
    assert fourth["version"] == 4, "the latest counts, not the default one"


def test_versions_are_paged_by_number(place: Place) -> None:
    prompt = place.prompt("One.")
    for version in (1, 2, 3):
        place.update(prompt, version, "More.")
    path, found, after = f"/prompts/{prompt}/versions?limit=2", [], ""
    while True:
        page = place.api.get(path + after).json()
        found += [one["version"] for one in page["data"]]
        if not page["has_more"]:
            break
        after = f"&after={page['last_id']}"
    assert found == [1, 2, 3, 4]
    falling = place.api.get(f"{path}&order=desc&after=4").json()
    assert [one["version"] for one in falling["data"]] == [3, 2]
    assert falling["has_more"] is True


def test_the_list_is_paged_and_shows_default_versions(place: Place) -> None:
    prompts = [place.prompt(f"Number {n}.") for n in range(3)]
    place.update(prompts[1], 1, "Better.")
    place.update(prompts[2], 1, "Later.", set_as_default=False)
    page = place.api.get("/prompts?limit=2").json()
    assert [(one["id"], one["prompt"]) for one in page["data"]] == [
        (prompts[2], "Number 2."),
        (prompts[1], "Better."),
    ]
    assert (page["object"], page["first_id"], page["last_id"]) == ("list", prompts[2], prompts[1])
    assert page["has_more"] is True
    rest = place.api.get(f"/prompts?limit=1&after={page['last_id']}").json()
    assert [one["id"] for one in rest["data"]] == [prompts[0]]
    rising = place.api.get(f"/prompts?order=asc&after={prompts[0]}").json()
    assert [one["id"] for one in rising["data"]] == prompts[1:]
    assert rising["has_more"] is False


@behaviour("prompt-race")
def test_of_several_updates_at_once_exactly_one_succeeds(place: Place) -> None:
    prompt = place.prompt("One.")
    with ThreadPoolExecutor(8) as pool:
        asked = [
            pool.submit(place.put, f"/prompts/{prompt}", prompt=f"By {n}.", version=1, variables=[]) for n in range(16)
        ]
        replies = [one.result(timeout=20) for one in asked]
    [winner] = [reply.json() for reply in replies if reply.status_code == 200]
    for reply in replies:
        if reply.status_code != 200:
            assert (error(reply, 400)["param"], error(reply, 400)["code"]) == ("version", "stale_version")
    assert place.api.get(f"/prompts/{prompt}").json() == winner
    assert len(place.api.get(f"/prompts/{prompt}/versions").json()["data"]) == 2


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": 5}, "prompt"),
        ({"prompt": "x" * 262_145}, "prompt"),
        ({"prompt": "{{ role }}"}, "variables"),
        ({"prompt": "{{role}} {{\n  x\t}}", "variables": ["role"]}, "variables"),
        ({"prompt": "{{ " + "n" * 65 + " }}"}, "variables"),
        ({"prompt": "A", "variables": "role"}, "variables"),
        ({"prompt": "A", "variables": [""]}, "variables[0]"),
        ({"prompt": "A", "variables": ["a", "b c"]}, "variables[1]"),
        ({"prompt": "A", "variables": ["a.b"]}, "variables[0]"),
        ({"prompt": "A", "variables": ["a\n"]}, "variables[0]"),
        ({"prompt": "A", "variables": ["a", "a"]}, "variables[1]"),
        ({"prompt": "A", "variables": ["n" * 65]}, "variables[0]"),
        ({"prompt": "A", "variables": [None]}, "variables[0]"),
        ({"prompt": "A", "variables": [f"v{n}" for n in range(101)]}, "variables"),
    ],
)
def test_a_prompt_that_cannot_be_is_refused_when_made_and_when_changed(
    place: Place, body: dict[str, Any], param: str
) -> None:
    fault = error(place.api.http.post(f"{place.api.server.url}/prompts", json=body), 400)
    assert fault["param"] == param, fault
    prompt = place.prompt("One.")
    fault = error(place.put(f"/prompts/{prompt}", version=1, **body), 400)
    assert fault["param"] == param, fault
    assert place.api.get(f"/prompts/{prompt}").json()["version"] == 1


def test_undeclared_placeholders_are_named(place: Place) -> None:
    fault = error(place.api.post("/prompts", prompt="{{ a }} {{b}} {{ 名 }} {{ b }}", variables=["a"]), 400)
    assert "undeclared variables: b, 名." in fault["message"]


@pytest.mark.parametrize(
    "prompt", [UNKNOWN, "pmpt_x", "x", "%00", "☃", "x" * 300, "..%2f..%2fetc", "pmpt_%27%20OR%201"]
)
def test_an_unknown_prompt_is_a_404_everywhere(place: Place, prompt: str) -> None:
    path = f"/prompts/{prompt}"
    replies = [
        place.api.get(path),
        place.api.get(f"{path}?version=1"),
        place.api.get(f"{path}/versions"),
        place.api.delete(path),
        place.put(path, prompt="A", version=1),
        place.put(f"{path}/set-default-version", version=1),
    ]
    for reply in replies:
        fault = error(reply, 404)
        if "%2f" not in prompt:  # as a slash it makes another path
            assert fault["param"] == "prompt_id"
            assert "not found" in fault["message"]


def test_an_unknown_version_is_a_404_that_names_it(place: Place) -> None:
    prompt = place.prompt("One.")
    for reply in (
        place.api.get(f"/prompts/{prompt}?version=2"),
        place.put(f"/prompts/{prompt}/set-default-version", version=2),
        place.put(f"/prompts/{prompt}/set-default-version", version=2**31 - 1),
    ):
        fault = error(reply, 404)
        assert (fault["param"], "Version 2" in fault["message"]) == ("version", True)
    assert place.api.get(f"/prompts/{prompt}").json()["version"] == 1


def test_versions_and_cursors_out_of_range_are_refused(place: Place) -> None:
    prompt = place.prompt("One.")
    for value in ("0", "-1", "x", "1.5", "2147483648", "9" * 40, "１"):
        assert error(place.api.get(f"/prompts/{prompt}?version={value}"), 400)["param"] == "version", value
        assert error(place.api.get(f"/prompts/{prompt}/versions?after={value}"), 400)["param"] == "after", value
    for version in (0, -1, 2**31, "1", None, 1.5, True, [1]):
        for path in (f"/prompts/{prompt}", f"/prompts/{prompt}/set-default-version"):
            assert error(place.put(path, prompt="A", version=version), 400)["param"] == "version", version
    for path in (f"/prompts/{prompt}", f"/prompts/{prompt}/set-default-version"):
        assert error(place.put(path, prompt="A"), 400)["param"] == "version"
    for query, param in (
        ("after=" + UNKNOWN, "after"),
        ("limit=0", "limit"),
        ("limit=101", "limit"),
        ("order=x", "order"),
    ):
        assert error(place.api.get(f"/prompts?{query}"), 400)["param"] == param
