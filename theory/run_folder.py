"""The folder of one run: its config, and files that are whole or not there.

Every command that writes a folder of results uses this, so that a kill, a full disk or a second run
with another config loses nothing. Standard library only.
"""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def check_plain_name(what: str, name: str) -> None:
    """Check that a name given for a folder is one, and not a path out of its place.

    Args:
        what: what is named, for the error.
        name: the name; empty: none was given.

    Returns:
        Nothing.

    Raises:
        ValueError: if it has a slash, or a dot in front.

    >>> check_plain_name("id", "../up")
    Traceback (most recent call last):
    ValueError: id must be a plain folder name, got '../up'
    """
    if name and (Path(name).name != name or name.startswith(".")):
        raise ValueError(f"{what} must be a plain folder name, got {name!r}")


def check_folder(folder: Path, record: dict[str, Any], beside: Sequence[Path] = ()) -> None:
    """Check that a folder is empty or holds this run, and write nothing.

    Args:
        folder: of the run; it exists.
        record: what defines the results, as JSON gives it back.
        beside: files that may be there before the config is.

    Returns:
        Nothing.

    Raises:
        ValueError: if the folder holds another config, or other files.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as name:
    ...     check_folder(Path(name), {"seeds": 8})
    """
    saved = folder / "config.json"
    if saved.exists():
        check_same(saved, record)
    elif any(path not in (partial_of(saved), *beside) for path in folder.iterdir()):
        raise ValueError(f"{folder} holds files but no run's config.json; give another --id")


def saved_config(folder: Path, record: dict[str, Any], beside: Sequence[Path] = ()) -> None:
    """Save what defines a run in its folder, or check that this is the run that is there.

    Args:
        folder: of the run; it exists.
        record: what defines the results, as JSON gives it back.
        beside: files that may be there before the config is.

    Returns:
        Nothing.

    Raises:
        ValueError: if the folder holds another config, or other files.
        OSError: if it cannot be written.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as name:
    ...     saved_config(Path(name), {"seeds": 8})
    ...     saved_config(Path(name), {"seeds": 8})
    ...     print(*(Path(name) / "config.json").read_text().split())
    { "seeds": 8 }
    """
    check_folder(folder, record, beside)
    saved = folder / "config.json"
    if not saved.exists():
        replace_text(saved, json.dumps(record, indent=2) + "\n")


def check_same(saved: Path, record: dict[str, Any]) -> None:
    """Check that a folder's saved config is the one given.

    Args:
        saved: the config's file.
        record: what defines the results, as JSON gives it back.

    Returns:
        Nothing.

    Raises:
        ValueError: if it is another one, naming what differs, or no config.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as name:
    ...     saved_config(Path(name), {"seeds": 8})
    ...     check_same(Path(name) / "config.json", {"seeds": 8})
    """
    try:
        found = json.loads(saved.read_text())
    except ValueError:
        raise ValueError(f"{saved} is not a run's config; give another --id") from None
    if found != record:
        names = sorted(k for k in {*found, *record} if found.get(k) != record.get(k))
        raise ValueError(
            f"{saved.parent} holds another config (different: {', '.join(names)}); "
            "give another --id"
        )


def partial_of(path: Path) -> Path:
    """Where a file's next content is written before it takes its place.

    Args:
        path: the file.

    Returns:
        A hidden path beside it.

    >>> print(partial_of(Path("table.csv")))
    .table.csv.partial
    """
    return path.with_name(f".{path.name}.partial")


def replace_text(path: Path, text: str) -> None:
    """Write a whole text file; see ``replace_bytes``.

    Args:
        path: the file.
        text: its content, written as UTF-8.

    Returns:
        Nothing.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as name:
    ...     replace_text(Path(name) / "a", "new")
    ...     print([path.name for path in Path(name).iterdir()], (Path(name) / "a").read_text())
    ['a'] new
    """
    replace_bytes(path, text.encode())


def replace_bytes(path: Path, content: bytes | memoryview) -> None:
    """Write a whole file so that a reader sees the old content or the new, never a part.

    Args:
        path: the file.
        content: its content.

    Returns:
        Nothing.

    Raises:
        OSError: if the disk is full; the old file is as it was and no part is left behind.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as name:
    ...     replace_bytes(Path(name) / "a", b"new")
    ...     print((Path(name) / "a").read_bytes())
    b'new'
    """
    partial = partial_of(path)
    try:
        with open(partial, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise OSError(error.errno, error.strerror, str(path)) from None
    os.replace(partial, path)
