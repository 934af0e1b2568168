"""What a request and the server want judged, put together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from treadle.engine.guard import Check, Guard, Guarding, Mode
from treadle.errors import InvalidRequest, ModerationUnavailable
from treadle.ports import Moderator, Verdict
from treadle.wire.items import Item
from treadle.wire.moderation import SidePolicy
from treadle.wire.responses import CreateResponse


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardRules:
    """The server's part. No request can switch a `standing` check off."""

    endpoint: Moderator | None = None
    standing: Sequence[Check] = ()
    message: str = ""
    fail_open: bool = False
    first_window: int = 200
    largest_window: int = 800

    def of(self, request: CreateResponse) -> Guarding | None:
        """None: nothing is judged. ModerationUnavailable if the request wants what the server has not got."""
        checks = [*self.standing, *self._wanted(request)]
        return self._guarding(checks) if checks else None

    async def admit(self, items: Sequence[Item], param: str) -> None:
        """For what a model gets to see later without being the input of a turn then. InvalidRequest if a standing
        check flags it."""
        if self.standing and await Guard(self._guarding(self.standing)).judge_input(list(items), ()):
            raise InvalidRequest(self.message, param=param, code="blocked_by_guardrail")

    def _guarding(self, checks: Sequence[Check]) -> Guarding:
        return Guarding(
            checks=checks,
            message=self.message,
            fail_open=self.fail_open,
            first_window=self.first_window,
            largest_window=self.largest_window,
        )

    def _wanted(self, request: CreateResponse) -> list[Check]:
        wanted = []
        names = request.guardrails
        if names is True and not self.standing:
            wanted.append(Check(self._asked("guardrails")))
        elif names and names is not True:
            wanted += [Check(self._asked("guardrails"), name) for name in dict.fromkeys(names)]
        if (options := request.moderation) is not None:
            policy = options.policy
            sides = _mode(policy.input if policy else None), _mode(policy.output if policy else None)
            # Some clients always want verdicts: where nobody can judge they are told so, and get their answer.
            judge = self._asked("moderation") if "block" in sides else self.endpoint or _Nobody()
            wanted.append(Check(judge, options.model, input=sides[0], output=sides[1], noted=True))
        return wanted

    def _asked(self, param: str) -> Moderator:
        if self.endpoint is None:
            raise _missing(param)
        return self.endpoint


class _Nobody(Moderator):
    async def judge(self, text: str, model: str = "") -> Verdict:
        raise _missing("moderation")


def _missing(param: str) -> ModerationUnavailable:
    return ModerationUnavailable(
        f"'{param}' needs a moderation service, and this server has none (responses.moderation_endpoint).", param=param
    )


def _mode(policy: SidePolicy | None) -> Mode:
    return policy.mode if policy is not None else "score"
