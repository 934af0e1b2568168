"""A moderator behind an endpoint that speaks OpenAI's `/v1/moderations`."""

from __future__ import annotations

import aiohttp
import msgspec

from treadle import ports
from treadle.errors import ModerationUnavailable
from treadle.ports import Verdict
from treadle.wire.base import encode

MAX_BYTES = 1_048_576
"""Of an answer."""


class _Result(msgspec.Struct):
    flagged: bool
    categories: dict[str, bool | None] = {}
    category_scores: dict[str, float | None] = {}


class _Answer(msgspec.Struct):
    results: list[_Result]
    model: str = ""


_answer = msgspec.json.Decoder(_Answer)


class HttpModerator(ports.Moderator):
    """Needs the running loop once it judges; close it. The address and the headers are the operator's."""

    def __init__(self, url: str, headers: dict[str, str], *, timeout_seconds: float) -> None:
        self._url = url
        self._headers = {**headers, "content-type": "application/json"}
        self._timeout = aiohttp.ClientTimeout(total=timeout_seconds)
        self._session: aiohttp.ClientSession | None = None

    async def judge(self, text: str, model: str = "") -> Verdict:
        if self._session is None:
            self._session = aiohttp.ClientSession(timeout=self._timeout, cookie_jar=aiohttp.DummyCookieJar())
        # A lone surrogate is no JSON; a judge loses nothing by it.
        body = {"input": text.encode("utf-8", "replace").decode()} | ({"model": model} if model else {})
        try:
            # Redirects are not followed: what is sent, headers too, is meant for this address alone.
            async with self._session.post(
                self._url, data=encode(body), headers=self._headers, allow_redirects=False
            ) as response:
                if response.status != 200:
                    raise ModerationUnavailable(f"The moderation service answered with status {response.status}.")
                return _verdict(await response.content.read(MAX_BYTES + 1), model)
        except (aiohttp.ClientError, TimeoutError) as error:
            raise ModerationUnavailable(
                f"The moderation service could not be asked ({type(error).__name__})."
            ) from None

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()


def _verdict(data: bytes, model: str) -> Verdict:
    try:
        answer = _answer.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise ModerationUnavailable("The moderation service's answer is not one of OpenAI's form.") from None
    if not answer.results:
        raise ModerationUnavailable("The moderation service's answer holds no result.")
    found = Verdict(model=answer.model or model)
    for result in answer.results:
        found.flagged = found.flagged or result.flagged
        for name, there in result.categories.items():
            found.categories[name] = found.categories.get(name, False) or bool(there)
        for name, score in result.category_scores.items():
            found.scores[name] = max(found.scores.get(name, 0.0), score or 0.0)
    return found
