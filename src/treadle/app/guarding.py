"""The moderators that the settings name."""

from __future__ import annotations

from treadle.backends.moderation_http import HttpModerator
from treadle.backends.moderation_rules import RuleModerator
from treadle.engine.guard import Check
from treadle.engine.guarding import GuardRules
from treadle.settings import Settings


class Moderation:
    """Made without I/O; close it. ValueError, naming the setting, for what cannot work."""

    def __init__(self, settings: Settings) -> None:
        given, url = settings.guardrails, settings.responses.moderation_endpoint
        self._endpoint: HttpModerator | None = None
        if url:
            headers = settings.responses.moderation_headers
            self._endpoint = HttpModerator(url, headers, timeout_seconds=given.timeout_seconds)
        elif given.always or given.models:
            name = "always" if given.always else "models"
            raise ValueError(f"`guardrails.{name}`: needs `responses.moderation_endpoint`, which is not set")
        try:
            rules = RuleModerator(
                words=given.words, patterns=given.patterns, secrets=given.secrets, personal=given.personal_data
            )
        except ValueError as error:
            raise ValueError(f"`guardrails.patterns`: {error}") from None
        standing = [] if rules.idle else [Check(rules)]
        if self._endpoint is not None and given.always:
            standing += [Check(self._endpoint, model) for model in given.models or [""]]
        self.rules = GuardRules(
            endpoint=self._endpoint,
            standing=standing,
            message=given.message,
            fail_open=given.fail_open,
            first_window=given.first_window,
            largest_window=max(given.first_window, given.largest_window),
        )

    async def close(self) -> None:
        if self._endpoint is not None:
            await self._endpoint.close()
