"""What `tests.conftest` does with the tests that it is given: `one_case`."""

from __future__ import annotations

import pytest

from tests.conftest import pytest_collection_modifyitems


class Item:
    """A collected case of a test."""

    def __init__(self, nodeid, *markers):
        self.nodeid, self.markers = nodeid, set(markers)

    def get_closest_marker(self, name):
        return name if name in self.markers else None

    def add_marker(self, name):
        self.markers.add(name)


def quick(items):
    pytest_collection_modifyitems(items)
    return [item.nodeid for item in items if "slow" not in item.markers]


def cases(test, *markers):
    return [Item(f"{test}[{case}]", *markers) for case in range(4)]


def test_one_case_of_a_marked_test_stays_and_tests_try_different_ones():
    tests = [f"a.py::TestA::test_{number}" for number in range(40)]
    stay = quick([item for test in tests for item in cases(test, "one_case")])
    assert [nodeid.partition("[")[0] for nodeid in stay] == tests
    assert {nodeid[-2] for nodeid in stay} == set("0123")
    # Always the same, whatever else is run.
    assert quick(cases(tests[7], "one_case")) == [stay[7]]


def test_other_tests_keep_their_cases_and_slow_ones_are_not_the_one():
    assert len(quick(cases("a.py::test_x"))) == 4
    assert quick(cases("a.py::test_x", "slow")) == []
    items = cases("a.py::test_x", "one_case")
    for item in items[:-1]:
        item.add_marker("slow")
    assert quick(items) == [items[-1].nodeid]


@pytest.mark.one_case
@pytest.mark.parametrize("number", range(5))
def test_this_run_has_it_once(request, number):
    """The marker as pytest itself reads it."""
    name = request.node.nodeid.partition("[")[0]
    of_this = [item for item in request.session.items if item.nodeid.startswith(name)]
    assert sum(not item.get_closest_marker("slow") for item in of_this) == 1
