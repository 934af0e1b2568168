"""An approval request is answered once, and only for the one who was asked."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from tests.unit.store.conftest import Another
from tests.unit.store.support import ALICE, STRANGERS
from treadle.scope import Principal, Scope
from treadle.store.approvals import SqlApprovals
from treadle.store.db import Connection, Database

REQUEST = "mcpr_" + "0" * 48


@pytest.fixture
def approvals(database: Database) -> SqlApprovals:
    return SqlApprovals(database)


async def test_the_first_claim_wins_and_all_later_ones_lose(approvals: SqlApprovals) -> None:
    assert await approvals.claim(ALICE, REQUEST)
    assert not await approvals.claim(ALICE, REQUEST)
    assert await approvals.claim(ALICE, REQUEST + "1")


async def test_of_claims_at_the_same_time_one_wins(approvals: SqlApprovals) -> None:
    claims = await asyncio.gather(*(approvals.claim(ALICE, REQUEST) for _ in range(20)))
    assert claims.count(True) == 1


async def test_between_processes_one_claim_wins(another: Another) -> None:
    both = await asyncio.gather(another(), another())
    claims = await asyncio.gather(*(SqlApprovals(each).claim(ALICE, REQUEST) for each in [*both] * 5))
    assert claims.count(True) == 1


@pytest.mark.parametrize("stranger", STRANGERS, ids=["another user", "another tenant"])
async def test_what_a_stranger_claims_is_not_used_up_for_its_owner(approvals: SqlApprovals, stranger: Scope) -> None:
    await approvals.claim(stranger, REQUEST)
    assert await approvals.claim(ALICE, REQUEST)
    assert not await approvals.claim(ALICE, REQUEST)


async def test_names_that_run_into_each_other_stay_apart(approvals: SqlApprovals) -> None:
    assert await approvals.claim(Scope("a", Principal("b c")), REQUEST)
    assert await approvals.claim(Scope("a b", Principal("c")), REQUEST)
    assert await approvals.claim(Scope('a","b', Principal("c")), REQUEST)


async def test_answers_of_an_older_version_still_count(database: Database, approvals: SqlApprovals) -> None:
    def old(connection: Connection, owner: str, request: str) -> int:
        return connection.change("INSERT INTO approvals VALUES (?, ?, ?, 1)", (request, ALICE.tenant, owner))

    await database.write(partial(old, owner=ALICE.owner, request=REQUEST))
    await database.write(partial(old, owner="someone", request=REQUEST + "1"))
    assert not await approvals.claim(ALICE, REQUEST)
    assert await approvals.claim(ALICE, REQUEST + "1")
