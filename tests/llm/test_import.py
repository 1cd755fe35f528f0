"""Importing the room and its settings needs no torch, and its examples run."""

import doctest
import importlib
import pkgutil
import subprocess
import sys

import llm

SCRIPT = """
import sys
import llm, llm.settings, llm.buffer, llm.tasks, llm.measures, llm.generate
heavy = {"torch", "transformers", "jax", "datasets", "matplotlib"} & set(sys.modules)
assert not heavy, heavy
"""


def test_light_modules_import_without_torch():
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_docstring_examples():
    names = [found.name for found in pkgutil.walk_packages(llm.__path__, "llm.")]
    results = [doctest.testmod(importlib.import_module(name)) for name in names]
    assert sum(result.failed for result in results) == 0
    assert sum(result.attempted for result in results) > 10
