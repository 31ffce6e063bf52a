"""The documentation site builds without a warning, and a browser shows it without asking another host."""

import functools
import http.server
import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from browser import browser, complaints, needs_browser
from pages import ROOT

REQUEST = "Network.requestWillBeSent"


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr[-3000:]
    return folder


def test_links_between_folders_and_docstrings_are_translated(site):
    def page(name: str) -> str:
        return (site / name / "index.html").read_text(encoding="utf-8")

    assert 'href="../results/#regularisation"' in page("which-method")
    assert 'href="../how-it-works/#limits"' in page("results") and 'src="truth.png"' in page("results")
    assert 'src="images/demo.png"' in page("") and (site / "images/demo.png").exists()
    assert "../tests" not in page("robustness"), "a folder that the site does not have"
    reference = page("api")
    assert 'id="hidden_uncertainty.LatentDensity"' in reference and "<math" in reference
    assert not any(left in reference for left in (".. math::", ":math:", "arithmatex", "Example:"))
    assert "false_alarm</mtext>" in page("monitoring"), "an underscore in a formula, without its backslash"


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None: ...


@needs_browser
def test_a_browser_shows_it_without_other_hosts(site, tmp_path: Path):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Quiet, directory=str(site)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    here = f"127.0.0.1:{server.server_port}"
    try:
        with browser(tmp_path, width=390, height=844) as driver:
            for name in ("", "tutorial/", "how-it-works/", "results/"):
                driver.get(f"http://{here}/{name}")
                assert not complaints(driver)
                unseen = "return [...document.images].filter(i => !(i.complete && i.naturalWidth)).map(i => i.src)"
                assert driver.execute_script(unseen) == []
                sizes = "return [...document.querySelectorAll('math')].map(m => m.getBoundingClientRect().height)"
                assert all(height > 5 for height in driver.execute_script(sizes))
                assert driver.execute_script("return document.documentElement.scrollWidth <= window.innerWidth")
                sent = [json.loads(entry["message"])["message"] for entry in driver.get_log("performance")]
                urls = [each["params"]["request"]["url"] for each in sent if each["method"] == REQUEST]
                assert {url.split("/")[2] for url in urls if url.startswith("http")} == {here}
    finally:
        server.shutdown()
        server.server_close()
