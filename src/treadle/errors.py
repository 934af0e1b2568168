"""Every way a request can fail. The exception is the wire error; nothing translates it later.

ServerError
  InvalidRequest (400)      UnknownModel (404), ContextTooLong, PreviousNotFound, ConversationLocked (409),
                            UnsupportedFile, UnreadableFile
  Unauthenticated (401)     Forbidden (403)
  NotFound (404, also for "not yours")    MethodNotAllowed (405)    TooLarge (413)    UnsupportedMedia (415)
  TooSlow (408)
  QuotaExceeded (429, Retry-After)        QueueFull
  UpstreamFault (502)       UpstreamRefused, UpstreamTimeout (504), UpstreamBadStream
  ToolFault                 never fails a turn: becomes the call's output, marked failed
    RemoteFault (424)       a server of tools failed; fatal only where configured
    AddressRefused          an outgoing address is not permitted
  StorageFault (503)        ClaimLost
  ModerationUnavailable (503)
  Stopping (503)            TimedOut (504)            Internal (500, id in the log, nothing leaked)
"""

from __future__ import annotations

import logging
from typing import Literal, Self

import msgspec

from treadle.ids import new_id


class ErrorBody(msgspec.Struct):
    """The inside of the error envelope; all four keys are always present (contract §1.2)."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorEnvelope(msgspec.Struct):
    """What an HTTP error response carries."""

    error: ErrorBody


class ServerError(Exception):
    """A failure with its wire form: HTTP status, `type`, `code`, `param` and a message safe to show."""

    status = 500
    type = "server_error"
    code: str | None = "server_error"

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        if code is not None:
            self.code = code
        self.headers: dict[str, str] = headers or {}

    def body(self) -> ErrorBody:
        return ErrorBody(message=self.message, type=self.type, param=self.param, code=self.code)

    def envelope(self) -> ErrorEnvelope:
        return ErrorEnvelope(self.body())


class ModerationUnavailable(ServerError):
    """What was to be judged could not be."""

    status = 503
    code = "moderation_unavailable"


class InvalidRequest(ServerError):
    """The caller sent something that cannot be accepted; `param` names the part."""

    status = 400
    type = "invalid_request_error"
    code = "invalid_value"


class ContextTooLong(InvalidRequest):
    code = "context_length_exceeded"


class PreviousNotFound(InvalidRequest):
    """`previous_response_id` names nothing this caller can continue."""

    code = "previous_response_not_found"


class ConversationLocked(InvalidRequest):
    """Another turn is writing to the conversation. SDKs retry a 409 on their own, a few times."""

    status = 409
    code = "conversation_locked"

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message, param=param, headers={"retry-after": "1"})


class UnknownModel(InvalidRequest):
    status = 404
    code = "model_not_found"


class NotFound(InvalidRequest):
    """Missing, deleted, or not the caller's: the three are not told apart."""

    status = 404
    code = "not_found"


class MethodNotAllowed(InvalidRequest):
    status = 405
    code = "method_not_allowed"


class TooLarge(InvalidRequest):
    status = 413
    code = "request_too_large"


class UnsupportedMedia(InvalidRequest):
    status = 415
    code = "unsupported_media_type"


class TooSlow(InvalidRequest):
    """The body of the request did not arrive in time. The connection ends with the answer."""

    status = 408
    code = "request_timeout"

    def __init__(self, message: str) -> None:
        super().__init__(message, headers={"connection": "close"})


class UnsupportedFile(InvalidRequest):
    """A document of a type that nothing here can read."""

    code = "unsupported_file"


class UnreadableFile(InvalidRequest):
    """A document of a known type that is broken, encrypted, without text, or over a bound."""

    code = "invalid_file"


class Unauthenticated(ServerError):
    status = 401
    type = "invalid_request_error"
    code = "invalid_api_key"


class Forbidden(ServerError):
    status = 403
    type = "permission_error"
    code = "permission_denied"


class QuotaExceeded(ServerError):
    status = 429
    type = "rate_limit_error"
    code = "rate_limit_exceeded"


class QueueFull(QuotaExceeded):
    """So much work is waiting that no more is taken."""

    code = "queue_full"


class UpstreamFault(ServerError):
    """The model server failed: unreachable, 5xx, or it broke off."""

    status = 502
    type = "server_error"
    code = "upstream_error"


class UpstreamRefused(UpstreamFault):
    """The model server answered with a status of its own that the caller should see (400, 401, 403)."""

    code = "upstream_refused"

    def __init__(self, message: str, *, status: int, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message, param=param, code=code)
        self.status = status
        if 400 <= status < 500:
            self.type = "invalid_request_error"


class UpstreamTimeout(UpstreamFault):
    status = 504
    code = "upstream_timeout"


class UpstreamBadStream(UpstreamFault):
    """The model server's bytes are not the dialect it claims to speak, or the stream broke off."""

    code = "upstream_bad_stream"


class StorageFault(ServerError):
    """State could not be read or written; nothing is reported as stored that is not."""

    status = 503
    code = "storage_error"


class ClaimLost(StorageFault):
    """Work that this process was doing belongs to somebody else by now, or to nobody: nothing was written."""

    code = "claim_lost"

    def __init__(self, job_id: str) -> None:
        super().__init__(f"'{job_id}' is not this worker's any more.")


class Stopping(ServerError):
    """The server was told to stop and could not wait any longer for this request."""

    status = 503
    code = "server_stopping"

    def __init__(self) -> None:
        super().__init__("The server is stopping and ended this request. Send it again when the server is back.")


class ToolFault(ServerError):
    """A tool failed. Dispatch turns it into the call's output; it never ends a turn."""

    code = "tool_error"


class RemoteFault(ToolFault):
    """A server of tools could not be used. `kind` and `number` become the `error` object of the call's item."""

    status = 424
    type = "external_connector_error"
    code = "http_error"

    def __init__(
        self, message: str, *, kind: Literal["protocol", "http"], number: int = 0, authentication: bool = False
    ) -> None:
        super().__init__(message, code="http_error" if kind == "http" else "mcp_protocol_error")
        self.kind = kind
        self.number = number
        self.authentication = authentication
        """The server wants credentials, or others than it was given."""


class AddressRefused(ToolFault):
    """An address that a caller named is not permitted; the message names the setting that permits it."""

    code = "address_refused"


class TimedOut(ServerError):
    """A response took longer than it may."""

    status = 504


class Internal(ServerError):
    """A bug of ours. The message carries only an id that also stands in the log."""

    @classmethod
    def logged(cls, log: logging.Logger, where: str) -> Self:
        """The fault for the exception that is being handled, whose trace goes to `log`."""
        number = new_id("err")
        log.exception("internal error %s at %.200r", number, where)  # noqa: LOG004 -- see above
        return cls(f"Something went wrong inside the server. The log has the details under {number}.")
