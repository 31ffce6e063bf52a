"""The page in which one draws digits, as a person uses it: by pointer, by keyboard, and by what it says."""

import functools
import importlib.util
import json
import shutil
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

import numpy as np
import pytest

from browser import browser, complaints, needs_browser
from pages import ROOT
from strokes import DIGITS, LETTERS, SCRIBBLES, trace

PLAY = ROOT / "examples" / "play"
SITE = PLAY / "site"
BUILT = ("detector.onnx", "detector.json", "ort/ort.wasm.bundle.min.mjs", "ort/ort-wasm-simd-threaded.wasm")
needs_site = pytest.mark.skipif(
    not all((SITE / name).exists() for name in BUILT), reason="needs the built page: make play builds it, with npm"
)
WAIT = 20  # seconds, where the page should answer within one


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    """The page as it is now, with the network and the runtime that were built last, from a plain static server."""
    folder = tmp_path_factory.mktemp("play")
    (folder / "ort").mkdir()
    for name in BUILT:
        shutil.copy(SITE / name, folder / name)
    for name in load("build").PAGE:
        shutil.copy(PLAY / name, folder / name)
    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def page(url, tmp_path_factory):
    with browser(tmp_path_factory.mktemp("profile")) as driver:
        driver.set_script_timeout(WAIT)
        driver.get(url)
        wait(driver, lambda: status(driver) != "")
        yield driver
        assert not complaints(driver)
        sent = [json.loads(entry["message"])["message"] for entry in driver.get_log("performance")]
        asked = [each["params"]["request"]["url"] for each in sent if each["method"] == "Network.requestWillBeSent"]
        assert any(each.endswith(".wasm") for each in asked) and any(each.endswith(".onnx") for each in asked)
        others = ("data:", "chrome:", "chrome-untrusted:")  # in the page itself; of the browser's first, empty tab
        assert {urlsplit(each).netloc for each in asked if not each.startswith(others)} == {urlsplit(url).netloc}


@needs_browser
@needs_site
def test_a_drawn_digit_is_known_and_a_scribble_is_not(page):
    draw(page, trace(DIGITS[3][1]))
    assert status(page).startswith("Known. It is a 3 (")
    digit = surprise(page)
    assert digit < threshold(page) and text(page, "digit") == "3"
    shares = [row.text.split()[-1] for row in page.find_elements("css selector", "#bars li")]
    assert shares[3] in (">99%", *(f"{n}%" for n in range(90, 101))) and len(shares) == 10

    page.find_element("id", "clear").click()
    wait(page, lambda: status(page).startswith("Draw a digit."))
    draw(page, trace(SCRIBBLES["zigzag"]))
    assert status(page).startswith("Unlike anything seen. It would still say ")
    assert surprise(page) > threshold(page) > digit


@needs_browser
@needs_site
def test_examples_and_changes_by_keyboard_alone(page):
    from selenium.webdriver.common.keys import Keys

    def press(*keys):
        before = status(page)
        page.switch_to.active_element.send_keys(*keys)
        wait(page, lambda: status(page) != before)
        return status(page)

    page.find_element("id", "clear").click()  # from here on, the keyboard only
    wait(page, lambda: status(page).startswith("Draw a digit."))
    reach(page, "digit")
    assert press(Keys.ENTER).startswith("Known. It is a ")
    reach(page, "letter")
    assert press(Keys.SPACE).startswith("Unlike anything seen.")
    reach(page, "scribble")
    assert press(Keys.ENTER).startswith("Unlike anything seen.")
    reach(page, "between")
    assert "orn between 4 and 9." in press(Keys.ENTER)
    reach(page, "digit", back=True)
    press(Keys.ENTER)
    upright = surprise(page)
    reach(page, "turn")
    press(Keys.PAGE_UP, Keys.PAGE_UP)  # a tenth of the range each
    assert text(page, "turn-value") != "0°" and surprise(page) > upright
    reach(page, "noise")
    press(Keys.END)
    assert status(page).startswith("Unlike anything seen.") and text(page, "noise-value") == "0.50"


@needs_browser
@needs_site
def test_drawn_digits_are_mostly_known_letters_and_scribbles_are_not(page):
    rng = np.random.default_rng(0)
    drawn = {
        (label, way, hand): trace(DIGITS[label][way], rng)
        for label in range(10)
        for way in range(4)
        for hand in range(3)
    }
    found = judge(page, list(drawn.values()))
    right = np.array([each["prediction"] == label for each, (label, _, _) in zip(found, drawn, strict=True)])
    known = np.array([not each["surprising"] for each in found])
    later = np.array([way >= 2 for _, way, _ in drawn])
    print(f"first ways: {right[~later].mean():.0%} right, {(right & known)[~later].mean():.0%} right and known")
    print(f"other ways: {right[later].mean():.0%} right, {(right & known)[later].mean():.0%} right and known")
    assert right.mean() >= 0.9 and (right & known).mean() >= 0.8 and (known & ~right).mean() <= 0.05
    for name, shapes in {"letters": LETTERS, "scribbles": SCRIBBLES}.items():
        strange = [
            each["surprising"] for each in judge(page, [trace(s, rng) for s in shapes.values() for _ in range(3)])
        ]
        print(f"{name}: {np.mean(strange):.0%} of {len(strange)} surprising")
        assert np.mean(strange) >= 0.8


@needs_browser
@needs_site
def test_the_browser_says_what_onnxruntime_says(page):
    onnxruntime = pytest.importorskip("onnxruntime")
    images = np.random.default_rng(0).uniform(0, 1, (5, 64)).astype(np.float32)
    found = call(page, "page.judge(given)", images.tolist())
    session = onnxruntime.InferenceSession(str(SITE / "detector.onnx"))
    names = [each.name for each in session.get_outputs()]
    ours = dict(zip(names, session.run(names, {"images": images.reshape(-1, 1, 8, 8)}), strict=True))
    for name, theirs in (("epistemic", "epistemic"), ("aleatoric", "aleatoric"), ("p_value", "pValue")):
        np.testing.assert_allclose([each[theirs] for each in found], ours[name], rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose([each["probabilities"] for each in found], ours["probabilities"], rtol=1e-3, atol=1e-5)
    assert [each["prediction"] for each in found] == ours["prediction"].tolist()


@needs_browser
@needs_site
def test_images_do_not_depend_on_place_size_or_slant(page):
    strokes = trace(DIGITS[5][1])
    moved = [[(0.1 + 0.4 * x, 0.3 + 0.4 * y) for x, y in stroke] for stroke in strokes]
    slanted = [[(x + 0.2 * (1 - y), y) for x, y in stroke] for stroke in strokes]
    plain, small, leaning, empty, dot = call(
        page, "given.map(page.toImage)", [strokes, moved, slanted, [], [[(0.5, 0.5)]]]
    )
    np.testing.assert_allclose(small, plain, atol=0.13)  # two of the 16 places of a pixel
    assert np.abs(np.subtract(leaning, plain)).mean() < 0.05
    assert empty is None and np.isfinite(dot).all() and max(dot) > 0.9
    bar = np.reshape(call(page, "page.toImage(given)", trace(["50,10 50,90"])), (8, 8))
    assert (bar[1:7, 3:5] == 1).all() and (bar[:, [0, 1, 6, 7]] == 0).all() and bar[[0, 7]].any(axis=1).all()


@needs_browser
@needs_site
def test_a_phone_shows_everything_without_scrolling_sideways(page):
    size = {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True}
    page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    draw(page, trace(DIGITS[2][2]))
    assert page.execute_script("return document.documentElement.scrollWidth") <= 390
    verdict = page.execute_script("return document.querySelector('.verdict').getBoundingClientRect().bottom")
    assert verdict <= 844  # drawing and verdict are on one screen
    heights = "return [...document.querySelectorAll('button')].map((b) => b.getBoundingClientRect().height)"
    assert min(page.execute_script(heights)) >= 44  # a finger's width


def test_a_machine_without_npm_is_told_what_to_install(tmp_path, monkeypatch):
    build = load("build")
    shutil.copy(PLAY / "package.json", tmp_path)
    monkeypatch.setattr(build, "HERE", tmp_path)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(SystemExit, match=r"npm is not installed.*Install Node.js"):
        build.build(tmp_path / "site")
    assert not (tmp_path / "site").exists()


def test_a_failed_build_leaves_the_folder_as_it_was(tmp_path, monkeypatch):
    build = load("build")
    runtime, out = tmp_path / "runtime", tmp_path / "site"
    runtime.mkdir()
    for name in build.RUNTIME:
        (runtime / name).write_text(name)
    monkeypatch.setattr(build, "install", lambda: runtime)
    monkeypatch.setattr(build, "write_detector", lambda folder: (folder / "detector.onnx").write_text("first"))
    build.build(out)
    built = sorted(str(path.relative_to(out)) for path in out.rglob("*") if path.is_file())
    assert built == sorted([*build.PAGE, "detector.onnx", *(f"ort/{name}" for name in build.RUNTIME)])
    monkeypatch.setattr(build, "write_detector", lambda folder: (folder / "detector.onnx").write_text("second") / 0)
    with pytest.raises(ZeroDivisionError):
        build.build(out)
    assert (out / "detector.onnx").read_text() == "first" and sorted(tmp_path.iterdir()) == [runtime, out]


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *about):
        pass


def load(name):
    spec = importlib.util.spec_from_file_location(f"play_{name}", PLAY / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def wait(driver, condition):
    from selenium.webdriver.support.ui import WebDriverWait

    WebDriverWait(driver, WAIT, poll_frequency=0.05).until(lambda _: condition())


def text(driver, name):
    return driver.find_element("id", name).get_attribute("textContent")


def status(driver):
    """What a screen reader hears."""
    return text(driver, "status")


def surprise(driver):
    return float(text(driver, "surprise-value"))


def threshold(driver):
    return float(text(driver, "threshold").split()[-1])


def draw(driver, strokes):
    """Draw strokes on the pad with the pointer, and wait until the page has said what it thinks."""
    from selenium.webdriver.common.actions.action_builder import ActionBuilder

    box = driver.find_element("id", "pad").rect
    before = status(driver)
    actions = ActionBuilder(driver, duration=2)
    for stroke in strokes:
        points = [
            (round(box["x"] + x * box["width"]), round(box["y"] + y * box["height"]))
            for x, y in [*stroke[::3], stroke[-1]]
        ]
        actions.pointer_action.move_to_location(*points[0]).pointer_down()
        for point in points[1:]:
            actions.pointer_action.move_to_location(*point)
        actions.pointer_action.pointer_up()
    actions.perform()
    wait(driver, lambda: status(driver) != before)


def reach(driver, name, *, back=False):
    """Press Tab until a control has the focus."""
    from selenium.webdriver.common.keys import Keys

    for _ in range(12):
        control = driver.switch_to.active_element
        if name in (control.get_attribute("id"), control.get_attribute("data-example")):
            return
        control.send_keys(Keys.SHIFT + Keys.TAB if back else Keys.TAB)
    raise AssertionError(f"Tab does not lead to {name!r}")


def call(driver, code, given):
    """What the page's own module makes of something."""
    script = f"const [given, done] = arguments; import('/play.js').then(async (page) => done(await {code}))"
    return driver.execute_async_script(script, given)


def judge(driver, drawings):
    return call(driver, "page.judge(given.map(page.toImage))", drawings)
