"""Digits, letters and scribbles as a hand draws them: strokes in a unit square, y down."""

from __future__ import annotations

import math

import numpy as np

Stroke = list[tuple[float, float]]


def _arc(x: float, y: float, wide: float, high: float, start: float, end: float) -> str:
    """Points of an ellipse, in hundredths; 0° is right, 90° is down."""
    angles = np.radians(np.linspace(start, end, 12))
    return " ".join(f"{x + wide * math.cos(a)},{y + high * math.sin(a)}" for a in angles)


# Four ways of writing each digit. How the page prepares images was chosen by the first two; how far it stretches them
# upwards, and how long the network is trained, by all four, the letters and the scribbles. None of it is a fresh test.
DIGITS: list[list[list[str]]] = [
    [
        [_arc(50, 50, 30, 45, -90, -450)],
        [_arc(50, 50, 24, 46, -60, -430)],
        [_arc(50, 50, 38, 42, -100, -455)],
        [_arc(50, 50, 28, 45, -40, 330)],
    ],
    [
        ["50,5 50,95"],
        ["30,25 52,5 52,95"],
        ["38,20 55,6", "55,6 50,95"],
        ["56,4 50,50 46,96"],
    ],
    [
        [_arc(50, 30, 28, 25, -170, 30) + " 55,65 20,95", "20,95 80,95"],
        [_arc(48, 28, 26, 23, -160, 20) + " 50,70 22,90 30,84 50,93 78,90"],
        ["22,25 40,6 65,12 70,35 50,62 20,94", "20,94 50,93 80,94"],
        ["20,20 45,5 72,20 68,42 25,93", "25,93 82,90"],
    ],
    [
        [_arc(45, 28, 27, 23, -150, 90) + " " + _arc(45, 74, 30, 23, -90, 140)],
        ["22,10 50,5 70,20 62,40 42,48", "42,48 68,55 74,75 55,93 22,90"],
        ["22,8 75,8", "75,8 45,42", "45,42 70,55 72,78 50,94 20,86"],
        [_arc(42, 27, 26, 20, -140, 80) + " " + _arc(42, 71, 32, 25, -80, 150)],
    ],
    [
        ["55,5 15,62", "15,62 85,62", "62,35 62,95"],
        ["25,8 20,50", "20,50 78,50", "72,8 70,95"],
        ["62,95 62,5", "62,5 18,65", "18,65 85,65"],
        ["45,5 30,35 20,58 50,60 80,56", "68,30 62,96"],
    ],
    [
        ["75,6 28,6", "28,6 25,45", _arc(45, 68, 30, 26, -130, 140)],
        ["80,5 32,8 26,42 50,38 75,55 72,82 45,95 20,85"],
        ["30,8 26,45 50,42 74,58 70,85 42,95 20,88", "30,8 76,7"],
        ["72,8 35,8", "35,8 30,42", "30,42 55,44 70,65 58,88 25,93"],
    ],
    [
        ["65,5 40,25 25,60 " + _arc(48, 70, 25, 24, 180, -190)],
        ["60,4 35,35 26,70 42,94 68,88 72,66 52,55 30,68"],
        ["70,10 50,6 30,35 24,70 45,95 70,82 66,60 45,55 27,70"],
        ["50,5 32,40 30,75 50,95 70,80 62,62 40,62 31,75"],
    ],
    [
        ["20,7 80,7", "80,7 42,95"],
        ["20,10 78,8", "78,8 50,50 42,95", "30,50 72,50"],
        ["18,18 20,6", "20,6 78,6", "78,6 55,45 48,95"],
        ["22,8 50,12 78,6 60,45 40,95", "35,48 75,44"],
    ],
    [
        ["70,15 50,5 30,18 40,40 65,60 72,80 50,95 28,80 36,60 62,40 70,15"],
        [_arc(50, 27, 22, 22, 90, 450), _arc(50, 72, 27, 23, -90, 270)],
        ["62,10 42,6 32,22 50,46 70,70 55,94 34,86 36,66 52,46 68,25 62,10"],
        [_arc(50, 26, 20, 20, 80, 430), _arc(48, 70, 24, 25, -80, 280)],
    ],
    [
        [_arc(45, 30, 24, 24, 0, -370) + " 70,50 66,95"],
        ["70,20 45,6 28,25 42,48 66,35 70,20", "70,20 70,60 55,92 28,93"],
        ["68,25 50,6 30,22 38,45 60,42 70,22 68,60 60,95"],
        [_arc(48, 28, 22, 22, -20, -360), "70,28 68,65 50,93 25,88"],
    ],
]
LETTERS = {
    "A": ["15,95 50,5", "50,5 85,95", "28,62 72,62"],
    "E": ["80,5 20,5", "20,5 20,95", "20,95 80,95", "20,50 70,50"],
    "F": ["80,5 20,5", "20,5 20,95", "20,50 70,50"],
    "H": ["20,5 20,95", "80,5 80,95", "20,50 80,50"],
    "K": ["20,5 20,95", "80,5 22,55", "40,42 80,95"],
    "L": ["25,5 25,95", "25,95 80,95"],
    "M": ["10,95 15,5", "15,5 50,60", "50,60 85,5", "85,5 90,95"],
    "N": ["20,95 20,5", "20,5 80,95", "80,95 80,5"],
    "R": ["20,95 20,5", "20,5 60,6 75,27 60,47 20,50", "45,50 80,95"],
    "T": ["10,5 90,5", "50,5 50,95"],
    "U": ["20,5 20,70 50,95 80,70 80,5"],
    "V": ["15,5 50,95", "50,95 85,5"],
    "W": ["5,5 28,95", "28,95 50,30", "50,30 72,95", "72,95 95,5"],
    "X": ["15,5 85,95", "85,5 15,95"],
}
SCRIBBLES = {
    "zigzag": [" ".join(f"{10 + 80 * (i % 2)},{10 + 7 * i}" for i in range(12))],
    "upright zigzag": [" ".join(f"{10 + 7 * i},{10 + 80 * (i % 2)}" for i in range(12))],
    "spiral": [
        " ".join(f"{50 + 42 * t * math.cos(19 * t)},{50 + 42 * t * math.sin(19 * t)}" for t in np.linspace(0.05, 1, 70))
    ],
    "hatch": [f"10,{y} 90,{y}" for y in (10, 30, 50, 70, 90)] + [f"{x},10 {x},90" for x in (10, 30, 50, 70, 90)],
    "loops": [
        " ".join(f"{15 + 70 * t + 14 * math.cos(40 * t)},{50 + 35 * math.sin(40 * t)}" for t in np.linspace(0, 1, 120))
    ],
}
SCRIBBLES |= {
    f"wild {turns}": [" ".join(f"{x},{y}" for x, y in np.random.default_rng(turns).uniform(5, 95, (turns, 2)))]
    for turns in (9, 11, 13, 15, 17)
}


def trace(texts: list[str], rng: np.random.Generator | None = None) -> list[Stroke]:
    """Strokes through the points of each text; with a generator as another hand draws them.

    That hand leans, turns, is wider or narrower, writes smaller and elsewhere, and is not quite steady.
    """
    strokes = [np.array([pair.split(",") for pair in text.split()], dtype=float) / 100 for text in texts]
    if rng is None:
        return [_curve(stroke).tolist() for stroke in strokes]
    lean, turn, wide = rng.uniform(-0.15, 0.2), math.radians(rng.uniform(-6, 6)), rng.uniform(0.8, 1.2)
    cos, sin = math.cos(turn), math.sin(turn)
    change = np.array([[cos, -sin], [sin, cos]]) @ np.array([[wide, -lean], [0, 1]])
    size, place = rng.uniform(0.5, 0.8), 0.5 + rng.uniform(-0.05, 0.05, 2)
    unsteady = [stroke + rng.normal(0, 0.012, stroke.shape) for stroke in strokes]
    return [((_curve(stroke) - 0.5) @ change.T * size + place).tolist() for stroke in unsteady]


def _curve(points: np.ndarray, steps: int = 8) -> np.ndarray:
    """A smooth curve through points: Hermite's, with slopes from the neighbours; a line where there are two."""
    from scipy.interpolate import CubicHermiteSpline

    at = np.arange(len(points))
    smooth = CubicHermiteSpline(at, points, np.gradient(points, axis=0))
    return smooth(np.linspace(0, len(points) - 1, steps * (len(points) - 1) + 1))  # (n, 2)
