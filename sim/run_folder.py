"""The folder of one run: made for its config, and found again by the same config."""

from pathlib import Path
from typing import Any

from theory.run_folder import check_plain_name, saved_config


def opened(results: Path, name: str, default: str, record: dict[str, Any]) -> Path:
    """Return the run's folder with its config saved, new or that of the same config.

    Args:
        results: folder of all runs.
        name: plain folder name; empty: ``default``.
        default: name of a run that was given none.
        record: what defines the results, as JSON gives it back.

    Raises:
        ValueError: if the name is not plain, or the folder holds another config or other files.
    """
    check_plain_name("id", name)
    folder = results / (name or default)
    folder.mkdir(parents=True, exist_ok=True)
    saved_config(folder, record)
    return folder
