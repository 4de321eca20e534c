"""Makes pytest import what is in this folder (render, reference, measured) from docs/checks."""
