"""What Treadle promises, one sentence each, tied to tests both ways by test_manifest.py.

A test names the promise it keeps:

    from tests.behaviour.manifest import behaviour

    @behaviour("bug-07")
    async def test_unusual_chunking_of_calls(...): ...

A promise without a test stands in PENDING, which may only shrink.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest


@dataclass(frozen=True)
class Behaviour:
    """A promise. `source` says where it comes from: a fault users reported elsewhere, or our own contract."""

    id: str
    promise: str
    source: str


def behaviour(*ids: str) -> pytest.MarkDecorator:
    """Marks a test as keeping the promises `ids`."""
    return pytest.mark.behaviour(*ids)


_FAULTS = "faults reported against similar servers"
_CONTRACT = "our contract"

_PROMISES: dict[str, str] = {
    # Streams
    "bug-01": "Every stream begins with response.created and response.in_progress, whatever else has to happen first.",
    "bug-02": "If the first model call is refused, the caller gets that error as HTTP status or as response.failed.",
    "bug-03": "Every item and part that is opened is closed again, once, and its text is the sum of its deltas.",
    "bug-04": "output_index counts without gaps over items of all kinds and is the place in the final output.",
    "bug-05": "Ids never change between events, final object and later reads; sequence numbers rise by one from 0.",
    "bug-06": "The terminal event holds the whole response.",
    "bug-07": "Calls cut, interleaved or packed together in any way by the model server still come out whole.",
    "bug-08": "A model stream that ends without a finish reason ends the response as completed.",
    "bug-09": "Only CR, LF and CRLF end a line; text with other separators or split characters arrives unharmed.",
    "bug-10": "A stream that is quiet for 15 seconds carries a comment, between frames only, and is never buffered.",
    # Model servers
    "bug-11": "Parallel calls stay apart even if the model server repeats or leaves out their index.",
    "bug-12": "A call without an id gets one that is used everywhere, and missing arguments are an empty object.",
    "bug-13": "No answer of a model keeps a turn going for ever: forcing ends after one call, and calls are counted.",
    "bug-14": "A tool never runs on arguments that are not a JSON object; the model is told, and history stays usable.",
    "bug-15": "Usage is complete, whole numbers, and the sum over all rounds, however the model server reports it.",
    "bug-16": "An answer cut by a limit or a filter is incomplete, with the reason, in the stream and in the store.",
    "bug-17": "Reasoning becomes a reasoning item under all its names and tags, and never leaks into the answer.",
    "bug-18": "Leaving reasoning out of the history keeps the calls that came with it.",
    "bug-19": "Text and calls of one round are all kept, in order, and go back as one message.",
    "bug-20": "Instructions and developer messages reach servers that allow one leading system message, all of them.",
    "bug-21": "A user who says the same thing twice is heard twice.",
    "bug-22": "What the caller did not set is not sent to the model server.",
    "bug-23": "With tools and an output schema together, tools are still called and the answer fits the schema.",
    "bug-24": "Errors keep status, code and Retry-After, always in the one envelope.",
    # Clients
    "bug-25": "New and empty optional parameters are accepted, and withheld from servers that refuse them.",
    "bug-26": "The model gets the instructions of this turn only, once, first.",
    "bug-27": "Custom, namespaced and unsupported tools of coding agents are accepted and come back as declared.",
    "bug-43": "Compaction never makes a context longer, works beyond the window, keeps the latest, repeats nothing.",
    "bug-44": "Compaction and truncation never part a call from its output.",
    "bug-28": "Replayed items that are unknown, foreign or incomplete never brick a thread.",
    "bug-29": "A tool output may be text, parts, images or empty, and reaches the model in each case.",
    "bug-30": "Loosely shaped messages are understood.",
    "bug-31": "Keys that clients rely on are always present in the output.",
    "bug-32": "A tool output without its call is a 400 that names the call, before any model is asked.",
    # State
    "bug-33": "A turn that used tools can be continued.",
    "bug-34": "A continued turn sees all earlier inputs, calls and outputs, in order.",
    "bug-35": "A conversation holds its turns, in order, each once.",
    "bug-36": "A running response can be read, and a failed one is kept with its error.",
    "bug-37": "With store false nothing of the turn is written down.",
    "bug-38": "Two turns at once on one conversation never mix: one waits or gets conversation_locked.",
    "bug-39": "A fork sees its own past only; what is deleted is gone everywhere and cannot be continued.",
    "bug-40": "What one process has stored every other finds at once.",
    "bug-41": "Thirty streams at once never meet a locked database.",
    "bug-42": "A NUL byte in any text harms neither the response nor the store.",
    "bug-69": "A crash leaves no response in progress: it is made again if that is safe, or fails with a reason.",
    "bug-70": "A background response that fails says why everywhere, keeps its links, and outlives its conversation.",
    "bug-71": "A stream broken off anywhere is taken up again behind any event, by anyone, during it and afterwards.",
    "bug-72": "When the reader leaves, the model call and the tools stop and the truth is stored.",
    "bug-73": "A WebSocket connection continues what is not stored, one response at a time, and outlives its errors.",
    "bug-75": "A job acts as whoever asked for it, with their credentials and nobody else's.",
    "background": "A background response answers at once and says what it would have said in the foreground.",
    "background-bounds": "Background responses wait, work and last as long as the settings say, and no more.",
    "background-cancel": "What is cancelled stops, stays cancelled, and leaves nothing in its conversation.",
    "background-secrets": "Credentials that wait with a job are sealed, and erased with it.",
    "background-stop": "A server that stops gives back what can be made again, and ends the rest with a reason.",
    # MCP
    "bug-45": "A server of tools that cannot be used is named with the cause, and does not sink the others.",
    "bug-46": "A server of tools that never answers is left in time; the model is told and goes on.",
    "bug-47": "Readers who leave in the middle of a tool call leave no session, no socket and no work behind.",
    "bug-48": "A server of tools that was restarted is used again, and no call is run twice.",
    "bug-49": "Tools are listed once per server and chain, from all pages, over each transport.",
    "bug-50": "A call reaches the server that the model was shown, however tools are named; a label is used once.",
    "bug-51": "Schemas arrive intact, and every kind of tool result says something to the model.",
    "bug-52": "A tool result of megabytes is cut with a note, and its thread goes on.",
    "bug-53": "Exactly the tools that are to ask do ask, and a denial leaves a history that models accept.",
    "bug-54": "An approval runs the stored call as it was asked for, without asking the model again.",
    "bug-55": "An approval counts once, for one request, and for the server that was asked about.",
    "bug-56": "A tool that was not offered is never run.",
    "bug-57": "Calls of one round fail each for itself, and their results stand in call order.",
    "bug-58": "Credentials of a tool declaration appear in no response, row, log or error.",
    "bug-78": "No flagged word gets on the wire, wherever the stream is cut; a judge that is down fails the response.",
    "bug-79": "What a tool returns is data: it approves nothing, calls nothing and closes no mark.",
    # Files and vector stores
    "bug-59": "Citation marks leave text and deltas however they are cut, and become annotations of what was found.",
    "bug-60": "A completed file is found by the next search and takes room; one without text fails with a reason.",
    "bug-62": "An embedding failure fails its file alone, is counted, and the file can be tried again.",
    "bug-63": "Indexing never holds up the server, embeds in batches, and comes to an end on any text and chunk size.",
    "bug-64": "Filters compare by type, decide before anything is ranked, and mean the same for every key and value.",
    "bug-65": "Scores are 0 to 1 in every mode, a threshold is applied once, and ranking options are honoured.",
    "bug-66": "A filename or an id from outside leads to no path and no header of its own.",
    "bug-67": "Files and images given by id, by URL or inline reach the model in a form that it takes.",
    "bug-76": "Nobody gets at vector stores, files or batches of others through any endpoint or tool.",
    # Prompts
    "prompt-race": "Of several updates of a prompt at once exactly one succeeds, and the others are told.",
    "prompt-versions": "The version that is named, or else the default one, is used; earlier turns stay as they were.",
    "prompt-once": "A prompt counts for the response it is given with, and is not carried into the next turn.",
    "prompt-alone": "Without any input the prompt is the input, and stays in the history.",
    "prompt-plain": "Values are put in by plain replacement: nothing is evaluated or read again; lengths are bounded.",
    "prompt-refused": "A prompt, version, variable or value that cannot be is refused by its path.",
    # Long contexts
    "compact-shape": "Compacting keeps the user's messages word for word, and puts one sealed item for all else.",
    "compact-chain": "A compaction is stored, read, continued, compacted again, and not listed among input items.",
    "compact-auto": "A context over its threshold is compacted before a round, and the next turn loads what is left.",
    "truncation": "With truncation a context that a model refuses loses whole old turns; without, the error says so.",
    "token-counts": "Tokens are counted offline by the encoding asked for, configured or fitting, tools and all.",
    # Batches and webhooks
    "batches-run": "Every line of a batch is answered once, by what answers single requests, in files in order.",
    "batches-faults": "A fault of a line is told by its number and code; a refused line does not spoil the others.",
    "batches-cancel": "A cancelled batch stops, keeps what was answered, and never ends in another way.",
    "batches-crash": "A batch goes on after kill -9, and no line that was answered is run again.",
    "webhooks": "Ends are told to the webhook, signed, until it takes them; nothing of what was said is in them.",
    # Also reported
    "also-connections": "Connections to the model server are closed when the reader leaves.",
    "also-no-parameters": "A function may be declared without parameters.",
    "also-two-pasts": "previous_response_id together with conversation is a 400.",
    "also-alias": "The model name that was asked for is the one that is answered, aliases included.",
    "also-tools-again": "Tools can be given again after an approval, in a later turn, and then run.",
    "also-expired-token": "A token that has expired is reported as a need to authenticate, not as a tool's text.",
    "also-unknown-connector": "An unknown connector is a 400 that names it.",
    "also-input-items": "input_items pages over input that came without ids, and refuses bad query values.",
    "also-search-results": "Results of a file search are shown with their flag only, whole, when made and when read.",
    "also-templates": "Templates are filled by plain replacement: neither they nor what is put in can reach anything.",
    "also-store-names": "Store names may repeat, odd ids are simply not there, and filtered lists page on.",
    "also-embedding-model": "An unknown embedding model, or one of another dimension, fails when a store is created.",
    # Bad input: a 4xx in the envelope that names the parameter; never a 500, never a dropped connection
    "input-json": "Malformed JSON is a 400.",
    "input-types": "A value of the wrong type is a 400 that names its path.",
    "input-ranges": "A number out of range is a 400 that names the parameter and its bounds.",
    "input-unknown-model": "An unknown model is a 404 that names `model`.",
    "input-unknown-response": "An unknown response is a 404 to read and an error with its own code to continue.",
    "input-unknown-conversation": "An unknown conversation is a 404.",
    "input-unknown-tool": "An unknown kind of tool is a 400 that names its place.",
    "input-large-body": "A body over the limit is a 413.",
    "input-deep-nesting": "A deeply nested body is a 400.",
    "input-nul": "NUL bytes anywhere in a request get a proper answer.",
    "input-surrogates": "Lone surrogates anywhere in a request get a proper answer.",
    "input-utf8": "A body that is not UTF-8 is a 400.",
    # Guardrails
    "guardrails": "Flagged input reaches no model, and flagged output nobody and no store, in any way of asking.",
    "moderation": "`moderation` tells the verdicts on input and output, and blocks where its policy says so.",
    # Telemetry
    "spans": "Model calls, tool calls and searches are spans below their response, its request and the caller's trace.",
    "spans-silent": "No prompt, argument, result or credential gets into a span or a metric.",
    "metrics": "What Prometheus reads tells what is used and how high things stand, and only if switched on.",
    # Durability
    "kill-whole": "After kill -9, every response whose terminal event was sent is there, whole.",
    "kill-other": "After kill -9, other processes show what was running as failed, in bounded time.",
    "database-away": "While the database is away requests fail in order; when it is back all goes on.",
    "kill-half": "After kill -9, no response is there in half.",
    "kill-ingestion": "After kill -9, every attached file is findable or failed with a reason, and indexed once.",
}

BEHAVIOURS = [
    Behaviour(key, promise, _FAULTS if key.startswith(("bug-", "also-")) else _CONTRACT)
    for key, promise in _PROMISES.items()
]

# Promises whose tests are still to come. Take an id out when its test lands; none may be added.
PENDING: set[str] = set()
