"""Which code made a result."""

import functools
import subprocess
from pathlib import Path


@functools.cache
def commit() -> str:
    """Return the commit of this code, "-dirty" behind it if files differ; "unknown" without git.

    >>> bool(commit())
    True
    """
    git = subprocess.run(
        ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=12"],
        capture_output=True,
        text=True,
        check=False,
    )
    return git.stdout.strip() if git.returncode == 0 else "unknown"
