"""The pages do what they say: their code runs and prints what is shown, their links lead somewhere."""

import re
import runpy
import sys

import pytest
import torch
from matplotlib import image

from hidden_uncertainty.abilities import ABILITIES
from pages import FENCE, ROOT, STAND_INS, examples, pictures, run, same
from reproduction.studies import NAMES

PAGES = [page for folder in ("docs", "bench", ".") for page in sorted(ROOT.glob(f"{folder}/*.md"))]
WITH_CODE = [page for page in PAGES if page.name != "README.md" and examples(page.read_text(encoding="utf-8"))]
MADE_BY_DEMO = ROOT / "docs/images/demo.png"
NAV = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]
LINK = re.compile(r"\]\(([^)\s]+)\)")


@pytest.mark.parametrize("page", WITH_CODE, ids=lambda page: page.stem)
def test_code_runs_and_prints_what_is_shown(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for example, found in run(page):
        assert same(found, example.prints, about=example.about), (
            f"line {example.line} printed what follows; if that is right, run python tests/pages.py {page}\n{found}"
        )
    for picture in pictures(page):
        drawn = [image.imread(file).shape for file in (picture.name, picture)]
        assert drawn[0] == drawn[1], f"run python tests/pages.py {page}: {picture.name} is of another size"


@pytest.mark.parametrize("script", sorted(ROOT.glob("examples/*.py")), ids=lambda script: script.stem)
def test_examples_run(script, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with torch.random.fork_rng(devices=[]):
        runpy.run_path(str(script), run_name="__main__")
    assert capsys.readouterr().out


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_somewhere(page):
    for target in LINK.findall(FENCE.sub("", page.read_text(encoding="utf-8"))):
        if target.startswith("https://"):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists() or file == MADE_BY_DEMO, f"{target} leads nowhere"
        assert not anchor or anchor in anchors(file.read_text(encoding="utf-8")), f"{target}: there is no such heading"


def anchors(page: str) -> set[str]:
    """The names that GitHub gives to headings."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_what_each_method_can_do():
    table = (ROOT / "docs/comparing.md").read_text(encoding="utf-8").split("abilities -->")[1]
    shown = {}
    for names, *cells in re.findall(r"^\| (`.+`) " + r"\| (yes|no) " * 5 + r"\|$", table, re.MULTILINE):
        shown |= dict.fromkeys(re.findall(r"`(\w+)`", names), tuple(cell == "yes" for cell in cells))
    assert shown == {name: abilities for name, abilities in ABILITIES.items() if name != "Detector"}


def test_commands_of_the_reproduction_exist():
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    assert set(re.findall(r"python -m reproduction ([\w-]+)", text)) <= {*NAMES, "data", "NAME"}


def test_every_page_is_listed():
    pages = {path for path in ROOT.glob("docs/*.md") if path.stem != "index"}
    linked = LINK.findall((ROOT / "docs/index.md").read_text(encoding="utf-8"))
    assert pages <= {(ROOT / "docs" / target.partition("#")[0]).resolve() for target in linked}
    assert pages <= {ROOT / target for target in re.findall(r"docs/\S+\.md$", NAV, re.MULTILINE)}


@pytest.mark.parametrize(
    ("found", "shown", "about", "expected"),
    [
        ("0.61 nats\n", "0.61 nats\n", False, True),
        ("0.62 nats\n", "0.61 nats\n", False, False),
        ("0.62 nats\n", "0.61 nats\n", True, True),
        ("0.82 nats\n", "0.61 nats\n", True, False),
        ("-178,501\n", "-160,000\n", True, True),
        ("-300,000\n", "-160,000\n", True, False),
        ("97% of 3\n", "92% of 3\n", True, True),
        ("97% of 3\n", "60% of 3\n", True, False),
        ("0.61 bits\n", "0.61 nats\n", True, False),
        ("0.61\n", "0.61 0.62\n", True, False),
        ("", "0.61 nats\n", True, False),
        ("printed, but not shown\n", "", False, False),
    ],
)
def test_what_counts_as_the_same(found, shown, about, expected):
    assert same(found, shown, about=about) is expected


def test_stand_ins_are_there_for_a_page_alone(tmp_path):
    before = dict(sys.modules)
    page = tmp_path / "page.md"
    page.write_text("```python\nimport timm\nprint(timm.__file__)\n```\n", encoding="utf-8")
    ((_, found),) = run(page)
    assert found.strip() == str(STAND_INS / "timm.py")
    assert sys.modules.get("timm") is before.get("timm") and str(STAND_INS) not in sys.path


def test_text_that_no_code_prints_is_refused():
    with pytest.raises(ValueError, match="line 5: no block of Python prints this text"):
        examples("```python\nx = 1\n```\nwords between\n```text\n1\n```\n")
