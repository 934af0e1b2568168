"""The reader of documents does what every extractor has to."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from treadle.retrieval.documents import DocumentReader
from treadle.testing.conformance_documents import ExtractorSuite


class TestDocumentReader(ExtractorSuite):
    @pytest.fixture
    async def extractor(self, tmp_path: Path) -> AsyncIterator[DocumentReader]:
        async with DocumentReader(folder=tmp_path) as reader:
            yield reader
