"""Text, tables and pictures of a page: whatever a user named is escaped, and pictures are in the page itself."""

from __future__ import annotations

import base64
import html
import io
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from matplotlib.image import imsave
from torch import Tensor
from torch.nn.functional import interpolate

Block = Mapping[str, Any] | str  # what fills a block of the page, or why it is left out


class Html(str):
    """Text that is HTML already; all other text is escaped."""


def fill(template: str, values: Mapping[str, Any], blocks: Mapping[str, Block]) -> str:
    """A template with its places filled; a block `[[name]] ... [[/name]]` that is left out is a sentence, or nothing.

    Nothing that is filled in is read again, whatever a user has named.
    """
    parts = re.split(r"\[\[(\w+)\]\](.*?)\[\[/\1\]\]", template, flags=re.DOTALL)
    filled = [_fill(text, values) for text in parts[::3]]
    for i, (name, text) in enumerate(zip(parts[1::3], parts[2::3], strict=True)):
        block = blocks.get(name, "")
        filled[i] += (left_out(block) if block else "") if isinstance(block, str) else _fill(text, {**values, **block})
    return "".join(filled)


def _fill(text: str, values: Mapping[str, Any]) -> str:
    return re.sub(r"\{\{(\w+)\}\}", lambda found: joined(values[found[1]]), text)


def tag(name: str, *inside: Any, **attributes: Any) -> Html:
    """An element; `class_` is its class, and `data_chart` is `data-chart`."""
    known = {key.rstrip("_").replace("_", "-"): value for key, value in attributes.items() if value is not None}
    start = "".join(f' {key}="{html.escape(str(value))}"' for key, value in known.items())
    return Html(f"<{name}{start}>" + ("" if name in ("br", "img", "input") else f"{joined(*inside)}</{name}>"))


def left_out(why: str) -> Html:
    """A sentence in place of what does not apply."""
    return tag("p", why, class_="left-out")


def joined(*inside: Any) -> Html:
    """Several pieces one after the other; None is nothing."""
    return Html(
        "".join(part if isinstance(part, Html) else html.escape(str(part)) for part in inside if part is not None)
    )


def table(caption: str, head: Sequence[Any], rows: Iterable[Sequence[Any]]) -> Html:
    """A table with a caption; the first column names the rows."""
    body = [tag("tr", tag("th", first, scope="row"), *(tag("td", cell) for cell in rest)) for first, *rest in rows]
    top = tag("thead", tag("tr", *(tag("th", cell, scope="col") for cell in head))) if head else None
    parts = tag("caption", tag("span", caption)), top, tag("tbody", *body)
    # What scrolls can be reached by keyboard.
    return tag("div", tag("table", *parts), class_="wide", tabindex="0", role="group", aria_label=caption)


def number(value: float) -> str:
    """Three digits that count."""
    if not math.isfinite(value):
        return "infinite" if value > 0 else "unknown"
    if abs(value) >= 1000:
        return f"{value:,.0f}" if abs(value) < 1e7 else f"{value:.2e}"
    return f"{value:.3g}"


def percent(share: float) -> str:
    """A share in percent."""
    return f"{100 * share:.1f}\u00a0%"


def span(low: float, high: float) -> str:
    """A range of shares in percent."""
    return f"{100 * low:.1f} to {percent(high)}"


def between(count: int, total: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share, of which `count` of `total` were seen."""
    z = 1.959963984540054
    middle, half = (count + z * z / 2), z * math.sqrt(count * (total - count) / total + z * z / 4)
    return max(0.0, (middle - half) / (total + z * z)), min(1.0, (middle + half) / (total + z * z))


def share(count: int, total: int) -> Html:
    """A share with its interval, for a cell of a table."""
    return joined(percent(count / total), tag("small", span(*between(count, total))))


def picture(image: Tensor, side: int, alt: str, limits: tuple[float, float] | None = None) -> Html:
    """An image (c, h, w), at most `side` pixels wide and high; one number per pixel is bright at the upper limit.

    Without limits, colours run from 0 to 1, or from the lowest to the highest number where these lie beyond.
    """
    pixels = image.float() / 255 if image.dtype == torch.uint8 else image.float().nan_to_num(0, 0, 0)
    pixels = pixels[: 3 if len(pixels) >= 3 else 1]
    scale = side / max(pixels.shape[1:])
    if scale < 1:
        pixels = interpolate(pixels[None], [max(1, round(scale * n)) for n in pixels.shape[1:]], mode="area")[0]
    ends = float(pixels.min()), float(pixels.max())
    low, high = limits or (ends if ends[0] < 0 or ends[1] > 1 else (0.0, 1.0))
    array = ((pixels - low) / max(high - low, 1e-12)).clamp(0, 1).movedim(0, -1).numpy()
    file, colours = io.BytesIO(), "gray" if limits is None else "inferno"
    imsave(file, array if len(pixels) == 3 else array[..., 0], vmin=0, vmax=1, cmap=colours, format="png")
    address = "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
    return tag("img", src=address, alt=alt, width=array.shape[1], height=array.shape[0])
