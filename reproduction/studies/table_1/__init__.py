"""What both halves of table 1 share: scores, cells, the paper's numbers and their comparison."""
