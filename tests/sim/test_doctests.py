"""Every example in a docstring of sim/ runs."""

import doctest
import importlib
import pkgutil

import sim


def test_docstring_examples():
    names = [found.name for found in pkgutil.walk_packages(sim.__path__, "sim.")]
    results = [doctest.testmod(importlib.import_module(name)) for name in names]
    assert sum(result.failed for result in results) == 0
    assert sum(result.attempted for result in results) > 0
