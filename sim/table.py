"""A results table that survives being killed: appended to, repaired, completed in place.

Rows are comma-separated, one line each, flushed to disk as they finish. A line torn by a kill is
cut off when the table is opened again. When every row is there the table is sorted and replaced in
one step. A lock keeps a second process out.
"""

import contextlib
import csv
import fcntl
import io
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType

from theory.run_folder import replace_text


class Table:
    """Append-only table of one run, a context manager that holds the lock.

    Args:
        path: the file; its folder must exist.
        columns: column names; ``id`` must be among them.

    Raises:
        ValueError: if the file has other columns, or another process holds it.
    """

    def __init__(self, path: Path, columns: Sequence[str]):
        """Take the lock, repair a torn end, read the finished rows."""
        self.path = path
        self.columns = tuple(columns)
        with contextlib.ExitStack() as on_failure:
            lock = on_failure.enter_context(open(path.with_suffix(".lock"), "w"))
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ValueError(f"{path} is being written by another process") from None
            self._repair()
            self.rows = read_rows(path)
            self._file = on_failure.enter_context(open(path, "a", newline=""))
            self._open = on_failure.pop_all()

    def _repair(self) -> None:
        """Cut a torn last line; write the header if there is none; refuse other columns."""
        text = self.path.read_bytes() if self.path.exists() else b""
        whole = text[: text.rfind(b"\n") + 1]
        if whole:
            found = tuple(next(csv.reader([whole.split(b"\n", 1)[0].decode()])))
            if found != self.columns:
                different = sorted(set(found) ^ set(self.columns)) or ["their order"]
                raise ValueError(f"{self.path} has other columns: {', '.join(different)}")
        if whole and len(whole) < len(text):
            os.truncate(self.path, len(whole))
        if not whole:
            replace_text(self.path, csv_line(self.columns))

    def append(self, rows: Iterable[dict[str, object]]) -> None:
        """Write rows and wait until they are on disk."""
        lines = [csv_line([row[name] for name in self.columns]) for row in rows]
        self._file.write("".join(lines))
        self._file.flush()
        os.fsync(self._file.fileno())

    def complete(self, order: Sequence[str]) -> None:
        """Replace the table by the same rows in the order of these ids."""
        place = {row_id: i for i, row_id in enumerate(order)}
        rows = sorted(read_rows(self.path), key=lambda row: place[row["id"]])
        lines = [csv_line([row[name] for name in self.columns]) for row in rows]
        replace_text(self.path, csv_line(self.columns) + "".join(lines))

    def __enter__(self) -> "Table":
        """Return the table."""
        return self

    def __exit__(
        self, kind: type | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the file and give the lock back."""
        self._open.close()


def csv_line(values: Sequence[object]) -> str:
    """Return one line of the table; floats are written so that they read back exactly.

    Raises:
        ValueError: if a value holds a line break, which would look like a torn line.
    """
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerow(values)
    if out.getvalue().count("\n") != 1:
        raise ValueError(f"a table value must not hold a line break, got {values}")
    return out.getvalue()


def read_rows(path: Path) -> list[dict[str, str]]:
    """Return the rows of a table as dictionaries of text."""
    with open(path, newline="") as file:
        return list(csv.DictReader(file))
