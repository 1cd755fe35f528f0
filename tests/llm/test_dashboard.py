"""optuna-dashboard on a study, in a real browser."""

import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from llm.study import run_study
from llm.study_settings import StudyConfig

pytestmark = pytest.mark.slow

TOY = """
def toy(point, seed, watch, gen_train_ratio):
    for update in range(0, 100, 5):
        watch(update * (64 + gen_train_ratio * point["rollouts_per_update"]), update / 50)
"""


@pytest.fixture
def dashboard(tmp_path, monkeypatch):
    """A study of three trials and the address of a dashboard on it."""
    (tmp_path / "dashboard_toy.py").write_text(TOY)
    monkeypatch.syspath_prepend(str(tmp_path))
    study = run_study(
        StudyConfig(
            name="shown", objective="dashboard_toy:toy", target=1.0, trials=3, results=tmp_path
        ),
        progress=False,
    )
    folder = tmp_path / "studies" / "shown"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = subprocess.Popen(
        [
            str(Path(sys.executable).with_name("optuna-dashboard")),
            str(folder / "journal.log"),
            "--artifact-dir",
            str(folder / "artifacts"),
            "--port",
            str(port),
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    address = f"http://127.0.0.1:{port}"
    try:
        wait_for(f"{address}/api/studies")
        yield study, address
    finally:
        server.terminate()
        server.wait()


def wait_for(address):
    end = time.monotonic() + 60
    while True:
        try:
            with urllib.request.urlopen(address, timeout=5) as answer:
                assert answer.status == 200
                return
        except (urllib.error.URLError, ConnectionError):
            assert time.monotonic() < end, "the dashboard did not start"
            time.sleep(0.2)


def page(address, tmp_path):
    browser = shutil.which("chromium") or shutil.which("chromium-browser")
    if browser is None:
        pytest.skip("Chromium is not installed")
    found = subprocess.run(
        [
            browser,
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            f"--user-data-dir={tmp_path / 'browser'}",
            "--virtual-time-budget=20000",
            "--dump-dom",
            address,
        ],
        capture_output=True,
        text=True,
        timeout=180,
        check=True,
    )
    return found.stdout


def test_study_page_shows_history_and_trial_page_shows_the_picture(dashboard, tmp_path):
    study, address = dashboard
    shown = page(f"{address}/dashboard/studies/0", tmp_path)
    assert "shown" in shown
    assert re.search(r">History<", shown)
    assert "compute to target" in shown
    trial = page(f"{address}/dashboard/studies/0/trials?numbers=0", tmp_path)
    [source] = re.findall(r'<img[^>]*alt="curves.png"[^>]*src="([^"]+)"', trial)
    with urllib.request.urlopen(address + source, timeout=10) as answer:
        assert answer.read(4) == b"\x89PNG"
    for word in ("rollouts_per_update", "learning_rate", "label", "on-policy"):
        assert word in trial
    assert study.trials[0].user_attrs["label"].startswith("on-policy")
