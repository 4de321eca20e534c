"""The suite's benchmark resumes where it was interrupted."""

import importlib.util
from pathlib import Path
from types import ModuleType

from catlog.experiments import records

ROOT = Path(__file__).parents[2]
SMALL = ["--size", "small", "--repeats", "20", "--rounds", "2", "--training", "5"]


def loaded(path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(Path(path).stem, ROOT / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


suite = loaded("benchmarks/suite.py")


def test_suite_measures_each_pair_once(tmp_path):
    output = tmp_path / "suite.csv"
    run = ["--problems", "additive,digit-sum", "--output", str(output), *SMALL]
    assert suite.main([*run, "--estimators", "RLOO,IndeCateR"]) == 0
    first = output.read_text(encoding="utf-8")
    assert suite.main([*run, "--estimators", "RLOO,IndeCateR,MuProp"]) == 0
    assert output.read_text(encoding="utf-8").startswith(first)
    rows = {(row["problem"], row["estimator"]): row for row in records.read(output)}
    assert len(rows) == len(records.read(output)) == 6
    assert rows["digit-sum", "MuProp"]["skipped"] == "f has no derivative in x"
    assert rows["additive", "IndeCateR"]["variance"] < 1e-25 < rows["additive", "RLOO"]["variance"]
    assert rows["additive", "RLOO"]["evaluations"] == rows["additive", "RLOO"]["budget"] == 22
    assert rows["digit-sum", "RLOO"]["budget"] == 2 * (1 + 3 * 9)
