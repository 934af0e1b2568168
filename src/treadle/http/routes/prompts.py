"""`/v1/prompts`."""

from __future__ import annotations

import msgspec
from starlette.requests import Request

from treadle.api.prompts import PromptService
from treadle.http import query
from treadle.http.bodies import read_json
from treadle.http.endpoints import Answer, Endpoint, Parameter
from treadle.http.replies import reply
from treadle.http.routes.parameters import AFTER, ORDER, limit
from treadle.scope import LOCAL
from treadle.wire.prompts import (
    MAX_VERSION,
    CreatePrompt,
    Prompt,
    PromptDeleted,
    PromptList,
    SetDefaultVersion,
    UpdatePrompt,
)

_create = msgspec.json.Decoder(CreatePrompt)
_update = msgspec.json.Decoder(UpdatePrompt)
_choose = msgspec.json.Decoder(SetDefaultVersion)
_ALL = "/v1/prompts"
_ONE = _ALL + "/{prompt_id}"
_PAGE = 100
"""OGX's clients take a list for whole, so as much as there may be in one is given at once."""
_NUMBER: dict[str, object] = {"type": "integer", "minimum": 1, "maximum": MAX_VERSION}
_VERSION = Parameter(name="version", schema=_NUMBER, description="The default version if there is none here.")
_AFTER = Parameter(name="after", schema=_NUMBER, description="Show what follows this version.")
_RISING = Parameter(name="order", schema={"type": "string", "enum": ["asc", "desc"], "default": "asc"})


class PromptRoutes:
    """Endpoints over the use cases of prompts."""

    def __init__(self, service: PromptService, max_body: int) -> None:
        self._service = service
        self._max_body = max_body

    def endpoints(self) -> list[Endpoint]:
        return [
            Endpoint(
                method="POST",
                path=_ALL,
                name="createPrompt",
                summary="Create a prompt.",
                action=self.create,
                body=CreatePrompt,
                result=Prompt,
                statuses=(413, 415, 503),
            ),
            Endpoint(
                method="GET",
                path=_ALL,
                name="listPrompts",
                summary="List prompts, each in its default version.",
                action=self.list,
                result=PromptList,
                statuses=(503,),
                parameters=(AFTER, limit(_PAGE), ORDER),
            ),
            Endpoint(
                method="GET",
                path=_ONE,
                name="getPrompt",
                summary="Retrieve a prompt.",
                action=self.get,
                result=Prompt,
                statuses=(404, 503),
                parameters=(_VERSION,),
            ),
            Endpoint(
                method="PUT",
                path=_ONE,
                name="updatePrompt",
                summary="Add a version to a prompt.",
                action=self.update,
                body=UpdatePrompt,
                result=Prompt,
                statuses=(404, 413, 415, 503),
            ),
            Endpoint(
                method="DELETE",
                path=_ONE,
                name="deletePrompt",
                summary="Delete a prompt with all its versions.",
                action=self.delete,
                result=PromptDeleted,
                statuses=(404, 503),
            ),
            Endpoint(
                method="GET",
                path=_ONE + "/versions",
                name="listPromptVersions",
                summary="List the versions of a prompt; the cursors are their numbers.",
                action=self.versions,
                result=PromptList,
                statuses=(404, 503),
                parameters=(_AFTER, limit(_PAGE), _RISING),
            ),
            Endpoint(
                method="PUT",
                path=_ONE + "/set-default-version",
                name="setDefaultPromptVersion",
                summary="Choose the version that is used where none is named.",
                action=self.set_default,
                body=SetDefaultVersion,
                result=Prompt,
                statuses=(404, 413, 415, 503),
            ),
        ]

    async def create(self, request: Request) -> Answer:
        return reply(await self._service.create(LOCAL, await read_json(request, _create, self._max_body)))

    async def list(self, request: Request) -> Answer:
        return reply(
            await self._service.list(
                LOCAL,
                after=query.text(request, "after"),
                limit=query.integer(request, "limit", _PAGE, 1, 100),
                order=query.order(request),
            )
        )

    async def get(self, request: Request) -> Answer:
        return reply(await self._service.get(LOCAL, _id(request), _version(request, "version")))

    async def update(self, request: Request) -> Answer:
        wanted = await read_json(request, _update, self._max_body)
        return reply(await self._service.update(LOCAL, _id(request), wanted))

    async def delete(self, request: Request) -> Answer:
        return reply(await self._service.delete(LOCAL, _id(request)))

    async def versions(self, request: Request) -> Answer:
        return reply(
            await self._service.versions(
                LOCAL,
                _id(request),
                after=_version(request, "after"),
                limit=query.integer(request, "limit", _PAGE, 1, 100),
                order=query.order(request) if query.text(request, "order") else "asc",
            )
        )

    async def set_default(self, request: Request) -> Answer:
        wanted = await read_json(request, _choose, self._max_body)
        return reply(await self._service.set_default(LOCAL, _id(request), wanted.version))


def _id(request: Request) -> str:
    found: str = request.path_params["prompt_id"]
    return found


def _version(request: Request, name: str) -> int | None:
    return query.integer(request, name, 0, 1, MAX_VERSION) or None
