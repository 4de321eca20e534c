"""Pyro's own tests, with catlog.pyro.ELBO in the place of a loss.

They need a checkout of Pyro: ``PYRO_TESTS=path/to/pyro make test-pyro``.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
TESTS = os.environ.get("PYRO_TESTS")

# Tests of what catlog.pyro.ELBO does in another way.
NOT_APPLICABLE = {
    # They assert shapes of Pyro's enumeration, or that only marked sites have rows.
    "test_dim_allocation_ok",
    "test_enum_discrete_parallel_nested_ok",
    "test_enum_discrete_parallel_ok",
    "test_enum_discrete_plate_shape_broadcasting_ok",
    "test_enum_discrete_vectorized_num_particles",
    "test_enum_in_model_ok",
    "test_enum_in_model_plate_ok",
    "test_enumerate_parallel_plate_ok",
    # They expect warnings: that marks of enumeration are ignored, that no site has one, or that an
    # enumerated plate is read from outside.
    "test_empty_model_empty_guide_ok",
    "test_enum_discrete_iplates_plate_dependency_warning",
    "test_enum_discrete_missing_config_warning",
    "test_enum_discrete_misuse_warning",
    "test_nonempty_model_empty_guide_ok",
    "test_plate_enum_discrete_no_discrete_vars_warning",
}


@pytest.mark.skipif(TESTS is None, reason="PYRO_TESTS names no checkout of Pyro")
@pytest.mark.parametrize(
    ("loss", "estimator", "names", "least"),
    [
        ("Trace_ELBO", "SCateR(1)", "Trace_ELBO", 100),
        ("TraceGraph_ELBO", "IndeCateR(1)", "TraceGraph_ELBO", 85),
        ("TraceEnum_ELBO", "Exact()", "TraceEnum_ELBO or enum or markov", 110),
    ],
)
def test_valid_models(loss: str, estimator: str, names: str, least: int, tmp_path: Path) -> None:
    """No test fails but those of other behaviour; at least so many pass, the rest is refused."""
    report = tmp_path / "report.json"
    paths = [str(FOLDER), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {
        "SWAPPED_LOSS": loss,
        "SWAPPED_ESTIMATOR": estimator,
        "SWAPPED_REPORT": str(report),
        "PYTHONPATH": os.pathsep.join(paths),
    }
    command = [sys.executable, "-m", "pytest", "-q", "--tb=no", "-p", "swap_loss"]
    command += ["-p", "no:cacheprovider", "-k", names, "tests/infer/test_valid_models.py"]
    subprocess.run(command, cwd=TESTS, env=environment, check=False, capture_output=True)
    outcomes = json.loads(report.read_text(encoding="utf-8"))
    failed = {name.split("::")[1].split("[")[0] for name in outcomes.get("failed", {})}
    assert failed <= NOT_APPLICABLE, outcomes["failed"]
    assert len(outcomes["passed"]) >= least
