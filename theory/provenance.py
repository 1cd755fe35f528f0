"""Which code made a result."""

import functools
import subprocess
from pathlib import Path


@functools.cache
def commit(folder: Path) -> str:
    """The commit of the code in a folder, asked for once a process.

    Args:
        folder: any folder of the checkout.

    Returns:
        Twelve digits or a tag, "-dirty" behind it if files differ; "unknown" without git.

    >>> commit(Path("/"))
    'unknown'
    """
    git = subprocess.run(
        ["git", "-C", str(folder), "describe", "--always", "--dirty", "--abbrev=12"],
        capture_output=True,
        text=True,
        check=False,
    )
    return git.stdout.strip() if git.returncode == 0 else "unknown"
