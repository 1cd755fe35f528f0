import json
from dataclasses import dataclass

import pytest

from theory import optimal_design
from theory.__main__ import main
from theory.command import run_command


@dataclass(frozen=True)
class Square:
    """Square a number."""

    side: float
    """Length of a side, metres."""


@dataclass(frozen=True)
class Cube:
    """Cube a number."""

    side: float = 2.0
    """Length of an edge, metres."""


@dataclass(frozen=True)
class Checked:
    """Refuses odd sides."""

    side: int = 1
    """Length of a side, metres."""

    def __post_init__(self):
        if self.side % 2:
            raise ValueError(f"side = {self.side} is not allowed:\n  it must be even")


def raising(error):
    def command(_):
        raise error

    return command


def strict(text):
    def refuse(name):
        raise AssertionError(name)

    return json.loads(text, parse_constant=refuse)


def test_recommend_prints_one_strict_json_object(capsys):
    argv = "recommend --cost-gen 5.28 --cost-train 1 --batch-size 60 --json"
    assert main(argv.split()) == 0
    record = strict(capsys.readouterr().out)
    design = optimal_design(5.28, 1, batch_size=60)
    for name in ("replay_ratio", "staleness_horizon", "buffer_size", "rollouts_per_update"):
        assert record[name] == getattr(design, name)
    for name in ("cost_ratio", "batch_size", "verdict"):
        assert record[name] == getattr(design, name)
    assert record["warnings"] == list(design.warnings)
    assert record["why"] == list(design.why)
    assert record["num_generators"] is record["num_trainers"] is None


@pytest.mark.parametrize("alpha", ["0.1", "0.4", "0.5", "7"])
@pytest.mark.parametrize("cost", ["0.001", "1", "50", "1e300"])
@pytest.mark.parametrize("gpus", [[], ["--gpus", "8"]])
def test_json_is_strict_at_extremes(capsys, alpha, cost, gpus):
    argv = [
        "recommend",
        "--cost-gen",
        cost,
        "--batch-size",
        "64",
        "--alpha",
        alpha,
        "--json",
        *gpus,
    ]
    assert main(argv) == 0
    record = strict(capsys.readouterr().out)
    assert (record["num_generators"] is None) == (not gpus)


@pytest.mark.parametrize("extra", ["", "--gpus 8", "--alpha 0.2 --cost-train 0.1", "--alpha 0.5"])
def test_recommend_text_is_short_and_names_the_verdict(capsys, extra):
    argv = f"recommend --cost-gen 5.28 --batch-size 60 {extra}".split()
    assert main(argv) == 0
    out, err = capsys.readouterr()
    assert out.startswith("verdict")
    assert out.count("\n") <= 12
    assert err == ""


def test_table_prints_the_paper_row(capsys):
    splits = ["7,1", "6,2", "5,3", "4,4", "2,6", "1,7"]
    assert main(["table", "--cost-gen", "5.28", "--splits", *splits]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[1:]]
    assert [row[0] for row in rows] == splits
    gammas = [round(float(row[1]), 2) for row in rows]
    assert gammas == [1.27, 0.64, 0.42, 0.32, 0.21, 0.18]
    assert float(rows[1][2]) == pytest.approx(1.76)


@pytest.mark.parametrize("argv", [["--help"], ["recommend", "--help"], ["table", "-h"]])
def test_help(argv, capsys):
    assert main(argv) == 0
    out, err = capsys.readouterr()
    assert "usage: python -m theory" in out
    assert err == ""


def test_help_explains_units(capsys):
    main(["recommend", "--help"])
    out = capsys.readouterr().out
    assert "GPU-seconds" in out
    assert "in updates" in " ".join(out.replace("│", " ").split())


def test_subcommand_runs_its_own_function(capsys):
    commands = {
        "square": (Square, lambda config: print(config.side**2)),
        "cube": (Cube, lambda config: print(config.side**3)),
    }
    assert run_command(commands, ["square", "--side", "3"], "shapes") == 0
    assert run_command(commands, ["cube"], "shapes") == 0
    assert capsys.readouterr().out == "9.0\n8.0\n"


def test_return_value_is_the_exit_code():
    assert run_command((Cube, lambda _: 3), [], "shapes") == 3


def test_file_errors_are_one_line(capsys, tmp_path):
    missing = tmp_path / "none.csv"
    assert run_command((Cube, lambda _: print(missing.read_text())), [], "shapes") == 2
    assert capsys.readouterr().err == f"error: {str(missing)!r}: No such file or directory\n"


def test_config_that_refuses_its_own_fields(capsys):
    assert run_command((Checked, print), ["--side", "3"], "shapes") == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "side = 3" in err


def test_interrupt(capsys):
    assert run_command((Cube, raising(KeyboardInterrupt())), [], "shapes") == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_bugs_keep_their_traceback():
    with pytest.raises(ZeroDivisionError):
        run_command((Cube, raising(ZeroDivisionError("bug"))), [], "shapes")


def test_unknown_flag_of_a_single_command_names_help(capsys):
    assert run_command((Cube, print), ["--sides", "3"], "shapes") == 2
    err = capsys.readouterr().err
    assert "--sides" in err
    assert "shapes --help" in err
