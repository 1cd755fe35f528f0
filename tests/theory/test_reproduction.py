"""Every number in docs/reproduction.md is what its block computes today."""

import doctest
import re
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "reproduction.md").read_text()
MISPRINTS = PAGE.split("\n## ")[1]


def blocks(text):
    return re.findall(r"^```python\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE)


def test_page_opens_with_all_thirteen_misprints():
    assert MISPRINTS.startswith("Misprints")
    items = re.split(r"^### (\d+)\. ", MISPRINTS, flags=re.MULTILINE)
    assert items[1::2] == [str(n) for n in range(1, 14)]
    assert all(blocks(body) for body in items[2::2])


def test_every_code_block_is_an_example_with_output():
    assert PAGE.count("```") == 2 * len(blocks(PAGE))
    for block in blocks(PAGE):
        examples = doctest.DocTestParser().get_examples(block)
        assert examples, block
        assert examples[-1].want, block


def test_every_block_gives_what_it_prints(capsys):
    runner = doctest.DocTestRunner()
    page = "\n".join(blocks(PAGE))
    test = doctest.DocTestParser().get_doctest(page, {}, "reproduction.md", None, 0)
    runner.run(test, clear_globs=False)
    if runner.failures:
        pytest.fail(capsys.readouterr().out)
    assert runner.tries > 40
