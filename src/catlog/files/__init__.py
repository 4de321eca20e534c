"""How files are written, cached and guarded."""
