"""What connections remember: each its own, bounded in turns and bytes, and gone with the connection."""

from __future__ import annotations

from treadle.api.remembered import MAX_TURNS, SHARE, ConnectionMemory, Memories
from treadle.engine.recent import History


def known(memory: ConnectionMemory, *ids: str) -> list[str]:
    return [response_id for response_id in ids if memory.recall(response_id) is not None]


def test_a_connection_knows_its_own_turns_only() -> None:
    memories = Memories(1000)
    one, other = memories.open(), memories.open()
    kept = History([], 10)
    one.keep("resp_1", kept)
    assert one.recall("resp_1") is kept
    assert other.recall("resp_1") is None
    one.forget("resp_1")
    one.forget("resp_1")
    one.forget(None)
    assert one.recall("resp_1") is None
    assert (one.size, memories.size) == (0, 0)


def test_of_many_turns_those_used_longest_ago_go() -> None:
    memory = Memories(1000).open()
    ids = [f"resp_{number}" for number in range(MAX_TURNS + 1)]
    for response_id in ids[:-1]:
        memory.keep(response_id, History([], 1))
    assert memory.recall("resp_0") is not None
    memory.keep(ids[-1], History([], 1))
    assert known(memory, "resp_0", "resp_1", "resp_2", ids[-1]) == ["resp_0", "resp_2", ids[-1]]


def test_a_connection_has_its_share_of_the_bytes_and_no_more() -> None:
    memories = Memories(100 * SHARE)
    memory, other = memories.open(), memories.open()
    other.keep("resp_0", History([], 100))
    for number in range(1, 5):
        memory.keep(f"resp_{number}", History([], 40))
    assert known(memory, "resp_1", "resp_2", "resp_3", "resp_4") == ["resp_3", "resp_4"]
    memory.keep("resp_5", History([], 101))
    assert known(memory, "resp_4", "resp_5") == ["resp_4"]
    assert other.recall("resp_0") is not None
    assert memories.size == 180


def test_all_together_are_bounded_and_who_has_rested_longest_forgets_first() -> None:
    memories = Memories(100 * SHARE)
    connections = [memories.open() for _ in range(SHARE + 1)]
    for memory in connections[:SHARE]:
        memory.keep("resp_1", History([], 60))
        memory.keep("resp_2", History([], 40))
    assert connections[0].recall("resp_2") is not None
    connections[-1].keep("resp_3", History([], 50))
    assert memories.size <= 400
    assert known(connections[0], "resp_1", "resp_2") == ["resp_1", "resp_2"]
    assert known(connections[1], "resp_1", "resp_2") == ["resp_2"]
    for memory in connections:
        memory.close()
    assert memories.size == 0
    assert not memories._connections


def test_without_room_nothing_is_remembered() -> None:
    memory = Memories(0).open()
    memory.keep("resp_1", History([], 1))
    assert memory.recall("resp_1") is None
