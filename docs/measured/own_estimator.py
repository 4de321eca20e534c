"""The skeleton of own_estimator.md: the example itself."""

from . import ROOT


def values() -> dict[str, object]:
    text = (ROOT / "examples" / "own_estimator.py").read_text(encoding="utf-8")
    return {"skeleton": f"```python\n{text}```"}
