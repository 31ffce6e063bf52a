"""Text, tables and pictures of a page: whatever a user named is escaped, and pictures are in the page itself."""

from __future__ import annotations

import base64
import html
import math
import re
import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from matplotlib import colormaps
from matplotlib.colors import to_rgb
from torch import Tensor
from torch.nn.functional import interpolate

from ..plots.pixels import CLASS_COLOURS

Block = Mapping[str, Any] | str  # what fills a block of the page, or why it is left out


class Html(str):
    """Text that is HTML already; all other text is escaped."""


def fill(template: str, values: Mapping[str, Any], blocks: Mapping[str, Block]) -> str:
    """A template with its places filled; a block `[[name]] ... [[/name]]` that is left out is a sentence, or nothing.

    Nothing that is filled in is read again, whatever a user has named.

    Example:
        >>> fill("{{a}}[[b]]: {{c}}[[/b]][[d]]![[/d]]", {"a": "<"}, {"b": {"c": "{{a}}"}, "d": "No d."})
        '&lt;: {{a}}<p class="left-out">No d.</p>'
    """
    parts = re.split(r"\[\[(\w+)\]\](.*?)\[\[/\1\]\]", template, flags=re.DOTALL)
    filled = [_fill(text, values) for text in parts[::3]]
    for i, (name, text) in enumerate(zip(parts[1::3], parts[2::3], strict=True)):
        block = blocks.get(name, "")
        left_out = tag("p", block, class_="left-out") if block else ""
        filled[i] += left_out if isinstance(block, str) else _fill(text, {**values, **block})
    return "".join(filled)


def _fill(text: str, values: Mapping[str, Any]) -> str:
    return re.sub(r"\{\{(\w+)\}\}", lambda found: joined(values[found[1]]), text)


def tag(name: str, *inside: Any, **attributes: Any) -> Html:
    """An element; `class_` is its class, and `data_chart` is `data-chart`.

    Example:
        >>> tag("p", "a < b", class_="soft")
        '<p class="soft">a &lt; b</p>'
    """
    known = {key.rstrip("_").replace("_", "-"): value for key, value in attributes.items() if value is not None}
    start = "".join(f' {key}="{html.escape(str(value))}"' for key, value in known.items())
    return Html(f"<{name}{start}>" + ("" if name in ("br", "img", "input") else f"{joined(*inside)}</{name}>"))


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
    """Three digits that count.

    Example:
        >>> number(15.5705), number(0.0412), number(123456), number(float("inf"))
        ('15.6', '0.0412', '123,456', 'infinite')
    """
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
    """Wilson's 95 % interval of a share, of which `count` of `total` were seen.

    Example:
        >>> [round(end, 3) for end in between(5, 100)]
        [0.022, 0.112]
    """
    z = 1.959963984540054
    middle, half = (count + z * z / 2), z * math.sqrt(count * (total - count) / total + z * z / 4)
    return max(0.0, (middle - half) / (total + z * z)), min(1.0, (middle + half) / (total + z * z))


def share(count: int, total: int) -> Html:
    """A share with its interval, for a cell of a table."""
    return joined(percent(count / total), tag("small", span(*between(count, total))))


def picture(image: Tensor, side: int, alt: str) -> Html:
    """An image (c, h, w), at most `side` pixels wide and high; numbers beyond [0, 1] are stretched to it."""
    pixels = image.float() / 255 if image.dtype == torch.uint8 else image.float().nan_to_num(0, 0, 0)
    pixels = pixels[: 3 if len(pixels) >= 3 else 1]
    scale = side / max(pixels.shape[1:])
    if scale < 1:
        pixels = interpolate(pixels[None], [max(1, round(scale * n)) for n in pixels.shape[1:]], mode="area")[0]
    low, high = min(0.0, float(pixels.min())), float(pixels.max())
    if low < 0 or high > 1:
        pixels = (pixels - pixels.min()) / (high - pixels.min()).clamp(min=1e-12)
    data = (255 * pixels).round().byte().movedim(0, -1).numpy()
    address = "data:image/png;base64," + base64.b64encode(_png(data)).decode()
    return tag("img", src=address, alt=alt, width=data.shape[1], height=data.shape[0])


def coloured(values: Tensor, limits: tuple[float, float] | None = None) -> Tensor:
    """A map (h, w) in colours, (3, h, w): classes in those of plots, numbers from dark to bright between limits."""
    if not values.is_floating_point():
        colours = np.array([to_rgb(colour) for colour in CLASS_COLOURS])[values.numpy() % len(CLASS_COLOURS)]
    else:
        low, high = limits or (float(values.min()), float(values.max()))
        colours = colormaps["inferno"](((values - low) / max(high - low, 1e-12)).clamp(0, 1).numpy())[..., :3]
    return torch.from_numpy(colours).movedim(-1, 0)


def _png(pixels: np.ndarray) -> bytes:
    """A PNG of bytes (h, w, 1 or 3)."""
    height, width, channels = pixels.shape
    rows = b"".join(b"\0" + row.tobytes() for row in pixels)  # each begins with its filter: none
    header = struct.pack(">IIBBBBB", width, height, 8, 0 if channels == 1 else 2, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(rows, 9)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )
