"""What the composition root tells about the configuration."""

from __future__ import annotations

import asyncio
from pathlib import Path

from treadle.app import Services
from treadle.settings import Provider, Settings


def test_a_shown_provider_has_an_address_without_password_and_query(tmp_path: Path) -> None:
    provider = Provider(vendor="openai_chat", url="https://me:hush@gw.example:1/v1?key=hush")

    async def shown() -> list[object]:
        app = Services(Settings(data_dir=str(tmp_path), models={"mine": provider}), {})
        return [one.config for one in app.models.providers().data if one.provider_id == "mine"]

    assert asyncio.run(shown()) == [{"url": "https://gw.example:1/v1"}]
