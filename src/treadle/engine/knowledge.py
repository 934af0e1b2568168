"""File search as a function of the model: vector stores, searched within what was declared (contract §5.1).

All declarations of a request are one function: the model says what to look for, and each declaration's stores are
searched within that declaration's bounds, all at once. What was found is shown best first, within a budget of tokens.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Literal

import msgspec
from msgspec import UNSET, Raw

from treadle.engine.citations import Citable, Numbers, citable_in
from treadle.engine.filters import checked
from treadle.engine.fusion import RankingDefaults, ranking
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
from treadle.wire.extensions import RetrieveFirst
from treadle.wire.hosted import FileSearchDeclaration, file_search_decoder
from treadle.wire.items import FileSearchCall, FileSearchRecord, FoundPassage, Item, Message, Told, WebSearchCall
from treadle.wire.templates import ANNOTATION, CONTEXT, FOOTER, HEADER, filled
from treadle.wire.tools import HostedTool

FILE_SEARCH: Literal["file_search"] = "file_search"
DEFAULT_RESULTS = 10
MAX_QUERIES = 8
MAX_QUERY = 2_000
"""Characters of one query; of the longer question of a user, its beginning and its end."""
MIN_TOKENS = 200
"""What a search may always show, however full the model's context is."""
_SEPARATORS = 50
"""Tokens that what stands between passages may take in addition to them."""
_SEARCHES = frozenset({FileSearchCall, FileSearchRecord, WebSearchCall})
NOTHING = "Nothing was found."

FUNCTION = ModelFunction(
    name=FILE_SEARCH,
    description="Searches the user's documents and gives numbered passages of them. Ask in full sentences or with the "
    "words that the document would use. Several questions can be searched for together.",
    parameters=Raw(
        encode(
            {
                "type": "object",
                "properties": {
                    "query": {"type": "string", "description": "What to search for."},
                    "queries": {
                        "type": "array",
                        "items": {"type": "string"},
                        "description": "Instead of query: several things to search for together.",
                    },
                },
            }
        )
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSearchRules:
    """What the configuration says about file search. The templates are checked when the server starts."""

    header: str = HEADER
    context: str = CONTEXT
    footer: str = FOOTER
    annotation: str = ANNOTATION
    max_tokens: int = 8_000
    """Of the passages that one search shows a model that calls tools."""
    first_tokens: int = 1_000
    """The same for a model that cannot call tools: small models lose the thread of a long text."""
    retrieve_first: RetrieveFirst = "auto"
    ranking: RankingDefaults = field(default_factory=RankingDefaults)
    """What holds for declarations that do not say; they are checked against it."""


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
            told.behind = _lines(told.behind, "Not searched, because of a fault: " + "; ".join(notes))
        return FileSearchOutcome("", queries=queries, results=results, told=told, untrusted=True)


def budget_of(rules: FileSearchRules, capabilities: Capabilities) -> int:
    """Tokens of passages that one search may show the model: at most a quarter of its window."""
    budget = rules.max_tokens if capabilities.tools else rules.first_tokens
    window = capabilities.context_window
    return budget if window is None else max(MIN_TOKENS, min(budget, window // 4))


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


def fitted(passages: str, capabilities: Capabilities) -> str:
    """Passages that were found for another model, with more room perhaps."""
    window = capabilities.context_window
    return passages if window is None else _cut(passages, max(MIN_TOKENS, window // 4) + _SEPARATORS)


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


def tell(
    results: Sequence[FoundPassage],
    queries: Sequence[str],
    rules: FileSearchRules,
    numbers: Numbers,
    budget: int,
    *,
    cite: bool = True,
) -> Told:
    """What the model is told of results: the best that fit into `budget` tokens, and of a first that alone does not,
    its beginning."""
    if not results:
        return Told(before=NOTHING)
    shown: list[str] = []
    given: list[int] = []
    first: dict[str, str] = {}
    for result in results:
        values = _values(result)
        cost = tokens_of(_context(rules, values, 0))
        if shown and cost > budget:
            break
        if cost > budget:
            values["text"] = _cut(values["text"], budget - (cost - tokens_of(values["text"])))
        budget -= cost
        number = numbers.next()
        shown.append(_context(rules, values, number))
        given.append(number)
        first = first or values | {"index": str(number)}
    whole = {"query": "; ".join(queries), "num_chunks": str(len(shown))}
    left = len(results) - len(shown)
    return Told(
        before=filled(rules.header, whole),
        passages="\n\n".join(shown),
        behind=_lines(
            filled(rules.footer, whole),
            f"({left} more were found that do not fit here.)" if left else "",
            filled(rules.annotation, first) if cite else "",
        ),
        numbers=given + [0] * left,
    )


def tokens_of(text: str) -> int:
    """Roughly: four bytes to a token, which holds for English and errs to the safe side for most other languages."""
    return len(text.encode("utf-8", "replace")) // 4 + 1


@dataclass(frozen=True, slots=True)
class Recalled:
    """A past whose searches can be told to the model again: what it found, and the numbers still free."""

    history: list[Item]
    inputs: list[Item]
    citable: Citable
    numbers: Numbers


def recall(history: list[Item], inputs: list[Item], rules: FileSearchRules, budget: int) -> Recalled:
    """The items, those of searches with what the model is told of them: a client may have sent one back with its
    results, or kept it in a conversation."""
    if _SEARCHES.isdisjoint(map(type, chain(history, inputs))):
        return Recalled(history, inputs, Citable(), Numbers())
    _, numbers = citable_in((*history, *inputs))
    history, inputs = _with_told(history, rules, numbers, budget), _with_told(inputs, rules, numbers, budget)
    citable, _ = citable_in((*history, *inputs))
    return Recalled(history, inputs, citable, numbers)


def _with_told(items: list[Item], rules: FileSearchRules, numbers: Numbers, budget: int) -> list[Item]:
    if not any(isinstance(item, FileSearchCall) for item in items):
        return items
    return [
        FileSearchRecord(
            id=item.id,
            status=item.status,
            queries=item.queries,
            results=item.results,
            told=tell(item.results, item.queries, rules, numbers, budget),
        )
        if isinstance(item, FileSearchCall)
        and item.results
        and not (isinstance(item, FileSearchRecord) and isinstance(item.told, Told))
        else item
        for item in items
    ]


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


def _values(result: FoundPassage) -> dict[str, str]:
    score = result.score if isinstance(result.score, float | int) else 0.0
    notes = [f"page {result.page}"] if isinstance(result.page, int) else []
    notes += [result.section] if result.section else []
    notes += [f"{key}: {value}" for key, value in (result.attributes or {}).items()]
    return {
        "file_id": result.file_id or "",
        "filename": result.filename or "",
        "score": f"{score:.2f}",
        "text": result.text or "",
        "metadata": f" ({'; '.join(notes)})" if notes else "",
    }


def _context(rules: FileSearchRules, values: dict[str, str], number: int) -> str:
    return filled(rules.context, values | {"index": str(number)})


def _cut(text: str, tokens: int) -> str:
    """The beginning of a passage, ended at a word."""
    kept = text.encode("utf-8", "replace")[: max(tokens, MIN_TOKENS // 4) * 4].decode("utf-8", "ignore")
    if len(kept) == len(text):
        return text
    return (kept.rsplit(None, 1)[0] if " " in kept else kept) + " …"


def _lines(*texts: str) -> str:
    return "\n".join(text for text in texts if text)
