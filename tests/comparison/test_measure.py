"""Time."""

from hidden_uncertainty.comparison.measure import milliseconds


def test_sides_take_turns_after_a_call_that_does_not_count():
    calls = []
    found = milliseconds({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, rounds=2)
    assert calls == ["a", "b", "a", "b", "a", "b"] and set(found) == {"a", "b"}
