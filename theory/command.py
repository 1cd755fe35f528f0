"""One way for every command line of the project to parse, run and fail.

A command is a frozen dataclass (its fields are the flags, their docstrings the help) and a
function that takes it. Whatever the user got wrong ends as one line on stderr and exit code 2;
an error nobody foresaw keeps its traceback, because that is a bug in the project.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

Command = tuple[type, Callable[[Any], int | None]]
Config = TypeVar("Config")

_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_RULE = re.compile(r"^[─━\-]{4,}$")


def run_command(
    commands: Command | Mapping[str, Command],
    argv: Sequence[str] | None,
    prog: str,
    description: str | None = None,
) -> int:
    """Parse ``argv`` into a config, run its command, and report every usage error in one line.

    Args:
        commands: ``(config type, function)``, or a mapping from subcommand name to such a pair.
            Config types in one mapping must differ. A function returns an exit code or None.
        argv: arguments after the program name; None reads ``sys.argv[1:]``.
        prog: the program as typed, e.g. ``"python -m theory"``.
        description: text above the options in ``--help``; the config's docstring if None.

    Returns:
        Exit code: 0 for success or ``--help``, 2 for a usage error, ``ValueError`` or file error,
        130 for an interrupt, else what the function returned.

    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Double:
    ...     number: float
    >>> run_command((Double, lambda config: print(2 * config.number)), ["--number", "1.5"], "demo")
    3.0
    0
    """
    captured = io.StringIO()
    try:
        with contextlib.redirect_stderr(captured):
            config, function = _parsed(commands, argv, prog, description)
    except SystemExit as stop:
        return _failure(_condensed(captured.getvalue(), prog)) if stop.code else 0
    except ValueError as error:
        return _failure(_sentence(error))
    sys.stderr.write(captured.getvalue())
    return _outcome(function, config)


def with_preset(config: Config, preset: Mapping[str, Any]) -> Config:
    """The config with a preset's values where its fields were left at their defaults.

    Args:
        config: a frozen dataclass whose fields all have defaults.
        preset: values by field name.

    Returns:
        The same kind of config; what was given beside the preset wins over it.

    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Run:
    ...     seeds: int = 8
    ...     updates: int = 100
    >>> with_preset(Run(updates=7), {"seeds": 2, "updates": 5})
    Run(seeds=2, updates=7)
    """
    default = type(config)()
    chosen = {
        name: value
        for name, value in preset.items()
        if getattr(config, name) == getattr(default, name)
    }
    return dataclasses.replace(config, **chosen)  # pyright: ignore[reportArgumentType]


def _parsed(
    commands: Command | Mapping[str, Command],
    argv: Sequence[str] | None,
    prog: str,
    description: str | None,
) -> tuple[Any, Callable[[Any], int | None]]:
    import tyro

    if not isinstance(commands, Mapping):
        config_type, function = commands
        options = (tyro.conf.FlagCreatePairsOff, tyro.conf.HelptextFromCommentsOff)
        parsed = tyro.cli(
            config_type, args=argv, prog=prog, description=description, config=options
        )
        return parsed, function
    config = tyro.extras.subcommand_cli_from_dict(
        {name: config_type for name, (config_type, _) in commands.items()},
        args=argv,
        prog=prog,
        description=description,
        config=(tyro.conf.FlagCreatePairsOff, tyro.conf.HelptextFromCommentsOff),
    )
    return config, dict(commands.values())[type(config)]


def _outcome(function: Callable[[Any], int | None], config: Any) -> int:
    try:
        return function(config) or 0
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except (ValueError, OSError) as error:
        return _failure(_sentence(error))


def _failure(message: str) -> int:
    print(f"error: {message}", file=sys.stderr)
    return 2


def _sentence(error: ValueError | OSError) -> str:
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{error.filename!r}: {error.strerror}"
    return " ".join(str(error).split()) or type(error).__name__


def _condensed(boxed: str, prog: str) -> str:
    """The parser's boxed message as one line: its title, its sections, and where help is."""
    title, sections = "", [[]]
    for line in _ANSI.sub("", boxed).splitlines():
        if line.startswith(("╭", "+--")):
            title = line.strip("╭╮─+- ")
            continue
        text = line.strip("│|╰╯ ").strip()
        if _RULE.match(text):
            sections.append([])
        elif text and not text.startswith("─"):
            sections[-1].append(text)
    parts = [_section(lines) for lines in sections if lines]
    body = "; ".join(part for part in parts if part)
    lead = "" if not title or body.lower().startswith(title.lower()) else f"{title}: "
    return f"{lead}{body} (see {prog} --help)"


def _section(lines: list[str]) -> str:
    if lines[0].startswith("For full helptext"):
        return ""
    if lines[0].startswith("Argument helptext"):
        return f"expected {lines[1]}" if len(lines) > 1 else ""
    return " ".join(lines).rstrip(".")
