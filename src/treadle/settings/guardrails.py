"""Settings of guardrails: what is judged whatever a request says, and what follows from it."""

from __future__ import annotations

from typing import Annotated

import msgspec

Doc = msgspec.Meta


class Guardrails(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What may not be said, by people and by models. No request can switch these off."""

    always: Annotated[
        bool, Doc(description="Have the moderation endpoint judge every response, whether the request wants it or not.")
    ] = False
    models: Annotated[
        list[str],
        Doc(description="The endpoint's models that judge then. Empty: the one that it takes by itself."),
    ] = []
    words: Annotated[
        list[str], Doc(description="Words and phrases that are blocked, in any spelling of capitals.")
    ] = []
    patterns: Annotated[list[str], Doc(description="Regular expressions whose matches are blocked.")] = []
    secrets: Annotated[bool, Doc(description="Block private keys and access tokens.")] = False
    personal_data: Annotated[
        bool,
        Doc(
            description="Block mail addresses, numbers of payment cards and bank accounts, and US social security "
            "numbers."
        ),
    ] = False
    message: Annotated[str, Doc(description="What a blocked response says.", min_length=1)] = (
        "This was blocked by a guardrail."
    )
    fail_open: Annotated[
        bool, Doc(description="Let pass what the endpoint cannot judge; else such a response fails.")
    ] = False
    timeout_seconds: Annotated[float, Doc(description="How long the endpoint may take to judge.", gt=0)] = 10.0
    first_window: Annotated[
        int, Doc(description="Characters of output that are held back before they are judged for the first time.", ge=1)
    ] = 200
    largest_window: Annotated[
        int, Doc(description="Each window is twice the one before, up to so many characters.", ge=1)
    ] = 800
