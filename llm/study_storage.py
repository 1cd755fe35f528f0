"""Where a study is kept, and who works on which trial.

The journal file and SQLite need no server; PostgreSQL serves workers on many machines. One lock a
study (the kernel's on a file, PostgreSQL's advisory one) makes creating the study, filling it with
the trials asked for and taking the next one single steps, so that no trial is run twice and no
worker makes one too many. A worker holds a lock on a file of its own for as long as it lives, and
notes the time in its trial: that is how others know that a trial's worker is gone. A lost trial is
taken up once more, with the parameters it had; lost again, it has failed.
"""

import contextlib
import datetime
import fcntl
import os
import socket
import threading
import uuid
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import optuna
from optuna.storages import BaseStorage
from optuna.trial import FrozenTrial, Trial, TrialState

# A worker on another machine is taken for lost when it has not noted the time for this long.
BEAT_SECONDS, LOST_SECONDS = 60.0, 900.0


class KernelLock:
    """Lock between processes that the kernel lets go of when its holder dies.

    Args:
        path: file that stands for the lock, made if missing.
    """

    def __init__(self, path: Path):
        """Open the file."""
        self._path = path
        self._threads = threading.Lock()
        self._file: Any = None

    def acquire(self) -> bool:
        """Wait for the lock."""
        self._threads.acquire()
        file = open(self._path, "a")  # noqa: SIM115
        fcntl.flock(file, fcntl.LOCK_EX)
        self._file = file
        return True

    def release(self) -> None:
        """Let go."""
        self._file.close()
        self._threads.release()

    def __enter__(self) -> "KernelLock":
        """Wait for the lock."""
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        """Let go."""
        self.release()


def opened_storage(
    url: str, folder: Path, name: str
) -> tuple[BaseStorage, Callable[[], AbstractContextManager]]:
    """Return the storage and what locks the study on it.

    Args:
        url: empty for a journal in ``folder``, else sqlite:/// or postgresql.
        folder: the study's folder, which exists.
        name: of the study.

    Raises:
        ValueError: if the URL is of another kind or cannot be opened.
    """
    lock_path = folder / "study.lock"
    if not url:
        from optuna.storages.journal import JournalFileBackend, JournalStorage

        path = folder / "journal.log"
        lock: Any = KernelLock(folder / "journal.lock")
        with KernelLock(folder / "journal.lock"):
            cut_torn_line(path)
        return JournalStorage(JournalFileBackend(str(path), lock)), lambda: KernelLock(lock_path)
    if url.startswith("sqlite:///"):
        with KernelLock(lock_path):
            storage = database(url, {"connect_args": {"timeout": 120}})
        return storage, lambda: KernelLock(lock_path)
    if url.startswith("postgresql"):
        from sqlalchemy.pool import NullPool

        with KernelLock(lock_path):
            # A connection is open for the length of a call: none is left behind by a dead worker.
            storage = database(url, {"poolclass": NullPool})
        return storage, lambda: advisory_lock(url, name)
    raise ValueError(f"storage must be empty, sqlite:///FILE or postgresql..., got {url!r}")


def database(url: str, options: dict[str, Any]) -> BaseStorage:
    """Return a relational storage.

    Raises:
        ValueError: if it cannot be opened.
    """
    from sqlalchemy.exc import ArgumentError, OperationalError

    try:
        return optuna.storages.RDBStorage(url, engine_kwargs=options)
    except (
        ImportError,
        ArgumentError,
        OperationalError,
        optuna.exceptions.StorageInternalError,
    ) as error:
        reason = str(error.__cause__ or error).strip().splitlines()[0]
        raise ValueError(f"storage {url.split('@')[-1]} cannot be opened: {reason}") from None


@contextlib.contextmanager
def advisory_lock(url: str, name: str) -> Iterator[None]:
    """Hold PostgreSQL's lock of a study's name; a lost connection lets go of it."""
    import sqlalchemy
    from sqlalchemy.pool import NullPool

    engine = sqlalchemy.create_engine(url, poolclass=NullPool)
    with engine.connect() as connection:
        key = zlib.crc32(name.encode())
        connection.execute(sqlalchemy.text("SELECT pg_advisory_lock(:key)"), {"key": key})
        yield


def cut_torn_line(path: Path) -> None:
    """Cut what a killed process left of its last line of a journal."""
    if not path.exists():
        return
    with open(path, "r+b") as file:
        content = file.read()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            file.truncate(whole)


class Presence:
    """A worker's sign of life; a context manager.

    Args:
        folder: of the workers' lock files, made if missing.
    """

    def __init__(self, folder: Path):
        """Choose a name that is nobody else's."""
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.token = f"{socket.gethostname()}:{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self._lock = KernelLock(self.path(self.token))

    def path(self, token: str) -> Path:
        """Return the lock file of a worker."""
        return self.folder / token.split(":", 1)[1]

    def __enter__(self) -> "Presence":
        """Hold the lock."""
        self._lock.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        """Be gone."""
        self.path(self.token).unlink(missing_ok=True)
        self._lock.release()

    def gone(self, trial: FrozenTrial) -> bool:
        """Whether the worker of a running trial is; call it with the study's lock held."""
        token = trial.user_attrs.get("worker")
        if token is None:
            # Trials are taken and signed under the lock: its worker died in between.
            return True
        if token.split(":", 1)[0] != socket.gethostname():
            seen = datetime.datetime.fromisoformat(trial.user_attrs["seen"])
            return (now() - seen).total_seconds() > LOST_SECONDS
        try:
            with open(self.path(token)) as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except FileNotFoundError:
            return True
        except BlockingIOError:
            return False
        return True

    def sign(self, trial: Trial) -> None:
        """Put this worker's name on a trial."""
        trial.set_user_attr("seen", now().isoformat())
        trial.set_user_attr("worker", self.token)

    @contextlib.contextmanager
    def beating(self, trial: Trial) -> Iterator[None]:
        """Note the time in a trial while it runs."""
        stop = threading.Event()

        def beat() -> None:
            while not stop.wait(BEAT_SECONDS):
                trial.set_user_attr("seen", now().isoformat())

        thread = threading.Thread(target=beat, daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()


def now() -> datetime.datetime:
    """Return the time, UTC."""
    return datetime.datetime.now(datetime.UTC)


def taken(study: optuna.Study, presence: Presence) -> Trial | None:
    """Return the next trial to run, signed; None if there is none.

    A lost trial comes first. Call it with the study's lock held.
    """
    for lost in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
        if not presence.gone(lost):
            continue
        if lost.user_attrs.get("lost", 0) >= 1:
            failed(study, lost, "its worker was lost twice")
            continue
        trial = Trial(study, lost._trial_id)
        trial.set_user_attr("lost", 1)
        presence.sign(trial)
        return trial
    if not study.get_trials(deepcopy=False, states=(TrialState.WAITING,)):
        return None
    trial = study.ask()
    presence.sign(trial)
    return trial


def failed(study: optuna.Study, trial: FrozenTrial, reason: str) -> None:
    """End a lost trial."""
    study._storage.set_trial_user_attr(trial._trial_id, "reason", reason)
    study.tell(trial.number, state=TrialState.FAIL)
