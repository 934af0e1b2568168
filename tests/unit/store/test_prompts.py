"""Prompts: versions that never change, one that is the default, and one winner among several who update at once."""

from __future__ import annotations

import asyncio

import pytest

from tests.unit.store.support import ALICE, NOW, STRANGERS
from treadle.errors import InvalidRequest
from treadle.ids import new_prompt_id
from treadle.ports import PromptRow
from treadle.scope import Scope
from treadle.store.db import Database
from treadle.store.prompts import SqlPrompts

ODD = "no id\x00"


@pytest.fixture
def prompts(database: Database) -> SqlPrompts:
    return SqlPrompts(database)


def row(prompt_id: str = "", **fields: object) -> PromptRow:
    values: dict[str, object] = {
        "id": prompt_id or new_prompt_id(),
        "version": 1,
        "created_at": NOW,
        "text": "Be {{ 名字 }}\x00 😀",
        "variables": ["名字"],
    }
    return PromptRow(**(values | fields))  # type: ignore[arg-type]


async def added(prompts: SqlPrompts, scope: Scope = ALICE, **fields: object) -> PromptRow:
    made = row(**fields)  # type: ignore[arg-type]
    await prompts.create(scope, made)
    return made


async def numbers(prompts: SqlPrompts, prompt_id: str, **given: object) -> tuple[list[int], bool]:
    wanted: dict[str, object] = {"after": None, "limit": 100, "order": "asc"}
    page = await prompts.versions(ALICE, prompt_id, **(wanted | given))  # type: ignore[arg-type]
    assert page is not None
    return [one.version for one in page.prompts], page.has_more


async def test_a_prompt_comes_back_as_it_was(prompts: SqlPrompts) -> None:
    made = await added(prompts)
    assert await prompts.get(ALICE, made.id, None) == made
    assert await prompts.get(ALICE, made.id, 1) == made
    assert await prompts.get(ALICE, made.id, 2) is None
    assert await prompts.get(ALICE, new_prompt_id(), None) is None
    assert await prompts.get(ALICE, ODD, None) is None


async def test_a_new_version_is_the_default_unless_it_is_not_to_be(prompts: SqlPrompts) -> None:
    made = await added(prompts)
    second = await prompts.update(ALICE, row(made.id, version=1, text="two", created_at=NOW + 5))
    assert second == row(made.id, version=2, text="two", created_at=NOW + 5)
    third = await prompts.update(ALICE, row(made.id, version=2, text="three", is_default=False))
    assert third is not None
    assert (third.version, third.is_default) == (3, False)
    assert await prompts.get(ALICE, made.id, None) == second
    assert await prompts.get(ALICE, made.id, 3) == third
    first = await prompts.get(ALICE, made.id, 1)
    assert first is not None
    assert (first.text, first.is_default) == (made.text, False)


async def test_only_the_latest_version_can_be_followed(prompts: SqlPrompts) -> None:
    made = await added(prompts)
    await prompts.update(ALICE, row(made.id, version=1))
    await prompts.choose(ALICE, made.id, 1)
    for version in (1, 3, 99):
        with pytest.raises(InvalidRequest) as refused:
            await prompts.update(ALICE, row(made.id, version=version))
        assert (refused.value.param, refused.value.code) == ("version", "stale_version")
    assert await numbers(prompts, made.id) == ([1, 2], False)
    assert await prompts.update(ALICE, row(new_prompt_id())) is None
    assert await prompts.update(ALICE, row(ODD)) is None


async def test_of_many_updates_at_once_exactly_one_succeeds(prompts: SqlPrompts) -> None:
    made = await added(prompts)
    asked = (prompts.update(ALICE, row(made.id, version=1, text=f"by {n}")) for n in range(20))
    done = await asyncio.gather(*asked, return_exceptions=True)
    [winner] = [one for one in done if isinstance(one, PromptRow)]
    assert sum(isinstance(one, InvalidRequest) for one in done) == 19
    assert await prompts.get(ALICE, made.id, None) == winner
    assert await numbers(prompts, made.id) == ([1, 2], False)


async def test_any_version_can_become_the_default_one(prompts: SqlPrompts) -> None:
    made = await added(prompts)
    await prompts.update(ALICE, row(made.id, version=1, text="two"))
    assert await prompts.choose(ALICE, made.id, 1) == made
    assert await prompts.get(ALICE, made.id, None) == made
    assert await prompts.choose(ALICE, made.id, 3) is None
    assert await prompts.choose(ALICE, new_prompt_id(), 1) is None
    assert await prompts.choose(ALICE, ODD, 1) is None
    assert await prompts.get(ALICE, made.id, None) == made, "what failed changed nothing"


async def test_versions_are_paged_by_their_numbers(prompts: SqlPrompts) -> None:
    made = await added(prompts)
    for version in range(1, 5):
        await prompts.update(ALICE, row(made.id, version=version))
    assert await numbers(prompts, made.id, limit=2) == ([1, 2], True)
    assert await numbers(prompts, made.id, limit=3, after=2) == ([3, 4, 5], False)
    assert await numbers(prompts, made.id, limit=2, after=5, order="desc") == ([4, 3], True)
    assert await numbers(prompts, made.id, after=99) == ([], False)
    page = await prompts.versions(ALICE, made.id, after=None, limit=9, order="asc")
    assert page is not None
    assert [one.is_default for one in page.prompts] == [False, False, False, False, True]
    assert await prompts.versions(ALICE, new_prompt_id(), after=None, limit=9, order="asc") is None
    assert await prompts.versions(ALICE, ODD, after=None, limit=9, order="asc") is None


async def test_a_list_holds_each_prompt_once_in_its_default_version(prompts: SqlPrompts) -> None:
    made = [await added(prompts, created_at=NOW + age) for age in range(4)]
    later = await prompts.update(ALICE, row(made[0].id, version=1, text="two", created_at=NOW + 99))
    await prompts.update(ALICE, row(made[1].id, version=1, text="hidden", is_default=False))
    page = await prompts.page(ALICE, after=None, limit=3, order="desc")
    assert (page.prompts, page.has_more) == ([made[3], made[2], made[1]], True)
    page = await prompts.page(ALICE, after=made[1].id, limit=3, order="desc")
    assert (page.prompts, page.has_more) == ([later], False)
    for cursor in (new_prompt_id(), ODD):
        with pytest.raises(InvalidRequest) as refused:
            await prompts.page(ALICE, after=cursor, limit=3, order="desc")
        assert refused.value.param == "after"


async def test_a_deleted_prompt_is_gone_with_its_versions(prompts: SqlPrompts, database: Database) -> None:
    made, other = await added(prompts), await added(prompts)
    await prompts.update(ALICE, row(made.id, version=1))
    assert await prompts.delete(ALICE, made.id)
    assert not await prompts.delete(ALICE, made.id)
    assert not await prompts.delete(ALICE, ODD)
    assert await prompts.get(ALICE, made.id, None) is None
    assert await prompts.get(ALICE, made.id, 1) is None
    left = await database.read(lambda connection: connection.execute("SELECT prompt FROM prompt_versions"))
    assert left == [(other.id,)]


async def test_what_is_somebody_elses_is_not_there(prompts: SqlPrompts) -> None:
    made = await added(prompts)
    for stranger in STRANGERS:
        assert await prompts.get(stranger, made.id, None) is None
        assert await prompts.get(stranger, made.id, 1) is None
        assert (await prompts.page(stranger, after=None, limit=9, order="asc")).prompts == []
        with pytest.raises(InvalidRequest):
            await prompts.page(stranger, after=made.id, limit=9, order="asc")
        assert await prompts.versions(stranger, made.id, after=None, limit=9, order="asc") is None
        assert await prompts.update(stranger, row(made.id, version=1, text="taken over")) is None
        assert await prompts.choose(stranger, made.id, 1) is None
        assert not await prompts.delete(stranger, made.id)
    assert await prompts.get(ALICE, made.id, None) == made
    assert await numbers(prompts, made.id) == ([1], False)
