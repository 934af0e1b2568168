"""`treadle setup`: what it installs besides the weights."""

from importlib.metadata import PackageNotFoundError, requires

import pytest

from treadle.cli.setup import runtime_requirements


def test_what_runs_the_models_is_what_the_package_declares_under_its_extras() -> None:
    try:
        declared = requires("treadle") or []
    except PackageNotFoundError:
        pytest.skip("treadle runs from a checkout here and is not installed")
    local = [one.split(";")[0].strip() for one in declared if "extra == 'local'" in one.replace('"', "'")]
    assert local
    assert runtime_requirements(("local",)) == local
    assert runtime_requirements(("no-such-extra",)) == []
