"""The vendor table holds together."""

import pytest

from treadle.models.vendors import GENERIC, VENDORS, Vendor, find_vendor, vendor
from treadle.ports import ModelRequest

OTHER_PARAMETERS = {"stream_options", "strict", "metadata", "store"}
"""What a request may carry that is no field of ModelRequest."""

each = pytest.mark.parametrize("row", VENDORS, ids=lambda row: row.name)


def test_names_and_variables_are_unique() -> None:
    for names in (
        [row.name for row in VENDORS],
        [row.key_variable for row in VENDORS if row.key_variable],
        [row.url_variable for row in VENDORS if row.url_variable],
    ):
        assert len(names) == len(set(names))


@each
def test_only_known_parameters_are_dropped(row: Vendor) -> None:
    assert row.drops <= set(ModelRequest.__struct_fields__) | OTHER_PARAMETERS


@each
def test_a_row_says_how_to_reach_the_server(row: Vendor) -> None:
    if row.name not in (GENERIC, "local"):
        assert row.url or row.url_variable
    assert row.url == "" or row.url.startswith(("https://", "http://127.0.0.1"))
    assert not row.url.endswith("/")
    assert bool(row.key_variable) or not row.key_required


@each
def test_a_row_does_not_contradict_itself(row: Vendor) -> None:
    if "parallel_tool_calls" in row.drops:
        assert not row.capabilities.parallel_flag


def test_a_vendor_is_found_by_name() -> None:
    assert vendor("groq").key_variable == "GROQ_API_KEY"
    assert find_vendor("nobody") is None
    with pytest.raises(LookupError, match="nobody"):
        vendor("nobody")
