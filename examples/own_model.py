"""Your own model, your own loaders: nothing here but PyTorch, scikit-learn's digits and the detector.

Run it with `python examples/own_model.py`; it takes a few seconds and writes detector.safetensors.
"""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

from hidden_uncertainty import GaussianMixture, LatentDensity, layers

torch.manual_seed(0)

# Three parts: to train on, to calibrate with, to test on. The second must be unseen by the network.
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

# What the layers are called. We take the affine layer before the last activation.
layers(model, next(iter(DataLoader(train, batch_size=8))))

# A hundred images a class: one Gaussian each. The loader may shuffle.
detector = LatentDensity(model, layers="2", density=GaussianMixture(components=1))
detector.fit(DataLoader(train, batch_size=256, shuffle=True), calibration=DataLoader(calibration, batch_size=256))
detector.threshold(false_alarm=0.05)
detector.save("detector.safetensors")

# Later, elsewhere: the model comes from you, the rest from the file.
detector = LatentDensity.load("detector.safetensors", model)
x, y = next(iter(DataLoader(test, batch_size=len(test))))
for name, inputs in {"as they are": x, "upside down": x.flip(1), "white noise": torch.rand_like(x)}.items():
    u = detector(inputs)
    right = (u.prediction == y).float().mean()
    print(f"{name}: {right:.0%} right, {u.surprising.float().mean():.0%} surprising")

u = detector(x)
strangest = u.epistemic.argsort(descending=True)[:5]
print("strangest digits of the test:", [f"{y[i]} ({u.epistemic[i]:.0f} nats)" for i in strangest])
