"""Many training runs, some at a time: what is done is not done again, what stopped goes on."""

import dataclasses
import hashlib
import json
import multiprocessing
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any, TypeVar

from llm.settings import TrainConfig, build_task

Job = TypeVar("Job")
# Greedy pass@1 is averaged over so many tests, that one lucky test does not count.
SMOOTHING = 3


def run_all(
    jobs: Sequence[Job],
    done: Callable[[Job], bool],
    run: Callable[[Job], None],
    workers: int,
    what: str,
) -> None:
    """Run what is not done, some at a time; the first failure stops the rest.

    Args:
        jobs: what there is to run, picklable.
        done: whether a job has ended.
        run: runs or resumes a job; a function of a module, as other processes import it.
        workers: processes; one at a time runs in this process.
        what: name of the bar.
    """
    from tqdm import tqdm

    todo = [job for job in jobs if not done(job)]
    if not todo:
        return
    progress = tqdm(total=len(jobs), initial=len(jobs) - len(todo), unit="run", desc=what)
    if workers == 1:
        with progress:
            for job in todo:
                run(job)
                progress.update()
        return
    context = multiprocessing.get_context("spawn")
    with progress, ProcessPoolExecutor(workers, mp_context=context) as pool:
        running = [pool.submit(run, job) for job in todo]
        try:
            for ended in as_completed(running):
                ended.result()
                progress.update()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def quietly(config: TrainConfig, tested: Callable[[dict[str, Any]], None] | None = None) -> None:
    """Run or resume one training without bars; what ``tested`` raises ends it."""
    import transformers

    from llm.train import run_training

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    run_training(config, progress=False, tested=tested)


def prepare_policy(train: TrainConfig, results: Path) -> None:
    """School the tiny policy once, before many processes ask for it."""
    import torch

    from llm.warm_start import tiny_folder

    if train.model != "tiny":
        return
    torch.set_num_threads(1)
    record = dataclasses.asdict(train.task)
    length = train.max_completion_length
    tiny_folder(build_task(train.task), record, train.tiny, length, results / "policies")


def short_hash(record: Any) -> str:
    """Return a short hash of plain data."""
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()[:8]
