"""Structured output together with tools on servers that cannot do both (bug case 23).

Such a server obeys an output schema from its first token and then never calls a tool. So the schema is withheld while
tools are on offer and the answer's text is held back; an answer that does not fit is asked for again under the schema.
"""

from __future__ import annotations

import json

from treadle.engine.turn import Plan
from treadle.ports import ModelChunk, OutputFormat, TokenLogprob


def withholds(plan: Plan) -> bool:
    """Whether the schema must stay away from calls that offer tools."""
    return bool(plan.output_format and plan.tools.functions and not plan.capabilities.schema_with_tools)


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
        """Whether the held text is an answer in the wanted format."""
        try:
            value = json.loads("".join(self._texts))
        except (ValueError, RecursionError):
            return False
        if wanted.kind == "json_object" or wanted.schema is None:
            return isinstance(value, dict)
        import jsonschema  # imported on first use: 60 ms that only this path needs

        try:
            jsonschema.validate(value, json.loads(bytes(wanted.schema)))
        except (jsonschema.ValidationError, jsonschema.SchemaError):
            return False
        return True
