"""Time and memory; every module has functions ``(bench) -> rows``, one per section."""
