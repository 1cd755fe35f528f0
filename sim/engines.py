"""Run the parts of a job in this process, in several processes, or on a Ray cluster.

``work`` is a generator function over one part. Its items come back one by one while the part is
still running, from several parts at once, tagged with the part's place. Which process runs a part,
and in which order items of different parts come, is not fixed: what a part yields must depend on
that part alone. The items of one part keep their order.

A process takes the next part when its last one is done, so whatever ``work`` keeps in its module
(a compiled program, say) serves all parts of that process.
"""

import collections
import contextlib
import importlib
import importlib.util
import logging
import multiprocessing
import os
import pickle
import re
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Generator, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any, Literal, TypeVar

Part = TypeVar("Part")
Item = TypeVar("Item")
Work = Callable[[Part], Iterator[Item]]
EngineName = Literal["local", "ray"]

ITEM, DONE, FAILED = "item", "done", "failed"


def check_engine(processes: int, engine: EngineName, ray_address: str = "") -> None:
    """Raise ValueError for settings that ``scattered`` cannot run with.

    Args:
        processes: parts that run at once, >= 1.
        engine: "local" or "ray".
        ray_address: "auto" or "host:port" of a running Ray cluster; empty: none.

    Raises:
        ValueError: if a setting is out of range, the address is given without the engine "ray"
            or of another form, or Ray is not installed.

    >>> check_engine(2, "local")
    >>> check_engine(0, "local")
    Traceback (most recent call last):
    ...
    ValueError: processes must be an integer >= 1, got 0
    """
    if processes < 1:
        raise ValueError(f"processes must be an integer >= 1, got {processes}")
    if engine not in ("local", "ray"):
        raise ValueError(f"engine must be local or ray, got {engine!r}")
    if ray_address and engine != "ray":
        raise ValueError(f"ray_address needs the engine ray, got {ray_address!r} with {engine}")
    if ray_address not in ("", "auto") and not re.fullmatch(r"[^/]+:\d{1,5}", ray_address):
        raise ValueError(
            "ray_address must be auto or host:port of a cluster that this machine is part of "
            f"(a Ray Client, ray://, does not stream), got {ray_address!r}"
        )
    if engine == "ray" and importlib.util.find_spec("ray") is None:
        raise ValueError(
            "engine ray needs Ray, which is not installed: pip install 'rollout-replay[cluster]'"
        )


def scattered(
    work: Work[Part, Item],
    parts: Sequence[Part],
    *,
    processes: int = 1,
    engine: EngineName = "local",
    ray_address: str = "",
) -> Generator[tuple[int, Item], None, None]:
    """Return an iterator over (place of the part, item) for all items of all parts, as they come.

    With the engine "local" and one process, parts run one after another in this process. With
    more, each runs in one of so many fresh processes, which end by themselves when this one is
    gone. With "ray", each part is a task of one CPU on a local Ray or on the cluster at
    ``ray_address``, whose machines must have this project installed. Closing the iterator early
    ends the processes.

    Args:
        work: top-level generator function of an importable module.
        parts: what ``work`` is called with, picklable as the items are; started in this order.
        processes: parts that run at once, >= 1.
        engine: where parts run.
        ray_address: "auto" or "host:port" of a running cluster that this machine belongs to; empty:
            the Ray this process already uses, or else a local one while the iteration lasts.

    Raises:
        ValueError: as ``check_engine``.
        ChildProcessError: from the iterator, if a process or machine is lost on a part.
        ConnectionError: from the iterator, if no cluster answers at ``ray_address``.
        Exception: from the iterator, whatever ``work`` raises, with the worker's traceback in its
            notes.

    >>> from itertools import repeat
    >>> list(scattered(lambda part: repeat(part, 2), [5, 7]))
    [(0, 5), (0, 5), (1, 7), (1, 7)]
    """
    check_engine(processes, engine, ray_address)
    if engine == "ray":
        return _on_ray(_importable(work), parts, processes, ray_address)
    if processes == 1:
        return ((place, item) for place, part in enumerate(parts) for item in work(part))
    return _on_processes(work, parts, processes)


def _replies(work: Work[Part, Item], part: Part) -> Iterator[bytes]:
    """Yield each item of a part, then whether it is done or why it failed, pickled."""
    try:
        for item in work(part):
            yield pickle.dumps((ITEM, item))
    except Exception as error:
        yield pickle.dumps((FAILED, _portable(error)))
    else:
        yield pickle.dumps((DONE, None))


def _portable(error: Exception) -> Exception:
    """Return an error that another process can load, with the traceback among its notes."""
    error.add_note(f"in process {os.getpid()}:\n{traceback.format_exc()}")
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        substitute = RuntimeError(f"{type(error).__name__}: {error}")
        for note in error.__notes__:
            substitute.add_note(note)
        return substitute
    return error


# Several processes of this machine. Each has a pipe of its own: a queue that they share would stay
# locked for all when one is killed while it writes.


class _Worker:
    """One process, its pipe, and the place of the part it is on."""

    def __init__(self, work: Work[Any, Any]):
        """Start the process."""
        context = multiprocessing.get_context("spawn")
        self.connection, its_end = context.Pipe()
        self.place: int | None = None
        self.process = context.Process(target=_serve, args=(work, its_end), daemon=True)
        self.process.start()
        # Only the process may hold its end, so that its death ends the pipe.
        its_end.close()

    def give(self, job: tuple[int, Any]) -> None:
        """Hand over a part."""
        self.place, part = job
        try:
            self.connection.send(part)
        except (BrokenPipeError, ConnectionResetError):
            raise self._lost() from None

    def reply(self) -> tuple[str, Any]:
        """Wait for the next reply."""
        try:
            return self.connection.recv()
        except (EOFError, ConnectionResetError):
            raise self._lost() from None

    def end(self) -> None:
        """End the process, whatever it is doing."""
        self.process.kill()
        self.process.join()
        self.connection.close()

    def _lost(self) -> ChildProcessError:
        self.process.join(timeout=5)
        code = self.process.exitcode
        cause = f"ended with exit code {code}"
        if code is not None and code < 0:
            cause = f"was killed by {signal.Signals(-code).name}"
            cause += " (out of memory?)" if -code == signal.SIGKILL else ""
        return ChildProcessError(f"worker process {self.process.pid} {cause} on part {self.place}")


def _serve(work: Work[Any, Any], connection: Connection) -> None:
    """Run parts until the parent wants no more; this is all that a worker process does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all: the parent ends us.
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        while True:
            for reply in _replies(work, connection.recv()):
                connection.send_bytes(reply)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return  # The parent is gone, so there is nobody to work for and nobody to tell.


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _on_processes(
    work: Work[Part, Item], parts: Sequence[Part], processes: int
) -> Generator[tuple[int, Item], None, None]:
    waiting = collections.deque(enumerate(parts))
    workers = [_Worker(work) for _ in range(min(processes, len(waiting)))]
    busy = {}
    try:
        for worker in workers:
            worker.give(waiting.popleft())
            busy[worker.connection] = worker
        while busy:
            for connection in wait(list(busy)):
                worker = busy[connection]
                kind, value = worker.reply()
                if kind == ITEM:
                    yield worker.place, value
                elif kind == FAILED:
                    raise value
                elif waiting:
                    worker.give(waiting.popleft())
                else:
                    del busy[connection]
    finally:
        for worker in workers:
            worker.end()


# Ray, on this machine or many.


def _importable(work: Work[Part, Item]) -> Work[Part, Item]:
    """Return the function from the module that machines can import, when this one runs as main."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    if work.__module__ != "__main__" or spec is None:
        return work
    return getattr(importlib.import_module(spec.name), work.__name__)


@contextlib.contextmanager
def _ray_session(processes: int, address: str) -> Iterator[None]:
    """Connect to a cluster, or start a local one, unless this process already uses Ray."""
    import ray

    if ray.is_initialized() and not address:
        yield
        return
    quiet = {"log_to_driver": False, "logging_level": logging.WARNING}
    if address:
        _check_reachable(address)
        ray.init(address, **quiet)
    else:
        ray.init("local", num_cpus=processes, include_dashboard=False, **quiet)
    try:
        yield
    finally:
        ray.shutdown()


def _check_reachable(address: str) -> None:
    """Raise ConnectionError if nothing listens there, which takes Ray itself minutes to notice."""
    if address == "auto":
        return
    host, port = address.rsplit(":", 1)
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
    except (OSError, OverflowError) as error:
        raise ConnectionError(f"no Ray cluster answers at {address}: {error}") from None


def _on_ray(
    work: Work[Part, Item], parts: Sequence[Part], processes: int, address: str
) -> Generator[tuple[int, Item], None, None]:
    import ray

    waiting = collections.deque(enumerate(parts))
    running: dict[Any, int] = {}
    with _ray_session(processes, address):
        # No retries: Ray would skip as many items as came before, in whatever order they come.
        task = ray.remote(num_cpus=1, max_retries=0, num_returns="streaming")(_replies)
        try:
            while waiting or running:
                while waiting and len(running) < processes:
                    place, part = waiting.popleft()
                    running[task.remote(work, part)] = place
                for stream in ray.wait(list(running))[0]:
                    place = running[stream]
                    kind, value = _ray_reply(stream, place)
                    if kind == ITEM:
                        yield place, value
                    elif kind == FAILED:
                        raise value
                    else:
                        del running[stream]
        finally:
            for stream in running:
                ray.cancel(stream, force=True)


def _ray_reply(stream: Any, place: int) -> tuple[str, Any]:
    """Return the next reply of a task that has one ready."""
    import ray
    from ray.exceptions import RayError

    try:
        reply: Any = ray.get(next(stream))
    except RayError as error:
        raise ChildProcessError(f"Ray lost the worker of part {place}: {error}") from error
    return pickle.loads(reply)
