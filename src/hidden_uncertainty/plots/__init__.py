"""Pictures of scores, in one style: distributions, ROC curves, accuracy against rejection, maps.

Every function draws on the Axes it is given, or on a new one, and returns it; those with several panels return their
Figure. Nothing goes through pyplot, so no global state changes and no screen is needed.
"""

from .curves import plot_accuracy_rejection, plot_roc, plot_scores
from .pixels import plot_maps
from .style import dress, save

__all__ = ["dress", "plot_accuracy_rejection", "plot_maps", "plot_roc", "plot_scores", "save"]
