"""f at points: checked, in chunks, at neighbours, with its slope."""
