from robustness_page import PAGE, page, review


def test_the_page_says_what_the_tests_try():
    assert PAGE.read_text(encoding="utf-8") == page(), "run python tests/robustness_page.py"
    assert page().count("\n| ") > 40


def test_all_that_a_review_found_has_a_test():
    """All but B30, a suite that fails on a machine with a GPU, which only such a machine can show."""
    numbers = {row[0] for row in review()}
    assert {*(f"A{i}" for i in range(1, 23)), *(f"B{i}" for i in range(23, 30))} <= numbers
