"""One turn at a time in a conversation. Between processes the store decides: positions in a thread are unique."""

from __future__ import annotations

from treadle.errors import ConversationLocked
from treadle.scope import Scope

_Key = tuple[str, str, str]


class ConversationLocks:
    """The conversations in which a turn is running, in this process."""

    def __init__(self) -> None:
        self._held: set[_Key] = set()

    def acquire(self, scope: Scope, conversation: str | None) -> None:
        """ConversationLocked if a turn is running there. None is no conversation and always free."""
        if conversation is not None:
            self.check(scope, conversation)
            self._held.add(_key(scope, conversation))

    def release(self, scope: Scope, conversation: str | None) -> None:
        if conversation is not None:
            self._held.discard(_key(scope, conversation))

    def check(self, scope: Scope, conversation: str) -> None:
        """ConversationLocked if a turn is running there."""
        if _key(scope, conversation) in self._held:
            raise ConversationLocked(
                f"Another response is being made in conversation '{conversation[:128]}'. Try again when it is done.",
                param="conversation",
            )


def _key(scope: Scope, conversation: str) -> _Key:
    return (scope.tenant, scope.owner, conversation)
