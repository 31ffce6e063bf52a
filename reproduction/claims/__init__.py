"""The claims of the paper, judged by result files."""
