"""The contract of an estimator, and what it works with: q as factors, f, and the randomness."""
