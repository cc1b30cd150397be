"""What `tests.conftest` does with the tests that it is given."""

from __future__ import annotations

import pytest

from tests.conftest import pytest_collection_modifyitems


class Item:
    """A collected case of a test."""

    def __init__(self, nodeid, *markers):
        self.nodeid = nodeid
        self.markers = set(markers)

    def get_closest_marker(self, name):
        return name if name in self.markers else None

    def add_marker(self, name):
        self.markers.add(name)


def quick(items):
    pytest_collection_modifyitems(items)
    return [item.nodeid for item in items if "slow" not in item.markers]


def cases(test, *markers, count=4):
    return [Item(f"{test}[{case}]", *markers) for case in range(count)]


def test_one_case_of_a_marked_test_stays_and_always_the_same():
    (stays,) = quick(cases("a.py::test_x", "one_case"))
    for _ in range(3):
        others = cases("a.py::test_y", "one_case")
        assert stays in quick([*others, *cases("a.py::test_x", "one_case")])


def test_other_tests_keep_all_their_cases():
    assert len(quick(cases("a.py::test_x"))) == 4
    assert quick([Item("a.py::test_x", "one_case")]) == ["a.py::test_x"]
    assert quick(cases("a.py::test_x", "slow")) == []


def test_a_case_that_is_slow_by_itself_is_not_the_one():
    for number in range(20):
        items = cases(f"a.py::test_{number}", "one_case")
        for item in items[:-1]:
            item.add_marker("slow")
        assert quick(items) == [items[-1].nodeid]


def test_tests_that_share_a_list_try_different_cases():
    tests = [f"a.py::test_{number}" for number in range(40)]
    stay = quick([item for test in tests for item in cases(test, "one_case")])
    assert [nodeid.partition("[")[0] for nodeid in stay] == tests
    assert {nodeid[-2] for nodeid in stay} == set("0123")


def test_a_test_in_a_class_is_told_from_another_of_its_name():
    names = ("a.py::TestA::test_x", "a.py::TestB::test_x")
    stay = quick([item for name in names for item in cases(name, "one_case")])
    assert [nodeid.partition("[")[0] for nodeid in stay] == [*names]


@pytest.mark.one_case
@pytest.mark.parametrize("number", range(5))
def test_this_run_has_it_once(request, number):
    """The marker as pytest itself reads it."""
    of_this = [
        item
        for item in request.session.items
        if item.nodeid.partition("[")[0] == request.node.nodeid.partition("[")[0]
        and not item.get_closest_marker("slow")
    ]
    assert len(of_this) == 1
