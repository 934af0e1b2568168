"""Which files are found below paths, how often, and under which names."""

import os
from pathlib import Path

import pytest

from treadle.cli import walk as module
from treadle.cli.walk import MAX_KEY, Walk, key_of, walk


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "base"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def write(base: Path, *names: str) -> None:
    for name in names:
        path = base / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)


def keys(found: Walk) -> list[str]:
    assert found.faults == []
    return [document.key for document in found.documents]


def test_files_come_in_order_of_names_folder_by_folder(base: Path) -> None:
    write(base, "d/b.md", "d/a/z.md", "d/a/y/x.md", "d/c.md", "d/a.md")
    assert keys(walk(["d"], base)) == ["d/a.md", "d/b.md", "d/c.md", "d/a/z.md", "d/a/y/x.md"]


@pytest.mark.parametrize(
    "paths", [["d"], ["./d/"], ["d/.."], ["."], [""], ["d", "d/a.md"], ["d/a.md", "d"], ["d", "d/../d"]]
)
def test_a_file_is_taken_once_under_one_name_however_it_is_reached(base: Path, paths: list[str]) -> None:
    write(base, "d/a.md")
    if paths == [""]:
        assert [fault.reason for fault in walk(paths, base).faults] == ["an empty path names nothing"]
    else:
        assert keys(walk(paths, base)) == ["d/a.md"]


def test_a_path_through_a_link_is_known_by_where_it_leads(base: Path) -> None:
    write(base, "d/a.md")
    (base.parent / "link").symlink_to(base)
    assert keys(walk([str(base.parent / "link" / "d")], base)) == ["d/a.md"]
    assert keys(walk(["d"], base.parent / "link")) == ["d/a.md"]


def test_files_elsewhere_keep_their_whole_path(base: Path) -> None:
    write(base.parent, "other/a.md")
    whole = (base.parent / "other" / "a.md").resolve().as_posix()
    assert keys(walk(["../other"], base)) == [whole]
    assert keys(walk([whole], base)) == [whole]


def test_hidden_names_are_left_out_below_a_folder_and_taken_when_named(base: Path) -> None:
    write(base, ".h/a.md", ".h/.b.md", "c.md")
    assert keys(walk(["."], base)) == ["c.md"]
    assert keys(walk([".h"], base)) == [".h/a.md"]
    assert keys(walk([".h/.b.md"], base)) == [".h/.b.md"]


def test_kinds_that_no_server_reads_are_left_out_unless_named(base: Path) -> None:
    write(base, "d/a.zip", "d/b.PYC", "d/c.md")
    found = walk(["d"], base)
    assert keys(found) == ["d/c.md"]
    assert found.endings == {".zip": 1, ".pyc": 1}
    assert [document.named for document in walk(["d/a.zip", "d"], base).documents] == [True, False]


def test_links_are_followed_each_file_and_folder_once_and_really_there_before_linked(base: Path) -> None:
    write(base, "d/v2/a.md", "elsewhere/b.md", "elsewhere/deep/c.md", "single.md")
    (base / "d" / "latest").symlink_to("v2")
    (base / "d" / "out").symlink_to(base / "elsewhere")
    (base / "d" / "one.md").symlink_to(base / "single.md")
    (base / "d" / "two.md").symlink_to(base / "single.md")
    (base / "elsewhere" / "deep" / "back").symlink_to(base / "d")
    found = walk(["d"], base)
    assert keys(found) == ["d/v2/a.md", "d/one.md", "d/out/b.md", "d/out/deep/c.md"]
    assert found.skipped == {module.TAKEN: 3}


def test_links_in_circles_and_to_nothing_end(base: Path) -> None:
    write(base, "d/a.md", "aside.md")
    (base / "d" / "self").symlink_to("self")
    (base / "d" / "here").symlink_to(".")
    (base / "d" / "up").symlink_to("..")
    (base / "d" / "gone").symlink_to("nowhere")
    found = walk(["d"], base)
    assert keys(found) == ["d/a.md"]
    assert found.skipped == {module.BROKEN: 2, module.TAKEN: 1, module.LOOPS: 1}
    assert [fault.path for fault in walk(["d/self"], base).faults] == ["d/self"]


def test_a_thousand_folders_deep_is_no_fault(base: Path) -> None:
    path = base
    for _ in range(300):
        path /= "deep"
    path.mkdir(parents=True)
    (path / "a.md").write_text("x")
    (key,) = keys(walk(["."], base))
    assert len(key) == MAX_KEY


def test_keys_of_names_that_look_alike_differ(base: Path) -> None:
    one, two, text = base / os.fsdecode(b"a\xff"), base / os.fsdecode(b"a\xfe"), base / "a\\xff"
    found = [key_of(path, base) for path in (one, two, text)]
    assert len(set(found)) == 3
    assert found[2] == "a\\xff"
    assert all(key.encode() for key in found)
    long = [key_of(base / name / ("x" * 600), base) for name in "ab"]
    assert len(set(long)) == 2
    assert {len(key) for key in long} == {MAX_KEY}
