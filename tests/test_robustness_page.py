from robustness_page import PAGE, page


def test_the_page_says_what_the_tests_try():
    assert PAGE.read_text(encoding="utf-8") == page(), "run python tests/robustness_page.py"
    assert page().count("\n| ") > 40
