"""Plant each bug of planted_bugs.toml in a copy of the repository, and run the tests that see it.

    python tests/planted_bugs.py [WORD ...] [--list]

A WORD chooses bugs by a part of their file's name or of what they break. Exits with 1 where a bug
survives, or where its line is not in the file exactly once.
"""

import argparse
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BATTERY = "src/catlog/testing"
NO_TESTS = 5  # pytest's exit code where nothing was selected
MOST_SECONDS = 600


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("words", nargs="*", help="parts of names of files, or of what breaks")
    parser.add_argument("--list", action="store_true", help="only look whether the lines exist")
    options = parser.parse_args()
    bugs = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))["bug"]
    survived = 0
    for bug in bugs:
        name = f"{bug['file']}: {bug['breaks']}"
        if options.words and not any(word in name for word in options.words):
            continue
        start = time.monotonic()
        result = outcome(bug, options.list)
        survived += result not in ("seen", "is there")
        print(f"{result:17s} {time.monotonic() - start:5.0f} s  {name}", flush=True)
    print(f"{survived} of {len(bugs)} bugs were not seen")
    return int(survived > 0)


def outcome(bug: dict[str, str], only_look: bool) -> str:
    """Return what the tests say of a bug."""
    file = ROOT / bug["file"]
    source = file.read_text(encoding="utf-8") if file.exists() else ""
    if source.count(bug["old"]) != 1:
        return "no longer applies"
    if only_look:
        return "is there"
    with tempfile.TemporaryDirectory(prefix="planted-") as name:
        tree = Path(name)
        copy_repository(tree)
        changed = source.replace(bug["old"], bug["new"])
        (tree / bug["file"]).write_text(changed, encoding="utf-8")
        return run(tree, shlex.split(bug["tests"].replace("BATTERY", BATTERY)))


def copy_repository(tree: Path) -> None:
    """Copy the files that git knows, and new ones that it does not ignore."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for path in filter(None, listed.split("\0")):
        if (ROOT / path).is_file():
            (tree / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / path, tree / path)


def run(tree: Path, tests: list[str]) -> str:
    """Run tests in a copy of the repository; a failing test has seen the bug."""
    sources = [str(tree / folder / "src") for folder in (".", "experiments", "kernels")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sources), "OMP_NUM_THREADS": "1"}
    python = ROOT / ".venv-jax/bin/python" if tests[0].startswith("jax/") else sys.executable
    command = [str(python), "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests]
    try:
        done = subprocess.run(
            command, cwd=tree, env=environment, capture_output=True, text=True, timeout=MOST_SECONDS
        )
    except subprocess.TimeoutExpired:
        return "TOO SLOW"
    if done.returncode == 1 and " failed" in done.stdout:
        return "seen"
    return {0: "SURVIVED", NO_TESTS: "NO TESTS"}.get(done.returncode, "ERROR")


if __name__ == "__main__":
    sys.exit(main())
