"""A detector for your own model and loaders, with only PyTorch and scikit-learn's digits.

Run it with `python examples/own_model.py`. It takes a few seconds and writes detector.safetensors.
"""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

from hidden_uncertainty import LatentDensity, suggest

torch.manual_seed(0)

# Three parts: for training, calibration and testing. The network must not see the calibration data.
images, labels = load_digits(return_X_y=True)
everything = TensorDataset(torch.from_numpy(images).float() / 16, torch.from_numpy(labels).long())
train, calibration, test = random_split(everything, [0.6, 0.2, 0.2])

model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 32), nn.ReLU(), nn.Linear(32, 10))
optimiser = torch.optim.Adam(model.parameters(), lr=3e-3)
for _ in range(20):
    for x, y in DataLoader(train, batch_size=64, shuffle=True):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimiser.step()

# Which layers will be read, and why. Name others with LatentDensity(model, layers=...).
print(suggest(model, DataLoader(train, batch_size=8)))

# The loader may shuffle.
detector = LatentDensity(model)
detector.fit(DataLoader(train, batch_size=256, shuffle=True), calibration=DataLoader(calibration, batch_size=256))
detector.threshold(false_alarm=0.05)
detector.save("detector.safetensors")

# Later, in another process: you bring the model, the rest comes from the file.
detector = LatentDensity.load("detector.safetensors", model)
x, y = next(iter(DataLoader(test, batch_size=len(test))))
for name, inputs in {"test digits": x, "upside down": x.flip(1), "white noise": torch.rand_like(x)}.items():
    u = detector(inputs)
    right = (u.prediction == y).float().mean()
    print(f"{name}: {right:.0%} right, {u.surprising.float().mean():.0%} surprising")

u = detector(x)
most = u.epistemic.argsort(descending=True)[:5]
print("most surprising test digits:", [f"{y[i]} ({u.epistemic[i]:.0f} nats, by {u.why()[i]})" for i in most.tolist()])
