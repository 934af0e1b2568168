"""What a model is told of the passages that a file search found: now, in later turns, and from what clients send back.

The best passages that fit into a budget of tokens, numbered for citations, in the operator's words around them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain

from treadle.engine.citations import Citable, Numbers, citable_in
from treadle.engine.fusion import RankingDefaults
from treadle.ports import Capabilities
from treadle.wire.extensions import RetrieveFirst
from treadle.wire.items import FileSearchCall, FileSearchRecord, FoundPassage, Item, Told, WebSearchCall
from treadle.wire.templates import ANNOTATION, CONTEXT, FOOTER, HEADER, filled

NOTHING = "Nothing was found."
MIN_TOKENS = 200
"""What a search may always show, however full the model's context is."""
_SEPARATORS = 50
"""Tokens that what stands between passages may take in addition to them."""
_SEARCHES = frozenset({FileSearchCall, FileSearchRecord, WebSearchCall})


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


def budget_of(rules: FileSearchRules, capabilities: Capabilities) -> int:
    """Tokens of passages that one search may show the model: at most a quarter of its window."""
    budget = rules.max_tokens if capabilities.tools else rules.first_tokens
    window = capabilities.context_window
    return budget if window is None else max(MIN_TOKENS, min(budget, window // 4))


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
        behind=lines_of(
            filled(rules.footer, whole),
            f"({left} more were found that do not fit here.)" if left else "",
            filled(rules.annotation, first) if cite else "",
        ),
        numbers=given + [0] * left,
    )


def tokens_of(text: str) -> int:
    """Roughly: four bytes to a token, which holds for English and errs to the safe side for most other languages."""
    return len(text.encode("utf-8", "replace")) // 4 + 1


def fitted(passages: str, capabilities: Capabilities) -> str:
    """Passages that were found for another model, with more room perhaps."""
    window = capabilities.context_window
    return passages if window is None else _cut(passages, max(MIN_TOKENS, window // 4) + _SEPARATORS)


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


def lines_of(*texts: str) -> str:
    return "\n".join(text for text in texts if text)
