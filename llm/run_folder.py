"""The folder of one run: its config, its log of one JSON line an update, its checkpoint.

The log is flushed line by line and put on disk before every checkpoint. A run that resumes cuts
the log back to the checkpoint's update, so that what follows is what would have followed.
"""

import contextlib
import fcntl
import io
import json
import os
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from theory.run_folder import check_folder, replace_bytes, saved_config


@contextlib.contextmanager
def opened(folder: Path, record: dict[str, Any]) -> Iterator[Path]:
    """Make the folder or check that it is this config's, and keep other processes out.

    Raises:
        ValueError: if it holds another config or other files, or is in use.
        OSError: if it cannot be made.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lock_path = folder / ".lock"
    check_folder(folder, record, beside=(lock_path,))
    with open(lock_path, "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(f"{folder} is being written by another process") from None
        saved_config(folder, record, beside=(lock_path,))
        yield folder


def save_checkpoint(path: Path, state: dict[str, Any]) -> None:
    """Write a checkpoint atomically; see ``replace_bytes``."""
    content = io.BytesIO()
    torch.save(state, content)
    replace_bytes(path, content.getbuffer())


def load_checkpoint(path: Path) -> dict[str, Any] | None:
    """Return a checkpoint, or None if there is none.

    Raises:
        ValueError: if the file is not a checkpoint.
    """
    if not path.exists():
        return None
    if not zipfile.is_zipfile(path):
        raise ValueError(f"{path} is not a checkpoint, or a torn one")
    return torch.load(path, map_location="cpu", weights_only=True)


class RunLog:
    """Append-only log of one JSON line an update, and TensorBoard beside it; a context manager.

    Args:
        folder: the run's folder.
        updates: updates of the checkpoint that the run goes on from; later lines are cut off.
            None for a run that starts.
        tensorboard: whether to write event files too.
    """

    def __init__(self, folder: Path, updates: int | None, tensorboard: bool):
        """Cut the log back and open it."""
        self.path = folder / "log.jsonl"
        lines = [] if updates is None else lines_up_to(self.path, updates)
        replace_bytes(self.path, "".join(lines).encode())
        self._writer = None
        with contextlib.ExitStack() as on_failure:
            self._file = on_failure.enter_context(open(self.path, "a"))
            if tensorboard:
                from torch.utils.tensorboard import SummaryWriter

                purge = None if updates is None else updates + 1
                self._writer = SummaryWriter(str(folder / "tensorboard"), purge_step=purge)
                on_failure.callback(self._writer.close)
            self._open = on_failure.pop_all()

    def write(self, record: dict[str, Any]) -> None:
        """Append one record; it has the key ``update``."""
        self._file.write(json.dumps(record) + "\n")
        self._file.flush()
        if self._writer is not None:
            for name, value in scalars(record):
                self._writer.add_scalar(name, value, record["update"])

    def sync(self) -> None:
        """Wait until everything written is on disk."""
        os.fsync(self._file.fileno())
        if self._writer is not None:
            self._writer.flush()

    def __enter__(self) -> "RunLog":
        """Return the log."""
        return self

    def __exit__(
        self, kind: type | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the files."""
        self._open.close()


def read_log(path: Path) -> list[dict[str, Any]]:
    """Return the records of a log; a line torn by a kill is left out."""
    text = path.read_text()
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def lines_up_to(path: Path, updates: int) -> list[str]:
    """Return the lines of a log whose update is at most this."""
    return [json.dumps(row) + "\n" for row in read_log(path) if row["update"] <= updates]


def scalars(record: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """Yield the numbers of a record with their path, dictionaries opened, lists left out."""
    for name, value in record.items():
        if isinstance(value, dict) and name not in ("by_age", "histograms"):
            yield from scalars(value, f"{prefix}{name}/")
        elif isinstance(value, int | float) and not isinstance(value, bool) and name != "update":
            yield f"{prefix}{name}", value
