"""Our speed beside scikit-learn's and beside the machine's own, measured in one process: `python -m bench`."""
