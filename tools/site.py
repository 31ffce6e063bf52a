"""What the documentation site adds to MkDocs; `mkdocs.yml` names this file as its hook.

Pages are written to be read in the repository: their links are relative to the files as they lie there. So the site
knows every page by its path in the repository, and only the addresses are shorter. Mathematics becomes MathML, which
browsers draw themselves: nothing is loaded from another host, and the build refuses a page that would.
"""

from __future__ import annotations

import ast
import posixpath
import re
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import Any

import griffe
from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from pymdownx.slugs import slugify

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src/hidden_uncertainty"
PLAY = ROOT / "examples/play/site"  # what python examples/play/build.py writes
ADDRESSES = {"README.md": "index", "docs/index.md": "contents/index"}
EXTRA = (
    "*.md",
    "bench/RESULTS.md",
    "results/*.md",
    "results/*.png",
    "results/**/*.json",
    "examples/*.py",
    "examples/*/*.py",
)
API = {  # the pages of the reference, in the order in which a batch meets them
    "": "What most users need",
    "baselines": "Other methods",
    "density": "Densities",
    "marginal": "Marginals",
    "reduce": "Reductions",
    "metrics": "Metrics",
    "plots": "Plots",
    "comparison": "Comparison",
    "deployment": "Deployment",
    "exporting": "Export",
    "sklearn": "scikit-learn",
    "demo": "Demonstration",
}
INSIDE = {"FORWARD", "KINDS", "Sums", "Values", "__version__", "as_scores", "baselines", "metrics", "plots"}
FIRST = ("LatentDensity", "Detector", "Uncertainty", "layers", "suggest")

LINK = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
MATH = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)
SPACE = '<mspace width="0.17em"/>'
LOADED = re.compile(
    r"<(?:script|img|iframe|source)[^>]+src=[\"']?https?:[^>]*"
    r"|<link[^>]+rel=[\"']?(?:stylesheet|preconnect|preload)[^>]+https?:[^>]*"
)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Name headings as GitHub does, and leave out of the navigation what is not there."""
    config.mdx_configs["toc"] = {**config.mdx_configs.get("toc", {}), "slugify": slugify(case="lower")}
    config.nav = list(_there(config.nav or []))
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Know every page by its path in the repository; add results, the reference and the page that draws."""
    for file in list(files):
        if file.src_dir == config.docs_dir:
            files.remove(file)
    for path in sorted({path for pattern in ("docs/**/*", *EXTRA) for path in ROOT.glob(pattern) if path.is_file()}):
        files.append(_file(config, path.relative_to(ROOT).as_posix()))
    for module, title in API.items():
        name = f"api/{module or 'index'}.md"
        files.append(File.generated(config, name, content=_reference(module, title)))
    for path in sorted(PLAY.rglob("*")):
        if path.is_file():
            address = f"play/app/{path.relative_to(PLAY).as_posix()}"
            files.append(File.generated(config, address, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """What GitHub reads and MkDocs does not: flags of blocks, mathematics in blocks, links to source files."""
    here = posixpath.dirname(page.file.src_uri)

    def kept(link: re.Match[str]) -> str:
        text, target = link.groups()
        if re.match(r"[a-z]+:|#", target):
            return link[0]
        path = posixpath.normpath(posixpath.join(here, target.partition("#")[0]))
        return link[0] if files.get_file_from_path(path) or not (ROOT / path).exists() else text

    if page.file.src_uri == "README.md":
        page.meta["hide"] = ["navigation"]
    parts = re.split(r"(^```.*?^```$)", markdown, flags=re.MULTILINE | re.DOTALL)
    parts[::2] = [LINK.sub(kept, part) for part in parts[::2]]
    markdown = "".join(parts)
    markdown = re.sub(r"^```text about$", "```text", markdown, flags=re.MULTILINE)
    markdown = re.sub(r"^```math\n(.*?)^```$", r"$$\n\1$$", markdown, flags=re.MULTILINE | re.DOTALL)
    if page.file.src_uri == "docs/play.md" and (PLAY / "index.html").exists():
        markdown = re.sub(r"\A(# .+\n)", r'\1\n<a href="app/index.html">Open the page that draws</a>\n', markdown)
    return markdown


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Replace TeX by MathML."""
    return MATH.sub(lambda found: mathml(unescape(found[2]), block=found[1] == "div"), html)


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Refuse what a browser would load from another host."""
    if found := LOADED.search(output):
        raise PluginError(f"{page.file.src_uri} loads from another host: {found[0]}")
    return output


def mathml(tex: str, *, block: bool) -> str:
    """TeX as MathML, with the number of an equation at its right and a space after the names of functions."""
    number = re.search(r"\\tag\{(.+?)\}", tex)
    tex = re.sub(r"\\tag\{.+?\}", "", tex).replace(r"\_", "_").strip()  # in names, which are text
    if r"\\" in tex and r"\begin" not in tex:
        tex = rf"\begin{{aligned}}{tex}\end{{aligned}}"
    math = convert(tex, display="block" if block else "inline")
    math = re.sub(r"(?<=&#x00029;</mo>)(?=<mi>log)|(?<=<mi>log</mi>)(?!<mo)", SPACE, math)
    math = re.sub(r"(?<=<mo>&#x0003D;</mo><mo)(?=>&#x02212;)", ' form="prefix"', math)
    if not block:
        return math
    tag = f'<span class="tag">({number[1]})</span>' if number else ""
    return f'<div class="equation">{math}{tag}</div>'


class Docstrings(griffe.Extension):
    """Docstrings as the reference can read them: formulas between dollars, examples as a section."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Translate one docstring."""
        if not obj.docstring:
            return
        text = re.sub(r":math:`(.+?)`", r"$\1$", obj.docstring.value)
        text = re.sub(r"^\.\. math::((?:[ \t]*\S.*)?(?:\n+[ \t]+\S.*)*)", _formula, text, flags=re.MULTILINE)
        text = re.sub(r"^(    )(\w+(?:, \w+)+)(: .+)$", _one_by_one, text, flags=re.MULTILINE)
        obj.docstring.value = re.sub(r"^Example:$", "Examples:", text, flags=re.MULTILINE)


def _formula(found: re.Match[str]) -> str:
    lines = [line.strip() for line in found[1].splitlines()]
    return "\n".join(["$$", *filter(None, lines), "$$"])


def _one_by_one(line: re.Match[str]) -> str:
    return "\n".join(f"{line[1]}{name}{line[3]}" for name in line[2].split(", "))


def _there(nav: list[Any]) -> Iterator[Any]:
    for entry in nav:
        (title, target), *_ = entry.items() if isinstance(entry, dict) else [(None, entry)]
        if isinstance(target, list):
            yield {title: list(_there(target))}
        elif target.startswith("api/") or (ROOT / target).exists():
            yield entry


def _file(config: MkDocsConfig, path: str) -> File:
    """A file of the repository; `docs/` is left out of its address."""
    file = File.generated(config, path, abs_src_path=str(ROOT / path))
    stem, _, ending = path.rpartition(".")
    if ending == "md":
        stem = ADDRESSES.get(path) or re.sub(r"^docs/", "", stem).lower()
        stem = stem.removesuffix("/readme") + ("" if stem.endswith("index") else "/index")
        file.dest_uri = f"{stem}.html"
    else:
        file.dest_uri = path.removeprefix("docs/")
    return file


def _reference(module: str, title: str) -> str:
    """A page with every public name of a module, read from its `__all__` without importing it."""
    dotted = f"hidden_uncertainty.{module}".rstrip(".")
    names = set(_public(module)) - INSIDE
    about = (ast.get_docstring(_tree(module)) or "").partition("\n\n")[0]
    if not module:  # names that have a page of their own are there
        names -= {name for other in API if other for name in _public(other)}
        about += " Names that are in `hidden_uncertainty` itself and not below are on the page of their folder."
    order = sorted(names, key=lambda name: (FIRST.index(name) if name in FIRST else len(FIRST), name.lower()))
    blocks = "\n\n".join(f"::: {dotted}.{name}" for name in order)
    return f"# {title}\n\n`{dotted}`: {about}\n\n{blocks}\n"


def _tree(module: str) -> ast.Module:
    source = PACKAGE / module / "__init__.py" if (PACKAGE / module).is_dir() else PACKAGE / f"{module}.py"
    return ast.parse(source.read_text(encoding="utf-8"))


def _public(module: str) -> list[str]:
    tree = _tree(module)
    for node in tree.body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
            return list(ast.literal_eval(node.value))
    return [node.name for node in tree.body if isinstance(node, ast.ClassDef) and not node.name.startswith("_")]
