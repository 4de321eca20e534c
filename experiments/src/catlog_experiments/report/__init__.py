"""Recorded runs as figures, verdicts on the paper's claims, and one page."""
