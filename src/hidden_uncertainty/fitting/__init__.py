"""How detectors are fitted: what is gathered from loaders, by one process or several, and what is made of that."""

from .fit import calibrate, check_features, check_state, fit_data, fit_loader, gather, read_unseen, work
from .state import State

__all__ = [
    "State",
    "calibrate",
    "check_features",
    "check_state",
    "fit_data",
    "fit_loader",
    "gather",
    "read_unseen",
    "work",
]
