"""Tool results that are too long to show: the whole is a file of the caller, and what cannot be kept is said."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from tests.behaviour.conftest import LOOPBACK, sent
from tests.behaviour.kit import LOOKUP, Lookup, serving
from tests.behaviour.manifest import behaviour
from tests.behaviour.mcp_kit import declared
from treadle.testing.mcp import FakeMcpServer
from treadle.testing.turns import Call, Reply
from treadle.testing.upstream import ScriptedUpstream

LONG = "".join(f"line {number} naïve 😀\n" for number in range(20_000))
SHOWN = 262_144


def script(model: ScriptedUpstream) -> None:
    model.script(Reply(calls=[Call("look")]), Reply(text="Long."))


def output(response: dict[str, Any]) -> str:
    [item] = [item for item in response["output"] if item["type"] == "function_call_output"]
    found: str = item["output"]
    return found


def test_the_whole_of_a_long_result_is_a_file(tmp_path: Path, model: ScriptedUpstream) -> None:
    with serving(tmp_path, model, tool=Lookup(LONG)) as api:
        script(model)
        response = api.create(input="Look.", tools=[LOOKUP])
        told = output(response)
        assert told[:SHOWN] == LONG[:SHOWN]
        note = told[SHOWN:]
        found = re.fullmatch(
            r"\n\[(\d+) more characters were cut off\. Full text: (file-[0-9a-f]+), GET /v1/files/\2/content\]", note
        )
        assert found is not None, note
        assert int(found[1]) == len(LONG) - SHOWN
        assert sent(model, 2)[-1]["content"] == told
        content = api.get(f"/files/{found[2]}/content")
        assert content.content.decode() == LONG
        assert content.headers["content-type"] == "text/plain"
        file = api.get(f"/files/{found[2]}").json()
        assert (file["filename"], file["purpose"]) == ("look.txt", "user_data")
        assert file["expires_at"] - file["created_at"] == 30 * 86_400


def test_a_result_that_fits_is_no_file(tmp_path: Path, model: ScriptedUpstream) -> None:
    with serving(tmp_path, model, tool=Lookup("x" * SHOWN)) as api:
        script(model)
        assert output(api.create(input="Look.", tools=[LOOKUP])) == "x" * SHOWN
        assert api.get("/files").json()["data"] == []


@behaviour("bug-37")
def test_nothing_is_kept_for_a_response_that_is_not_stored(tmp_path: Path, model: ScriptedUpstream) -> None:
    with serving(tmp_path, model, tool=Lookup(LONG)) as api:
        script(model)
        told = output(api.create(input="Look.", tools=[LOOKUP], store=False))
        assert re.fullmatch(r"\n\[\d+ more characters were cut off\.\]", told[SHOWN:])
        assert api.get("/files").json()["data"] == []
        assert not (tmp_path / "blobs").exists()


def test_what_cannot_be_kept_is_said(tmp_path: Path, model: ScriptedUpstream) -> None:
    with serving(tmp_path, model, tool=Lookup(LONG)) as api:
        (tmp_path / "blobs").write_text("a file where the folder should be")
        script(model)
        response = api.create(input="Look.", tools=[LOOKUP])
        assert response["status"] == "completed"
        assert "Keeping the full text as a file failed: The file could not be stored" in output(response)[SHOWN:]


def test_the_setting_says_how_long_it_lives(tmp_path: Path, model: ScriptedUpstream) -> None:
    with serving(tmp_path, model, "files: {kept_days: 2}", tool=Lookup(LONG)) as api:
        script(model)
        api.create(input="Look.", tools=[LOOKUP])
        [file] = api.get("/files").json()["data"]
        assert file["expires_at"] - file["created_at"] == 2 * 86_400


@behaviour("bug-52")
def test_the_whole_of_a_long_mcp_result_is_a_file(tmp_path: Path, model: ScriptedUpstream, mcp: FakeMcpServer) -> None:
    with serving(tmp_path, model, LOOPBACK) as api:
        model.script(Reply(calls=[Call("big", {"size": 5_000_000})]), Reply(text="Long."))
        response = api.create(input="Get it.", tools=[declared(mcp)])
        [call] = [item for item in response["output"] if item["type"] == "mcp_call"]
        [file] = api.get("/files").json()["data"]
        assert (file["bytes"], file["filename"]) == (5_000_000, "big.txt")
        assert call["output"].endswith(f"Full text: {file['id']}, GET /v1/files/{file['id']}/content]")
