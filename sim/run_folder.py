"""The folder of one run: made for its config, and found again by the same config."""

import json
from pathlib import Path
from typing import Any

from sim.table import partial_of, replace_text


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
    if name and (Path(name).name != name or name.startswith(".")):
        raise ValueError(f"id must be a plain folder name, got {name!r}")
    folder = results / (name or default)
    folder.mkdir(parents=True, exist_ok=True)
    saved = folder / "config.json"
    if saved.exists():
        try:
            found = json.loads(saved.read_text())
        except ValueError:
            raise ValueError(f"{saved} is not a run's config; give another --id") from None
        if found != record:
            names = sorted(k for k in {*found, *record} if found.get(k) != record.get(k))
            raise ValueError(
                f"{folder} holds another config (different: {', '.join(names)}); give another --id"
            )
    elif any(path != partial_of(saved) for path in folder.iterdir()):
        raise ValueError(f"{folder} holds files but no run's config.json; give another --id")
    else:
        replace_text(saved, json.dumps(record, indent=2) + "\n")
    return folder
