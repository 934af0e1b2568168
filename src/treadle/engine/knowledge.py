"""File search as a function of the model: vector stores, searched within what was declared (contract §5.1).

All declarations of a request are one function: the model says what to look for, and each declaration's stores are
searched within that declaration's bounds, all at once. What was found is shown best first, within a budget of tokens.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import msgspec
from msgspec import UNSET, Raw

from treadle.engine.citations import Numbers
from treadle.engine.filters import checked
from treadle.engine.fusion import ranking
from treadle.engine.telling import MIN_TOKENS, FileSearchRules, budget_of, lines_of, tell, tokens_of
from treadle.engine.toolset import ToolSet
from treadle.engine.turn import FirstSearch
from treadle.errors import InvalidRequest, NotFound, ServerError, ToolFault
from treadle.ports import (
    Capabilities,
    ModelFunction,
    ModelMessage,
    Passage,
    PassageQuery,
    Passages,
    PassageSearch,
    TextPart,
    ToolOutcome,
)
from treadle.scope import Scope
from treadle.wire.base import decode, encode
from treadle.wire.content import InputText
from treadle.wire.hosted import FileSearchDeclaration, file_search_decoder
from treadle.wire.items import FileSearchRecord, FoundPassage, Item, Message, Told
from treadle.wire.tools import HostedTool

FILE_SEARCH: Literal["file_search"] = "file_search"
DEFAULT_RESULTS = 10
MAX_QUERIES = 8
MAX_QUERY = 2_000
"""Characters of one query; of the longer question of a user, its beginning and its end."""

FUNCTION = ModelFunction(
    name=FILE_SEARCH,
    description="Searches the user's documents and gives numbered passages of them. Ask in full sentences or with the "
    "words that the document would use.",
    parameters=Raw(
        encode(
            {
                "type": "object",
                "properties": {
                    "query": {"type": "string", "description": "What to search for."},
                    "queries": {
                        "type": "array",
                        "items": {"type": "string"},
                        "description": "More things to search for at the same time.",
                    },
                },
                "required": ["query"],
            }
        )
    ),
)


@dataclass(frozen=True, slots=True)
class DeclaredSearch:
    """A declaration with its path in the request."""

    at: str
    declaration: FileSearchDeclaration

    def query(self, queries: list[str]) -> PassageQuery:
        given = self.declaration
        return PassageQuery(
            stores=list(dict.fromkeys(given.vector_store_ids)),
            queries=queries,
            filters=given.filters,
            ranking=given.ranking_options,
            limit=given.max_num_results or DEFAULT_RESULTS,
        )


class FileSearchOutcome(ToolOutcome):
    """What a search gave: all results for the client, and what of them is told to the model."""

    queries: list[str] = []
    results: list[FoundPassage] = []
    told: Told = msgspec.field(default_factory=Told)


class _Arguments(msgspec.Struct):
    query: str | list[str] | None = None
    queries: str | list[str] | None = None


_arguments = msgspec.json.Decoder(_Arguments)


def declared_searches(hosted: Sequence[tuple[str, HostedTool]], rules: FileSearchRules) -> list[DeclaredSearch]:
    """The declarations of file search. InvalidRequest for a bad one."""
    found: list[DeclaredSearch] = []
    for at, tool in hosted:
        if tool.kind == FILE_SEARCH:
            declaration = decode(file_search_decoder, tool.raw, at)
            if declaration.filters is not None:
                checked(declaration.filters, f"{at}.filters")
            ranking(declaration.ranking_options, defaults=rules.ranking, at=f"{at}.ranking_options")
            found.append(DeclaredSearch(at, declaration))
    return found


async def check_stores(scope: Scope, declared: Sequence[DeclaredSearch], search: PassageSearch | None) -> None:
    """NotFound, naming the place in the request, for a store that the caller does not have (bug case 76)."""
    if search is not None:
        await asyncio.gather(*(_check(scope, one, search) for one in declared))


async def _check(scope: Scope, declared: DeclaredSearch, search: PassageSearch) -> None:
    ids, at = declared.declaration.vector_store_ids, f"{declared.at}.vector_store_ids"
    try:
        await search.check(scope, ids, at)
    except (NotFound, InvalidRequest):
        for index, store in enumerate(ids):
            await search.check(scope, [store], f"{at}[{index}]")
        raise


class FileSearchRunner:
    """Runs the calls of file search."""

    exclusive = False

    def __init__(
        self,
        declared: Sequence[DeclaredSearch],
        search: PassageSearch,
        rules: FileSearchRules,
        numbers: Numbers,
        capabilities: Capabilities,
    ) -> None:
        self._declared = declared
        self._search = search
        self._rules = rules
        self._numbers = numbers
        self._cite = capabilities.tools
        """Ask the model to mark what it takes from a passage. Small ones only get confused by it."""
        self._budget = budget_of(rules, capabilities)

    def make_room(self, messages: Sequence[ModelMessage], capabilities: Capabilities) -> None:
        """Leaves a quarter of the model's window for the answer, if the messages leave so much."""
        if (window := capabilities.context_window) is not None:
            used = sum(tokens_of(_text(message)) for message in messages)
            self._budget = max(MIN_TOKENS, min(self._budget, window * 3 // 4 - used))

    def first(self, tools: ToolSet, capabilities: Capabilities, inputs: Sequence[Item]) -> FirstSearch | None:
        """The search that the server makes with the user's question before it asks the model; None if it shall not."""
        kinds = ("always",) if capabilities.tools else ("always", "auto")
        chosen = [
            one for one in self._declared if (one.declaration.retrieve_first or self._rules.retrieve_first) in kinds
        ]
        question = _question(inputs)
        binding = tools.bind(tools.hosted_name(FILE_SEARCH, FILE_SEARCH))
        if not chosen or not question or binding.owner != "server" or tools.choice.mode == "none":
            return None
        runner = copy.copy(self)
        runner._declared = chosen
        return FirstSearch(replace(binding, tool=runner), question)

    async def run(self, name: str, arguments: str, scope: Scope) -> ToolOutcome:
        queries = queries_of(arguments)
        if not queries:
            raise ToolFault("The query is empty.")
        asked = (self._search.passages(scope, one.query(queries)) for one in self._declared)
        answers = await asyncio.gather(*asked, return_exceptions=True)
        found: list[Passages] = []
        broken: dict[str, str] = {}
        faults: list[ServerError] = []
        for declared, answer in zip(self._declared, answers, strict=True):
            if isinstance(answer, ServerError):
                faults.append(answer)
                broken |= dict.fromkeys(declared.declaration.vector_store_ids, answer.message)
            elif isinstance(answer, BaseException):
                raise answer
            else:
                found.append(answer)
                broken |= answer.broken
        if not found:
            raise faults[0]
        return self._outcome(queries, _merged(found), broken)

    def _outcome(self, queries: list[str], passages: list[Passage], broken: dict[str, str]) -> FileSearchOutcome:
        results = [_result(passage) for passage in passages]
        told = tell(results, queries, self._rules, self._numbers, self._budget, cite=self._cite)
        if broken:
            notes = [f"{store} ({reason[:200]})" for store, reason in broken.items()]
            told.behind = lines_of(told.behind, "Not searched, because of a fault: " + "; ".join(notes))
        return FileSearchOutcome("", queries=queries, results=results, told=told, untrusted=True)


def offer_file_search(
    tools: ToolSet,
    declared: Sequence[DeclaredSearch],
    search: PassageSearch | None,
    rules: FileSearchRules,
    numbers: Numbers,
    capabilities: Capabilities,
) -> FileSearchRunner | None:
    """Offers the function for the declarations, if there are any."""
    if search is None or not declared:
        return None
    runner = FileSearchRunner(declared, search, rules, numbers, capabilities)
    tools.add_hosted([FUNCTION], FILE_SEARCH, runner)
    return runner


def queries_of(arguments: str) -> list[str]:
    """What a call searches for, however the model spelt it; none if it does not say."""
    try:
        given = _arguments.decode(arguments or "{}")
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return []
    both: list[str] = []
    for one in (given.query, given.queries):
        both += [one] if isinstance(one, str) else one or []
    return list(dict.fromkeys(query.strip()[:MAX_QUERY] for query in both if query.strip()))[:MAX_QUERIES]


def _question(inputs: Sequence[Item]) -> str:
    """The text of the user's last message in this turn: of a long one the beginning and the end, where questions
    stand."""
    for item in reversed(inputs):
        if isinstance(item, Message) and item.role == "user":
            break
        if isinstance(item, FileSearchRecord):
            return ""  # a client that keeps the history itself sends what was found back
    else:
        return ""
    if isinstance(item.content, str):
        return ""
    text = "\n".join(part.text for part in item.content if isinstance(part, InputText)).strip()
    half = MAX_QUERY // 2
    return text if len(text) <= MAX_QUERY else f"{text[: half - 2]}\n…\n{text[-half + 1 :]}"


def _text(message: ModelMessage) -> str:
    if isinstance(message.content, str):
        return message.content
    return "\n".join(part.text for part in message.content if isinstance(part, TextPart))


def _merged(found: list[Passages]) -> list[Passage]:
    """All passages, best first, each once: two declarations may name the same store."""
    best: dict[tuple[str, str], Passage] = {}
    for passage in sorted((one for each in found for one in each.found), key=lambda one: -one.score):
        best.setdefault((passage.file_id, passage.text), passage)
    return list(best.values())


def _result(passage: Passage) -> FoundPassage:
    return FoundPassage(
        file_id=passage.file_id,
        filename=passage.filename,
        score=passage.score,
        text=passage.text,
        attributes=passage.attributes,
        page=UNSET if passage.page is None else passage.page,
        section=passage.section or UNSET,
    )
