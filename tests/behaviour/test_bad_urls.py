"""Paths, queries and verbs that lead nowhere are a 4xx in the one envelope, with the parameter if one is at fault."""

from __future__ import annotations

import pytest

from tests.behaviour import refusals
from tests.behaviour.conftest import Driver
from tests.behaviour.manifest import behaviour
from tests.behaviour.refusals import ITEM, refused

bad = refusals.bad


@behaviour("input-unknown-model")
@pytest.mark.parametrize("name", ["nobody/nothing", "a%00b", "x" * 3000, "%ff", "a%2Fb/c", "..%2f..%2fetc"])
def test_an_unknown_model_cannot_be_read(bad: Driver, name: str) -> None:
    refused(bad.get(f"/models/{name}"), 404, param="model", code="model_not_found")


QUERIES = [
    ("limit=0", "limit"),
    ("limit=101", "limit"),
    ("limit=-1", "limit"),
    ("limit=x", "limit"),
    ("limit=1.5", "limit"),
    ("limit=1_0", "limit"),
    ("limit=%D9%A3", "limit"),
    ("limit=" + "9" * 5000, "limit"),
    ("order=up", "order"),
    ("order=%00", "order"),
    ("after=unknown", "after"),
    ("after=%00", "after"),
    ("after=" + "x" * 5000, "after"),
]


@behaviour("also-input-items")
@pytest.mark.parametrize(("query", "param"), QUERIES, ids=[query[:20] for query, _ in QUERIES])
def test_bad_query_values_are_named(bad: Driver, query: str, param: str) -> None:
    made = bad.post("/conversations", items=[ITEM]).json()["id"]
    for path in ("/responses", f"/conversations/{made}/items"):
        refused(bad.get(f"{path}?{query}"), 400, param=param)


@pytest.mark.parametrize("query", ["include=all", "include[]=all", "include[]=%00", "include%5B%5D=x&include=y"])
def test_an_unknown_include_is_named(bad: Driver, query: str) -> None:
    made = bad.post("/conversations", items=[ITEM]).json()
    items = f"/conversations/{made['id']}/items"
    for path in (items, f"{items}/msg_1", "/responses/resp_1", "/responses/resp_1/input_items"):
        refused(bad.get(f"{path}?{query}"), 400, param="include")


def test_unknown_query_parameters_do_no_harm(bad: Driver) -> None:
    for query in ("a=b", "%00=%ff", "=", "&&&", "limit=1&limit=2", "after=", "limit="):
        assert bad.get(f"/responses?{query}").status_code == 200


PATHS = [
    "/",
    "/v1",
    "/v2/responses",
    "/v1/nothing",
    "/v1//responses",
    "/v1/responses/a/b/c",
    "/v1/%2e%2e/x",
    "/v1/x%00",
    "/%ff",
]


@pytest.mark.parametrize("path", PATHS)
def test_unknown_paths_are_404_in_the_envelope(bad: Driver, path: str) -> None:
    refused(bad.http.get(bad.server.root + path), 404, code="not_found")


VERBS = [
    ("PUT", "/v1/responses", "GET, HEAD, POST"),
    ("PATCH", "/v1/responses/resp_1", "DELETE, GET, HEAD"),
    ("DELETE", "/v1/responses", "GET, HEAD, POST"),
    ("GET", "/v1/responses/input_tokens", "POST"),
    ("GET", "/v1/conversations", "POST"),
    ("OPTIONS", "/v1/responses", "GET, HEAD, POST"),
    ("TRACE", "/v1/models", "GET, HEAD"),
    ("PROPFIND", "/v1/models", "GET, HEAD"),
    ("POST", "/v1/health", "GET, HEAD"),
]


@pytest.mark.parametrize(("verb", "path", "allowed"), VERBS)
def test_a_wrong_verb_is_a_405_that_says_what_is_allowed(bad: Driver, verb: str, path: str, allowed: str) -> None:
    reply = bad.http.request(verb, bad.server.root + path)
    refused(reply, 405, code="method_not_allowed")
    assert reply.headers["allow"] == allowed


def test_a_name_of_an_action_is_no_response(bad: Driver) -> None:
    refused(bad.get("/responses/compact"), 405, code="method_not_allowed")


def test_head_is_answered_like_get_without_a_body(bad: Driver) -> None:
    for path, status in (("/models", 200), ("/health", 200), ("/responses/resp_1", 404)):
        reply = bad.http.head(bad.server.url + path)
        assert (reply.status_code, reply.content) == (status, b"")


def test_a_trailing_slash_changes_nothing(bad: Driver) -> None:
    assert bad.get("/models/").json() == bad.get("/models").json()
    refused(bad.post("/responses/", input=5), param="input")
    refused(bad.get("/responses/resp_1/"), 404, param="response_id")
