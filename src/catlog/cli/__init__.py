"""The command `catlog`."""
