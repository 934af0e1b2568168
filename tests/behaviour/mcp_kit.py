"""What the MCP tests share: declarations, the items of a response by kind, and approvals."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from treadle.testing.mcp import FakeMcpServer


def declared(fake: FakeMcpServer | str, label: str = "fake", **more: Any) -> dict[str, Any]:
    url = fake if isinstance(fake, str) else fake.url
    return {"type": "mcp", "server_label": label, "server_url": url, **more}


def items(response: Mapping[str, Any], kind: str) -> list[dict[str, Any]]:
    return [item for item in response["output"] if item["type"] == kind]


def calls(response: Mapping[str, Any]) -> list[dict[str, Any]]:
    return items(response, "mcp_call")


def listed(response: Mapping[str, Any]) -> dict[str, list[str]]:
    """The names of tools by label, of the lists in a response."""
    return {
        item["server_label"]: [tool["name"] for tool in item["tools"]] for item in items(response, "mcp_list_tools")
    }


def asked(response: Mapping[str, Any]) -> dict[str, Any]:
    """The one approval request of a response."""
    (request,) = items(response, "mcp_approval_request")
    return request


def answer(request: Mapping[str, Any] | str, approve: bool = True, reason: str | None = None) -> dict[str, Any]:
    request_id = request if isinstance(request, str) else request["id"]
    found: dict[str, Any] = {
        "type": "mcp_approval_response",
        "approval_request_id": request_id,
        "approve": approve,
    }
    return found if reason is None else {**found, "reason": reason}


def offered(body: Mapping[str, Any]) -> list[str]:
    """The functions that a request to the model offers."""
    return [tool["function"]["name"] for tool in body.get("tools") or ()]


def roles(messages: list[dict[str, Any]]) -> list[str]:
    return [message["role"] for message in messages]


def outputs(messages: list[dict[str, Any]]) -> list[str]:
    """What the model was told of its calls, in order."""
    return [message["content"] for message in messages if message["role"] == "tool"]


def well_formed(messages: list[dict[str, Any]]) -> None:
    """Each message with calls is followed by the output of each, in order, and no output stands anywhere else."""
    at = 0
    while at < len(messages):
        made = [call["id"] for call in messages[at].get("tool_calls") or ()]
        assert messages[at]["role"] != "tool", f"message {at} answers no call"
        told = [message.get("tool_call_id") for message in messages[at + 1 : at + 1 + len(made)]]
        assert told == made, f"message {at}: calls {made}, outputs {told}"
        at += 1 + len(made)
