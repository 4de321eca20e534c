"""Files: atomic writes, a cache of tensors, and safe cells of CSV files."""
