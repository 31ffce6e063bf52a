"""From what is read to scores: methods, Bayes over one support, calibration, combination."""
