"""Structured output together with tools on servers that cannot do both (bug case 23).

Such a server obeys an output schema from its first token and then never calls a tool. So the schema is withheld while
tools are on offer and the answer's text is held back; an answer that does not fit is asked for again under the schema.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from time import monotonic
from typing import Any

from treadle.engine.turn import Plan
from treadle.ports import ModelChunk, OutputFormat, TokenLogprob

Keyword = Callable[[Any, Any, Any, Any], Any]

_MOST_CHECKED = 1_000_000
"""Characters of an answer that is checked; a longer one only has to be JSON."""
_MOST_SECONDS = 0.25
"""The server stands still meanwhile."""
_MOST_DIGITS = 1000
_UNTRIED = frozenset(
    {"pattern", "patternProperties", "format", "unevaluatedProperties", "unevaluatedItems", "uniqueItems"}
)
"""Keywords that run the caller's regular expressions, or whose work is not in proportion to the answer's size."""


def withholds(plan: Plan) -> bool:
    """Whether the schema must stay away from calls that offer tools."""
    offered = plan.tools.functions and plan.capabilities.tools
    return bool(plan.output_format and offered and not plan.capabilities.schema_with_tools)


class HeldText:
    """Keeps the text of a round until it is known to be the answer, or to precede a call."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._logprobs: list[TokenLogprob] = []

    def filter(self, chunks: list[ModelChunk]) -> list[ModelChunk]:
        """The chunks without their text; all held text goes out before the first call."""
        passed: list[ModelChunk] = []
        for chunk in chunks:
            if chunk.text:
                self._texts.append(chunk.text)
                self._logprobs += chunk.logprobs or ()
                chunk.text, chunk.logprobs = "", None
            if chunk.call is not None:
                passed.extend(self.release())
            passed.append(chunk)
        return passed

    def release(self) -> list[ModelChunk]:
        text, self._texts = "".join(self._texts), []
        logprobs, self._logprobs = self._logprobs, []
        return [ModelChunk(text=text, logprobs=logprobs or None)] if text else []

    def fits(self, wanted: OutputFormat) -> bool:
        """Whether the held text is an answer in the wanted format, as far as that can be told; never raises."""
        text = "".join(self._texts)
        try:
            value: object = json.loads(text, parse_int=_integer)
        except (ValueError, RecursionError):
            return False
        if wanted.kind == "json_object" or wanted.schema is None:
            return isinstance(value, dict)
        if len(text) > _MOST_CHECKED:
            return True
        try:
            return _is_valid(value, json.loads(bytes(wanted.schema), parse_int=_integer))
        except Exception:  # noqa: BLE001 - the schema is the caller's, and the ways to get one wrong have no end
            return True


def _integer(digits: str) -> float:
    """Python refuses to read integers of thousands of digits, which are JSON all the same."""
    return int(digits) if len(digits) <= _MOST_DIGITS else float(digits)


def _is_valid(value: object, schema: Any) -> bool:
    """Whether the value obeys the schema. Raises whatever the schema provokes, and TimeoutError if it takes too long.

    The schema is a stranger's and this runs in the event loop: nothing is fetched, no regular expression is tried.
    """
    # Imported on first use: 60 ms that only this path needs.
    import referencing
    from jsonschema import Draft202012Validator
    from jsonschema.validators import extend

    deadline = monotonic() + _MOST_SECONDS

    def timed(keyword: Keyword) -> Keyword:
        def check(validator: Any, wanted: Any, instance: Any, schema: Any) -> Iterator[Any]:
            # A few references can double the work at every level, so the keywords are what must be stopped.
            if monotonic() > deadline:
                raise TimeoutError
            if keyword is additional and "patternProperties" in schema:
                return  # what is additional only the patterns could tell
            yield from keyword(validator, wanted, instance, schema) or ()

        return check

    known: dict[str, Keyword] = dict(Draft202012Validator.VALIDATORS)
    additional = known["additionalProperties"]
    keywords: dict[str, Any] = {name: None if name in _UNTRIED else timed(keyword) for name, keyword in known.items()}
    checker = extend(Draft202012Validator, keywords)  # type: ignore[no-untyped-call]
    registry: referencing.Registry[Any] = referencing.Registry()  # one that knows no way to retrieve anything
    return bool(checker(schema, registry=registry).is_valid(value))
