"""Parts of the page: what holds and what does not, the short tables, published numbers."""
