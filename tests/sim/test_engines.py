"""Parts of a job over processes and over Ray: same items, every failure told, nothing left over."""

import logging
import multiprocessing
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sim.engines import check_engine, scattered
from sim.sweep import main

HERE = Path(__file__).parent
# Ray starts its programs with a fork, of which JAX warns once its threads run; they only exec.
pytestmark = pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")


@pytest.fixture(autouse=True, scope="module")
def importable():
    """Let this process and those it starts import `engines_work`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(HERE)
        patch.setenv("PYTHONPATH", str(HERE), prepend=os.pathsep)
        yield


@pytest.fixture
def work():
    import engines_work

    return engines_work


def expected(work, parts):
    return sorted((place, item) for place, part in enumerate(parts) for item in work(part))


@pytest.mark.parametrize("processes", [1, 2, 3, 20])
def test_all_items_of_all_parts(work, processes):
    parts = [3, 1, 0, 2, 7, 5, 6]
    found = list(scattered(work.squares, parts, processes=processes))
    assert sorted(found) == expected(work.squares, parts)
    for place in range(len(parts)):
        of_part = [item for at, item in found if at == place]
        assert of_part == list(work.squares(parts[place]))


@pytest.mark.parametrize("processes", [1, 2])
def test_no_parts(work, processes):
    assert list(scattered(work.squares, [], processes=processes)) == []


def test_items_come_while_several_parts_run(work, tmp_path):
    path = tmp_path / "go"
    waiting = set()
    seen = []
    for place, item in scattered(work.after_the_file, [str(path)] * 2, processes=2):
        if item == "waiting":
            waiting.add(place)
            assert not seen
        else:
            seen.append(place)
        if len(waiting) == 2:
            path.touch()
    assert sorted(seen) == [0, 1]


def test_processes_and_what_they_keep_serve_many_parts(work):
    found = [item for _, item in scattered(work.memory, range(8), processes=2)]
    served = {process: 0 for process, _ in found}
    for process, count in found:
        served[process] = max(served[process], count)
    assert len(served) == 2
    assert os.getpid() not in served
    assert sum(served.values()) == 8


def test_one_process_is_this_one(work):
    assert {item for _, item in scattered(work.memory, [0])} == {(os.getpid(), 1)}


@pytest.mark.parametrize("processes", [1, 2])
def test_an_error_arrives_with_its_message(work, processes):
    with pytest.raises(ValueError, match="got 2") as caught:
        list(scattered(work.refusing, range(4), processes=processes))
    assert str(caught.value) == "part must not be 2, got 2"
    if processes > 1:
        assert "engines_work.py" in caught.value.__notes__[0]
    assert multiprocessing.active_children() == []


def test_an_error_that_does_not_load_arrives_by_name(work):
    with pytest.raises(RuntimeError, match="hard luck") as caught:
        list(scattered(work.unloadable_error, range(2), processes=2))
    assert str(caught.value) == "TwoWordsError: hard luck"
    assert "engines_work.py" in caught.value.__notes__[0]


def test_an_item_that_does_not_pickle_is_an_error(work):
    with pytest.raises((AttributeError, TypeError, ValueError), match="unpicklable_item"):
        list(scattered(work.unpicklable_item, range(2), processes=2))


def test_a_killed_worker_is_an_error(work):
    with pytest.raises(ChildProcessError, match=r"was killed by SIGKILL .* on part 2$"):
        list(scattered(work.dying, range(4), processes=2))
    assert multiprocessing.active_children() == []


def test_a_worker_that_exits_is_an_error(work):
    with pytest.raises(ChildProcessError, match=r"ended with exit code 7 on part [01]$"):
        list(scattered(work.exiting, range(4), processes=2))


def test_closing_early_ends_the_processes(work):
    found = scattered(work.sleeping, range(4), processes=2)
    next(found)
    assert len(multiprocessing.active_children()) == 2
    found.close()
    assert multiprocessing.active_children() == []


def killed_parent(*arguments):
    """Kill a parent whose workers run; return seconds until all that it started has ended.

    Whatever it started holds its standard output, which ends with the last of them.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", "engines_work", *arguments], stdout=subprocess.PIPE, text=True
    )
    workers = {int(process.stdout.readline()) for _ in range(2)}
    assert len(workers - {process.pid}) == 2
    process.kill()
    began = time.monotonic()
    process.communicate(timeout=60)
    return time.monotonic() - began


def test_a_killed_parent_leaves_no_orphan():
    assert killed_parent() < 10


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ((0, "local"), "processes must be an integer >= 1, got 0"),
        ((-1, "ray"), "processes must be an integer >= 1, got -1"),
        ((1, "threads"), "engine must be local or ray, got 'threads'"),
        ((2, "local", "auto"), "ray_address needs the engine ray, got 'auto' with local"),
        ((2, "ray", "head"), "must be auto or host:port .* got 'head'"),
        ((2, "ray", "ray://head:10001"), "must be auto or host:port .* got 'ray://head:10001'"),
    ],
)
def test_bad_settings_are_refused_before_anything_runs(work, settings, message):
    with pytest.raises(ValueError, match=message):
        check_engine(*settings)
    names = ("processes", "engine", "ray_address")
    with pytest.raises(ValueError, match=message):
        scattered(work.squares, [1], **dict(zip(names, settings, strict=False)))


def test_missing_ray_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ValueError, match=r"pip install 'rollout-replay\[cluster\]'"):
        check_engine(1, "ray")


@pytest.fixture(scope="module")
def cluster():
    """A local Ray of two cores that this process uses; its address."""
    import ray

    ray.init(
        "local",
        num_cpus=2,
        include_dashboard=False,
        object_store_memory=80 * 2**20,
        log_to_driver=False,
        logging_level=logging.ERROR,
    )
    yield ray.get_runtime_context().gcs_address
    ray.shutdown()


@pytest.mark.ray
@pytest.mark.parametrize("processes", [1, 2, 20])
def test_ray_yields_the_same_items(work, cluster, processes):
    parts = [3, 1, 0, 2, 7, 5, 6]
    found = list(scattered(work.squares, parts, processes=processes, engine="ray"))
    assert sorted(found) == expected(work.squares, parts)


@pytest.mark.ray
def test_ray_streams_from_several_parts(work, cluster, tmp_path):
    path = tmp_path / "go"
    waiting = set()
    for place, item in scattered(work.after_the_file, [str(path)] * 2, processes=2, engine="ray"):
        if item == "waiting":
            waiting.add(place)
        if len(waiting) == 2:
            path.touch()
    assert waiting == {0, 1}


@pytest.mark.ray
def test_ray_brings_errors_with_their_message(work, cluster):
    with pytest.raises(ValueError, match="got 2") as caught:
        list(scattered(work.refusing, range(4), processes=2, engine="ray"))
    assert str(caught.value) == "part must not be 2, got 2"
    assert "engines_work.py" in caught.value.__notes__[0]


@pytest.mark.ray
def test_ray_tells_of_a_killed_worker(work, cluster):
    with pytest.raises(ChildProcessError, match="Ray lost the worker of part 2"):
        list(scattered(work.dying, range(4), processes=2, engine="ray"))


@pytest.mark.ray
@pytest.mark.parametrize("address", ["127.0.0.1:1", "127.0.0.1:99999", "no-such-host.invalid:6379"])
def test_an_address_where_nothing_answers(work, address):
    found = scattered(work.squares, [1], engine="ray", ray_address=address)
    with pytest.raises(ConnectionError, match=f"no Ray cluster answers at {address}: ."):
        next(found)


@pytest.mark.ray
def test_a_sweep_on_a_running_cluster_writes_the_same_table(cluster, tmp_path):
    """From another process and as a program, whose own functions Ray must find by module."""
    small = ["--horizons", "1", "2", "--replay-ratios", "1", "2", "--step-sizes", "4", "16"]
    small += ["--seeds", "2", "--gen-train-ratios", "5", "--target", "0.3", "--max-updates", "200"]
    assert main([*small, "--results", str(tmp_path / "alone")]) == 0
    on_ray = ["--engine", "ray", "--ray-address", cluster, "--processes", "2"]
    command = [sys.executable, "-m", "sim.sweep", *small, *on_ray, "--results", str(tmp_path / "r")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    tables = [path.read_bytes() for path in tmp_path.rglob("table.csv")]
    assert len(tables) == 2
    assert tables[0] == tables[1]


@pytest.mark.ray
def test_closing_early_ends_the_tasks(work, cluster):
    found = scattered(work.sleeping, range(2), processes=2, engine="ray")
    _, process = next(found)
    found.close()
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        try:
            os.kill(process, 0)
        except ProcessLookupError:
            return
        time.sleep(0.05)
    pytest.fail(f"process {process} still runs")
