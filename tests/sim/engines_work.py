"""Work for the tests of `sim.engines`; as a program, a parent that waits to be killed."""

import functools
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from sim.engines import scattered


def squares(part: int) -> Iterator[tuple[int, int]]:
    for i in range(part % 4):
        yield i, part * part


def after_the_file(path: str) -> Iterator[str]:
    yield "waiting"
    deadline = time.monotonic() + 60
    while not Path(path).exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"no {path}")
        time.sleep(0.01)
    yield "seen"


@functools.cache
def first_part_here(process: int) -> list[int]:
    return []


def memory(part: int) -> Iterator[tuple[int, int]]:
    kept = first_part_here(os.getpid())
    kept.append(part)
    time.sleep(0.05)
    yield os.getpid(), len(kept)


def refusing(part: int) -> Iterator[int]:
    yield part
    if part == 2:
        raise ValueError(f"part must not be 2, got {part}")


class TwoWordsError(Exception):
    def __init__(self, first: str, second: str):
        super().__init__(f"{first} {second}")


def unloadable_error(part: int) -> Iterator[int]:
    yield from ()
    raise TwoWordsError("hard", "luck")


def unpicklable_item(part: int) -> Iterator[object]:
    yield lambda: part


def dying(part: int) -> Iterator[int]:
    yield part
    if part == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.2)


def exiting(part: int) -> Iterator[int]:
    yield part
    os._exit(7)


def sleeping(part: int) -> Iterator[int]:
    yield os.getpid()
    time.sleep(600)


if __name__ == "__main__":
    engine = "ray" if len(sys.argv) > 1 else "local"
    for _, item in scattered(sleeping, range(3), processes=2, engine=engine):
        print(item, flush=True)
