"""Wires what keeps contexts short: how tokens are counted, and when histories are summarised."""

from __future__ import annotations

from treadle.engine.summarize import CompactionRules
from treadle.models.tokens import Tokens
from treadle.settings import Settings


def open_counter(settings: Settings) -> Tokens:
    return Tokens(settings.compaction.tokenizer_encoding, settings.compaction.model_tokenizer_mappings)


def compaction_rules(settings: Settings) -> CompactionRules:
    given = settings.compaction
    return CompactionRules(
        prompt=given.summarization_prompt,
        prefix=given.summary_prefix,
        model=given.summarization_model,
        threshold=given.default_compact_threshold,
    )
