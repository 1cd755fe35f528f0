"""The README's Python blocks run and print what their comments say."""

import re
from pathlib import Path

import pytest

README = (Path(__file__).parent.parent / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def test_there_is_an_example():
    assert BLOCKS
    assert README.splitlines().index("```python") < 40


@pytest.mark.parametrize("block", BLOCKS)
def test_python_block_prints_what_it_says(block, capsys):
    exec(compile(block, "README.md", "exec"), {})
    said = re.findall(r"print\(.*\)  # (.*)", block)
    assert said
    assert capsys.readouterr().out.splitlines() == said
