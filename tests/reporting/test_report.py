"""The page says what independent computations say, holds no one else's code, and works in a browser."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.metrics import average_precision_score, roc_auc_score
from torch import nn

import hidden_uncertainty
from browser import browser, complaints, needs_browser
from hidden_uncertainty import GaussianMixture, JointMixture, LatentDensity, Pixels, report
from hidden_uncertainty.baselines import DeepEnsemble, Energy, NearestNeighbours
from hidden_uncertainty.demo import DigitsNet, digits, train
from pixel_nets import Net, images, masked

HOSTILE = "</script><script>document.title='run'</script><img src=x onerror=\"document.title='run'\">"
OUTLIERS = {"8 and 9": "left_out", HOSTILE: "rotated"}


class Page(HTMLParser):
    """The tables of a page by their captions, its scripts, pictures and text."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tables: dict[str, list[list[str]]] = {}
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.scripts: list[str] = []
        self._open: list[str] = []
        self._rows: list[list[str]] = []
        self.feed(path.read_text(encoding="utf-8"))
        self.data = json.loads(self.scripts[0])
        self.text = " ".join(" ".join(self.texts).split())
        self.figures = {found["data-chart"] for name, found in self.tags if name == "figure" and "data-chart" in found}

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append((tag, dict(attrs)))
        self._open.append(tag)
        if tag == "script":
            self.scripts.append("")
        if tag == "caption":
            self._rows = self.tables.setdefault("", [])
        if tag == "tr":
            self._rows.append([])
        if tag in ("td", "th"):
            self._rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if "script" in self._open:
            self.scripts[-1] += data
        elif "caption" in self._open:
            self._rows = self.tables.setdefault(data, [])
        elif "td" in self._open or "th" in self._open:
            self._rows[-1][-1] += data.replace("\xa0", " ") + " "
        elif "style" not in self._open:
            self.texts.append(data.replace("\xa0", " "))

    def rows(self, caption: str) -> dict[str, list[str]]:
        """The rows of the table whose caption holds a text, by their first cell."""
        (found,) = [rows for name, rows in self.tables.items() if caption in name]
        return {first.strip(): [cell.strip() for cell in rest] for first, *rest in found}


@pytest.fixture(autouse=True)
def seeded() -> Iterator[None]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


@pytest.fixture(scope="module")
def known() -> dict[str, Any]:
    data = digits(left_out=(8, 9))
    model = train(DigitsNet(8), data.train.images, data.train.labels, epochs=4)
    detector = LatentDensity(model).fit(data.train.batches(), calibration=data.calibration.batches())
    detector.threshold(0.05)
    return {"data": data, "detector": detector, "rotated": [data.test.images.rot90(1, (2, 3))]}


@pytest.fixture(scope="module")
def path(known: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    data = known["data"]
    return report(
        known["detector"],
        data.test.batches(100),
        tmp_path_factory.mktemp("report") / "report.html",
        outliers=dict(zip(OUTLIERS, (data.left_out.batches(), known["rotated"]), strict=True)),
        train=data.train.batches(),
        names=[f"{i}{HOSTILE}" for i in range(len(data.test))],
        title=f"Digits {HOSTILE}",
    )


def percents(text: str) -> list[float]:
    return [float(value) / 100 for value in re.findall(r"-?\d+\.\d+", text)]


def test_scores_thresholds_and_areas(known: dict[str, Any], path: Path) -> None:
    page, detector = Page(path), known["detector"]
    u = detector.predict(known["data"].test.batches(100))
    inside = u.epistemic.numpy()
    outside = [detector.predict(known["data"].left_out.batches()), detector.predict(known["rotated"])]
    y = np.repeat([0, 1], [len(inside), len(outside[0])])
    both = np.concatenate([inside, outside[0].epistemic.numpy()])
    told = page.rows("Outliers told from 289")["8 and 9"]
    assert told[:3] == ["354", f"{roc_auc_score(y, both):.3f}", f"{average_precision_score(y, both):.3f}"]
    layers = page.rows("How well each term alone")
    for name, scores in u.layers.items():
        parts = np.concatenate([scores.epistemic.numpy(), outside[0].layers[name].epistemic.numpy()])
        cells = layers["outputs" if name == "outputs" else f"layer {name}"]
        assert cells[1] == f"{roc_auc_score(y, parts):.3f}" and cells[0] == f"{detector.weights[name]:.2f}"

    n = len(detector.head.calibration.scores)
    row = page.rows("The rate of false alarms")["5.0 %"]
    rank = int(np.floor(0.05 * (n + 1)))
    low, high = stats.beta(rank, n + 1 - rank).ppf([0.025, 0.975])
    assert row[1] == f"{100 * low:.1f} to {100 * high:.1f} %"
    for cell, scores in zip(row[2:], [u, *outside], strict=True):
        caught = int(scores.surprising.sum())
        interval = stats.binomtest(caught, len(scores)).proportion_ci(method="wilson")
        assert percents(cell) == pytest.approx([caught / len(scores), *interval], abs=6e-4)
    assert page.rows("The rate of false alarms")["set in the detector"] == row

    first = page.data["views"][0]
    rate, at, counts = first["rates"][page.data["start"]]
    assert (rate, at) == (0.05, detector.head.calibration.threshold(0.05))
    assert [count for count, *_ in counts] == [int(some.surprising.sum()) for some in (u, *outside)]
    for _, _, edges, shares in first["scores"]["series"]:
        assert len(edges) == len(shares) + 1 and sum(shares) == pytest.approx(1, abs=1e-3)
    expected = [view["name"] for view in page.data["views"]]
    assert expected == [
        "all terms together",
        *("outputs" if name == "outputs" else f"layer {name}" for name in u.layers),
    ]


def test_errors_probabilities_and_p_values(known: dict[str, Any], path: Path) -> None:
    page, test = Page(path), known["data"].test
    u = known["detector"].predict(test.batches(100))
    correct = (u.prediction == test.labels).numpy()
    order = np.argsort(u.epistemic.numpy(), kind="stable")
    accuracy = np.cumsum(correct[order]) / np.arange(1, len(order) + 1)
    kept = [int(np.ceil(share * len(order))) - 1 for share in (1, 0.9, 0.8, 0.5)]
    row = page.rows("Accuracy of what is left")["epistemic uncertainty"]
    assert percents(" ".join(row)) == pytest.approx([*accuracy[kept], np.mean(1 - accuracy)], abs=6e-4)

    stated = u.probabilities.max(1).values.double().numpy()
    bins = np.ceil(stated * 10)
    gap = sum(abs(correct[bins == b].mean() - stated[bins == b].mean()) * (bins == b).mean() for b in np.unique(bins))
    assert f"what is found is {100 * gap:.1f} % (expected" in page.text
    highest = page.rows("Probability of the predicted class")["90 to 100 %"]
    assert highest[0] == str(int((bins == 10).sum())) and percents(highest[2])[0] == pytest.approx(
        correct[bins == 10].mean(), abs=6e-4
    )

    distance = stats.kstest(u.p_value.numpy(), "uniform").statistic
    assert f"(Kolmogorov-Smirnov) is {100 * distance:.1f} % of inputs" in page.text
    (_, _, places, shown), *_ = page.data["charts"]["strip"]["series"]
    assert shown == pytest.approx(u.p_value[np.array(places, int)].tolist(), abs=1e-4)


def test_inputs_and_their_nearest(known: dict[str, Any], path: Path) -> None:
    page, data, detector = Page(path), known["data"], known["detector"]
    u = detector.predict(data.test.batches(100))
    pictures = [found for name, found in page.tags if name == "img"]
    assert all(found["src"].startswith("data:image/png;base64,") and found["alt"] for found in pictures)
    alts = [found["alt"] for found in pictures]
    ends = {"surprising": u.epistemic.topk(6), "ambiguous": u.log_aleatoric.topk(6), "familiar": (-u.epistemic).topk(6)}
    for kind, top in ends.items():
        own = [alt for alt in alts if alt.startswith(f"Most {kind}")]
        assert [int(re.search(r": (\d+)<", alt)[1]) for alt in own] == top.indices.tolist()
    features, queries = (detector.extract(part.batches()).z["output"] for part in (data.train, data.test))
    distances = np.linalg.norm(queries[int(u.epistemic.argmax())].numpy() - features.numpy(), axis=1)
    first = alts.index(f"Most surprising (in distribution): {int(u.epistemic.argmax())}{HOSTILE}")
    near = [int(alt.split()[2].strip(",")) for alt in alts[first + 1 : first + 4]]
    assert near == np.argsort(distances)[:3].tolist()

    given = report(
        detector, [data.test.images], path.with_name("features.html"), train=detector.extract([data.train.images])
    )
    assert f"number {near[0]:,} (" in Page(given).text and 'alt="training input' not in given.read_text(
        encoding="utf-8"
    )
    alone = report(detector, [data.test.images], path.with_name("alone.html"))
    assert "nearest" not in Page(alone).text


def test_pictures_are_those_of_the_inputs(known: dict[str, Any], path: Path) -> None:
    pillow = pytest.importorskip("PIL.Image")
    data = known["data"]
    first = int(known["detector"].predict(data.test.batches(100)).epistemic.argmax())
    (source,) = [
        f["src"]
        for n, f in Page(path).tags
        if n == "img" and f["alt"].startswith(f"Most surprising (in distribution): {first}<")
    ]
    file = path.with_name("first.png")
    file.write_bytes(base64.b64decode(source.split(",")[1]))
    with pillow.open(file) as image:
        found = np.array(image.convert("L")).astype(int)
    assert np.abs(found - 255 * data.test.images[first, 0].numpy()).max() <= 1


def test_names_cannot_run(path: Path) -> None:
    page = Page(path)
    assert [name for name, _ in page.tags if name == "script"] == ["script"] * 2
    assert not [found for _, found in page.tags if "onerror" in found or (found.get("src") or "data:")[:5] != "data:"]
    assert page.data["sets"] == ["in distribution", *OUTLIERS]
    assert "<" not in page.scripts[0]


def test_regression(tmp_path: Path) -> None:
    x = torch.randn(1200, 3, generator=torch.Generator().manual_seed(0))
    model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
    with torch.no_grad():
        y = model(x)[:, 0] + 0.3 * x[:, 0].abs() * torch.randn(1200, generator=torch.Generator().manual_seed(1))
    detector = LatentDensity(model, "1", JointMixture(3), task="regression", condition="label")
    detector.fit([(x[:600], y[:600])], calibration=[(x[600:900], y[600:900])])
    page = Page(report(detector, [(x[900:], y[900:])], tmp_path / "numbers.html"))
    u = detector(x[900:])
    error = (u.prediction - y[900:]).abs().double()
    assert (
        page.rows("How well uncertainty ranks")["expected error"][0]
        == f"{stats.spearmanr(u.expected_error, error)[0]:.2f}"
    )
    assert f"error of all is {float((error**2).mean() ** 0.5):.3g}, in" in page.text
    low, high = detector.interval(u, 0.9)
    held, width = ((low <= y[900:]) & (y[900:] <= high)).double().mean(), float((high - low).double().mean())
    cells = page.rows("Intervals of")["90.0 %"]
    assert percents(cells[0])[0] == pytest.approx(float(held), abs=6e-4) and cells[1] == f"{width:.3g}"
    assert page.figures == {"scores", "errors", "rejection", "strip", "p"}
    assert "There is no ROC curve" in page.text and "so there is nothing to compare" in page.text
    surprising = page.rows("Most surprising")
    assert f"number {int(u.epistemic.argmax())}" in surprising


@pytest.mark.parametrize("outputs", [4, 1], ids=["classes", "numbers"])
def test_pixels(outputs: int, tmp_path: Path) -> None:
    net, task = Net(outputs), "classification" if outputs > 1 else "regression"
    x = images(60)
    y = masked(x) if outputs > 1 else torch.randn(60, 14, 19, generator=torch.Generator().manual_seed(3))
    pixels = Pixels(per_class=20)
    if outputs > 1:
        detector = LatentDensity(net, "second", GaussianMixture(1), task=task, pixels=pixels)
    else:
        detector = NearestNeighbours(net, "second", task=task, pixels=pixels)
    detector.fit([(x[:10], y[:10])], calibration=[(x[10:40], y[10:40])])
    detector.threshold(0.1)
    page = Page(report(detector, [(x[40:50], y[40:50]), (x[50:], y[50:])], tmp_path / "pixels.html", train=[x[:10]]))
    u, valid = detector(x[40:]), detector.pixels.valid(y[40:])
    alarms = [float(one[which].double().mean()) > 0.01 for one, which in zip(u.surprising, valid, strict=True)]
    assert percents(page.rows("The rate of false alarms")["set in the detector"][2])[0] == pytest.approx(
        np.mean(alarms)
    )
    panels = [found["alt"] for name, found in page.tags if name == "img"]
    assert sum(alt.startswith("epistemic") for alt in panels) == (9 if outputs > 1 else 6)
    assert "Nearest training inputs are told for whole inputs only" in page.text
    if outputs > 1:
        right = float((u.prediction == y[40:])[valid].double().mean())
        assert page.rows("Accuracy of what is left")["epistemic uncertainty"][0] == f"{100 * right:.1f} %"
    else:
        low, high = detector.interval(u, 0.9)
        inside = ((low <= y[40:]) & (y[40:] <= high)).flatten(1).double().mean(1) >= 0.99
        assert percents(page.rows("Intervals of")["90.0 %"][0])[0] == pytest.approx(float(inside.double().mean()))


def test_what_does_not_apply_is_left_out(tmp_path: Path) -> None:
    x = torch.randn(40, 5, 7, generator=torch.Generator().manual_seed(0))  # neither images nor rows
    model = nn.Sequential(nn.Flatten(), nn.Linear(35, 4))
    page = Page(report(Energy(model, task="classification"), [x], tmp_path / "energy.html"))
    assert page.figures == {"scores"} and not page.data["views"][0]["rates"]
    for sentence in ("There are no thresholds", "no ROC curve", "This part needs labels", "There are no p-values"):
        assert sentence in page.text
    assert page.rows("Most surprising")["input"] == ["predicted", "score"]
    several = DeepEnsemble([nn.Sequential(nn.Flatten(), nn.Linear(35, 4)) for _ in range(2)], task="classification")
    page = Page(report(several, [x], tmp_path / "ensemble.html", train=[x]))
    read = page.rows("What is read of the network")["outputs"]
    assert read[:3] == ["the network’s outputs", "as they are", "DeepEnsemble"]
    assert "Nearest training inputs are told for whole inputs only" in page.text


def test_several_labels_and_inputs_that_break_the_network(tmp_path: Path) -> None:
    x = torch.randn(700, 4, generator=torch.Generator().manual_seed(0))
    model = nn.Linear(4, 3)
    with torch.no_grad():
        y = (model(x) > 0.1).long()
    detector = LatentDensity(model, task="multi-label").fit(
        [(x[:400], y[:400])], calibration=[(x[400:600], y[400:600])]
    )
    broken = x[600:].clone()
    broken[:3] = torch.nan
    page = Page(report(detector, [(broken, y[600:])], tmp_path / "labels.html"))
    assert "3 inputs: the network gave NaN or infinity" in page.text
    assert detector.layers[0] == ""  # the network itself, whose score is not the detector's own
    own, layer, _ = page.data["views"]
    with pytest.warns(UserWarning, match="NaN or infinity"):
        u = detector(broken)
    for view, scores in ((own, u.epistemic), (layer, u.layers[""].epistemic)):
        assert all(counts[0][0] == int((scores.double() > at).sum()) for _, at, counts in view["rates"])
    right = (detector(x[603:]).prediction == y[603:]).all(1).double().mean()
    assert page.rows("Accuracy of what is left")["epistemic uncertainty"][0] == f"{100 * float(right):.1f} %"


def test_options_of_densities_are_shown(tmp_path: Path) -> None:
    x = torch.randn(280, 2)
    detector = LatentDensity(nn.Sequential(nn.Linear(2, 3)), "0", GaussianMixture(pooling=3), task="classification")
    page = Page(report(detector.fit([x[:180]]), [x[180:]], tmp_path / "report.html"))
    density = "GaussianMixture (components=1, covariance='full', shrinkage='auto', pooling=3)"
    assert page.rows("What is read of the network")["0"][2] == density


def test_the_rate_that_was_asked_for_is_shown(tmp_path: Path) -> None:
    x = torch.randn(280, 2)
    detector = Energy(nn.Linear(2, 3), task="classification").fit([], calibration=[x[:180]])
    assert detector.threshold(0.05) == detector.threshold(0.055)  # nine of 181, either way
    page = Page(report(detector, [x[180:]], tmp_path / "report.html"))
    assert "where 5.0 % are accepted" in page.text


def test_labels_that_are_missing(tmp_path: Path) -> None:
    x = torch.randn(400, 4, generator=torch.Generator().manual_seed(0))
    model = nn.Sequential(nn.Linear(4, 1))
    y = model(x).detach() + 0.3 * torch.randn(400, 1)
    detector = NearestNeighbours(model, "0", task="regression").fit([(x[:200], y[:200])], [(x[200:300], y[200:300])])
    known, y = y[320:].clone(), y.clone()
    y[300:320] = float("nan")
    odd, called = {"\u202e": [x]}, ["\udcff\u2066"] * 400  # no UTF-8, and what turns text round
    pages = [
        Page(report(detector, [(x[start:], y[start:])], tmp_path / "report.html", outliers=odd, names=called[start:]))
        for start in (300, 320)
    ]
    assert pages[0].rows("Intervals of") == pages[1].rows("Intervals of")
    error = f"{float((model(x[320:]).detach() - known).square().mean().sqrt()):.3g} root mean squared error"
    assert error in pages[0].text and error in pages[1].text
    assert set(pages[0].rows("Most surprising")) == {"input", "?\ufffd"} and pages[0].data["sets"][1] == "\ufffd"
    page = Page(report(detector, [x[300:350], (x[350:], y[350:])], tmp_path / "report.html"))
    assert {len(row) for row in page.tables["Most surprising (in distribution)"]} == {5}
    page = Page(report(detector, [(x[:50] * float("nan"), y[:50])], tmp_path / "report.html"))
    assert "This part needs labels" in page.text


def test_scores_far_from_zero_keep_their_bars(tmp_path: Path) -> None:
    model = nn.Linear(4, 3)
    detector = Energy(model, task="classification").fit([])
    for bias, x in ((50_000, torch.randn(100, 4)), (3e12, torch.zeros(100, 4))):
        nn.init.constant_(model.bias, bias)
        (chart,) = (view["scores"] for view in Page(report(detector, [x], tmp_path / "far.html")).data["views"])
        assert len({*chart["series"][0][2]}) == 49, "48 bars"


def test_bad_calls_leave_the_old_page(known: dict[str, Any], tmp_path: Path) -> None:
    detector, x, file = known["detector"], known["data"].test.images, tmp_path / "report.html"
    file.write_text("old")
    with pytest.raises(ValueError, match="names has 2 entries, but the loader gave 289 inputs"):
        report(detector, [x], file, names=["a", "b"])
    with pytest.raises(TypeError, match="outliers takes loaders by name"):
        report(detector, [x], file, outliers=[x])
    with pytest.raises(ValueError, match="gave no batches"):
        report(detector, [x], file, outliers={"none": []})
    with pytest.raises(RuntimeError, match="not fitted"):
        report(LatentDensity(detector.model), [x], file)
    with pytest.raises(TypeError, match="report takes a fitted detector"):
        report(detector.model, [x], file)
    with pytest.raises(FileNotFoundError, match="does not exist"):
        report(detector, [x], tmp_path / "nowhere" / "report.html")
    assert file.read_text() == "old" and list(tmp_path.iterdir()) == [file]


def test_a_thousand_photographs_stay_small(tmp_path: Path) -> None:
    x = torch.rand(1000, 3, 96, 96, generator=torch.Generator().manual_seed(0))
    model = nn.Sequential(nn.AvgPool2d(32), nn.Flatten(), nn.Linear(27, 5))
    detector = Energy(model, task="classification").fit([], calibration=[x[:500]])
    file = report(
        detector,
        x.split(250),
        tmp_path / "large.html",
        outliers={f"set {i}": [x[:100] ** 2] for i in range(3)},
        train=[x],
    )
    assert file.stat().st_size < 2_000_000


def test_the_page_is_found_by_name() -> None:
    assert hidden_uncertainty.report is report and "report" in hidden_uncertainty.__all__


@needs_browser
def test_in_a_browser(path: Path, tmp_path: Path) -> None:
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys
    from selenium.webdriver.support.ui import Select

    with browser(tmp_path / "profile") as driver:
        driver.get(path.as_uri())
        run = driver.execute_script
        find = lambda what: driver.find_element(By.CSS_SELECTOR, what)  # noqa: E731
        assert driver.title == f"Digits {HOSTILE}"  # as text: nothing ran
        assert run("return [...document.images].length > 60 && [...document.images].every(i => i.naturalWidth > 0)")
        assert run(
            "return [...document.querySelectorAll('.chart')].every(c => c.querySelector('svg path, svg circle'))"
        )

        slider, before = find("#rate"), (find("#caught").text, find("#threshold").get_attribute("x1"))
        slider.send_keys(Keys.ARROW_RIGHT * 6)
        assert slider.get_attribute("aria-valuetext").startswith("8.0") and find("#asked").text.startswith("8.0")
        after = find("#caught").text, find("#threshold").get_attribute("x1")
        assert after[0] != before[0] and float(after[1]) < float(before[1])
        share = run("return data.views[0].rates[+arguments[0].value][2][1][0] / data.sizes[1]", slider)
        assert f"8 and 9: {100 * share:.1f}" in after[0]

        Select(find("#view")).select_by_visible_text("layer conv1")
        assert "score of layer conv1" in find("[data-chart=scores]").text
        Select(find("#set")).select_by_visible_text("8 and 9")
        assert len(driver.find_elements(By.CSS_SELECTOR, "[data-chart=roc] .legend li")) == 2
        chart = find("[data-chart=p] svg")
        chart.send_keys(Keys.ARROW_LEFT)
        assert "found: 0.45 to 0.5 →" in find("[data-chart=p] .tip").text

        light = run("return getComputedStyle(document.body).backgroundColor")
        find("#theme").send_keys(Keys.ENTER)
        dark = run("return getComputedStyle(document.body).backgroundColor")
        assert light == "rgb(255, 255, 255)" and dark != light and find("#theme").text == "Light page"

        size = {"width": 390, "height": 800, "deviceScaleFactor": 1, "mobile": True}
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        driver.refresh()
        assert run("return document.documentElement.scrollWidth") <= 390
        assert complaints(driver) == []
        logs = [json.loads(entry["message"])["message"] for entry in driver.get_log("performance")]
        sent = [one["params"] for one in logs if one["method"] == "Network.requestWillBeSent"]
        asked = {one["request"]["url"] for one in sent if one["documentURL"] == path.as_uri()}
        assert {url for url in asked if not url.startswith("data:")} == {path.as_uri()}
