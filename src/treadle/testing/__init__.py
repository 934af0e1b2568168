"""Treadle's public testing kit: scripted models and model servers, stream checks, conformance suites.

The suites need pytest, so they are imported by their own name: `treadle.testing.conformance`.
"""

from treadle.testing.gates import Gate
from treadle.testing.scripted import ScriptedModel, WordEmbedder, calls, says
from treadle.testing.sequence import SequenceError, check_sequence, parse_sse
from treadle.testing.turns import Call, Drop, Raw, Refuse, Reply, Tokens, chunk, sse
from treadle.testing.upstream import Received, ScriptedUpstream

__all__ = [
    "Call",
    "Drop",
    "Gate",
    "Raw",
    "Received",
    "Refuse",
    "Reply",
    "ScriptedModel",
    "ScriptedUpstream",
    "SequenceError",
    "Tokens",
    "WordEmbedder",
    "calls",
    "check_sequence",
    "chunk",
    "parse_sse",
    "says",
    "sse",
]
