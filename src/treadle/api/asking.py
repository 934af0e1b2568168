"""Short questions to a model beside the conversation: contexts of chunks, search queries."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

from treadle.errors import UpstreamTimeout
from treadle.ports import ModelMessage, ModelRequest, Route


async def ask(route: Route, prompt: str, *, seconds: float, max_tokens: int) -> str:
    """The model's answer, without thoughts and without space around it. Raises what the model server raises, and
    UpstreamTimeout if the answer is not whole after `seconds`."""
    request = ModelRequest(
        model=route.upstream,
        messages=[ModelMessage(role="user", content=prompt)],
        max_output_tokens=max_tokens,
        watched=False,
    )
    text: list[str] = []
    try:
        async with asyncio.timeout(seconds), aclosing(route.model.stream(request)) as reads:
            async for chunks in reads:
                text += [chunk.text for chunk in chunks]
    except TimeoutError:
        raise UpstreamTimeout("The model did not answer in time.") from None
    return "".join(text).strip()
