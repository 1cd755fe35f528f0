"""The answer to one job or to a table of them, as text or JSON: ``python -m theory recommend``."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import numpy as np
import tyro

from theory.design import Design
from theory.plan import optimal_design
from theory.quadratic import Quadratic, power_law_quadratic
from theory.quantities import positive
from theory.staleness import Tabulated


@dataclass(frozen=True)
class Recommend:
    """Recommend a replay ratio, a buffer and, with --gpus, a GPU split for one job or many.

    What is known of the gradient noise decides the model: with --spectrum-power the exact dynamics
    of a quadratic, with --noise-to-batch or --noise-scale the reuse law, else the published bound,
    which overstates what on-policy training costs.
    """

    cost_gen: float | None = None
    """Cost of generating one rollout, any unit (GPU-seconds best), > 0."""
    batch_size: int | None = None
    """Rollouts per update, a multiple of --num-generations."""
    cost_train: float = 1.0
    """Cost of one forward and backward pass on one rollout, same unit as --cost-gen, > 0."""
    gen_train_range: tuple[float, float] | None = None
    """95 % range of cost_gen / cost_train, two numbers."""
    noise_to_batch: float | None = None
    """Gradient noise scale over batch size, > 0."""
    noise_scale: float | None = None
    """Gradient noise scale in rollouts, > 0; instead of --noise-to-batch."""
    noise_scale_range: tuple[float, float] | None = None
    """95 % range of the noise scale in rollouts, two numbers."""
    variance_by_age: tuple[float, ...] = ()
    """Gradient variance of a rollout by age in updates, fresh first; the last holds from there."""
    buffer: str = "batch"
    """batch: the buffer holds one batch; large: 2 to 16 of them."""
    fixed_cost: float = 0.0
    """Cost of an update that depends on neither batch nor rollouts, in training costs, >= 0."""
    reference_updates: float | None = None
    """Updates that an on-policy run takes; pays for the first fill and gives GPU-hours."""
    spectrum_power: float | None = None
    """Decay a of the curvature spectrum i^-a, >= 0; the noise scale is then that at the start."""
    modes: int = 200
    """Modes of the spectrum, >= 1."""
    target: float = 0.02
    """Loss to reach over the loss at the start, in (0, 1); with --spectrum-power."""
    learning_rate: float | None = None
    """Step size kept for every design, largest curvature 1; none given: each design its best."""
    rho: float = 1.0
    """Correlation of the gradient noise of rollouts, 0 to 1; bound only."""
    alpha: float = 0.1
    """Exponent of noise over age, sigma(s) = s^alpha with s in updates, > 0; bound only."""
    num_generations: int = 1
    """Rollouts per prompt; batch, new rollouts and buffer are multiples of it."""
    gpus: int | None = None
    """GPUs to divide between generation and training, >= 2."""
    split_ratio: tuple[str, ...] = ()
    """cost_gen / cost_train measured at GPU splits, as W,T:RATIO or at a batch as W,T,B:RATIO."""
    train_efficiency: tuple[str, ...] = ()
    """Share of the training speed left with T trainers, as T:SHARE."""
    tokens_per_rollout: float | None = None
    """Mean tokens of prompt and completion, > 0; gives the bytes of the buffer."""
    gpu_hour_price: float | None = None
    """Price of a GPU-hour; with --reference-updates and costs in GPU-seconds."""
    jobs: Annotated[Path | None, tyro.conf.arg(name="in")] = None
    """CSV file with one job a row and flag names as columns; flags given hold for every row."""
    json: bool = False
    """Print one JSON object, a line for each job, instead of text."""


def recommend(config: Recommend) -> None:
    """Print the design of one job, or of every row of a table.

    Args:
        config: the flags.

    Returns:
        Nothing; one line of JSON a job with ``json``, else text.

    Raises:
        ValueError: if a flag or a cell is missing or out of range.

    >>> recommend(Recommend(cost_gen=1.0, batch_size=60, noise_to_batch=2.0))  # doctest: +ELLIPSIS
    verdict              on_policy
    replay ratio         1 uses per rollout
    ...
    """
    if config.jobs is None:
        design = design_of(config)
        print(as_json(design) if config.json else as_text(design))
        return
    designs = [design for _, design in designs_of(config, config.jobs)]
    lines = [as_json(design) for design in designs] if config.json else as_table(designs)
    print("\n".join(lines))


def design_of(config: Recommend) -> Design:
    """The design of one job.

    Args:
        config: the job; its ``jobs`` and ``json`` are not looked at.

    Returns:
        What ``optimal_design`` says (P8, L1 or Q7 by what is known of the noise).

    Raises:
        ValueError: if a flag is missing or out of range.

    >>> design_of(Recommend(cost_gen=5.28, batch_size=60)).rollouts_per_update
    31
    """
    for name in ("cost_gen", "batch_size"):
        if getattr(config, name) is None:
            raise ValueError(f"--{name.replace('_', '-')} is missing: it must be given")
    spectrum = _spectrum(config)
    return optimal_design(
        config.cost_gen or 0.0,
        config.cost_train,
        batch_size=config.batch_size or 0,
        rho=config.rho,
        alpha=config.alpha,
        profile=Tabulated(config.variance_by_age) if config.variance_by_age else None,
        noise_to_batch=None if spectrum else config.noise_to_batch,
        noise_scale=None if spectrum else config.noise_scale,
        noise_scale_range=config.noise_scale_range,
        gen_train_range=config.gen_train_range,
        spectrum=spectrum,
        target=config.target,
        learning_rate=config.learning_rate,
        buffer=config.buffer,
        fixed_cost=config.fixed_cost,
        reference_updates=config.reference_updates,
        gpus=config.gpus,
        gen_train_by_split=dict(map(split_ratio, config.split_ratio)) or None,
        train_efficiency=dict(map(trainer_share, config.train_efficiency)) or None,
        num_generations=config.num_generations,
        tokens_per_rollout=config.tokens_per_rollout,
        gpu_hour_price=config.gpu_hour_price,
    )


def _spectrum(config: Recommend) -> Quadratic | None:
    """A power-law spectrum whose noise scale at the start, tr(Sigma)/|g|^2, is the one given."""
    if config.spectrum_power is None:
        return None
    given = [each for each in (config.noise_to_batch, config.noise_scale) if each is not None]
    if len(given) != 1:
        raise ValueError(
            "--spectrum-power needs either --noise-to-batch or --noise-scale, "
            f"got {len(given)} of them"
        )
    scale = positive("noise", given[0])
    if config.noise_to_batch is not None:
        scale *= config.batch_size or 0
    shape = power_law_quadratic(config.modes, config.spectrum_power)
    squared_gradient = float(shape.curvature**2 @ shape.start**2)
    std = math.sqrt(scale * squared_gradient / float(np.sum(shape.noise_std**2)))
    return power_law_quadratic(config.modes, config.spectrum_power, std)


def designs_of(config: Recommend, path: Path) -> list[tuple[int, Design]]:
    r"""The designs of a table of jobs, with their line numbers.

    Args:
        config: what holds for every row that does not say otherwise.
        path: CSV file; a header of flag names, an empty cell is a flag not given.

    Returns:
        (line, design) for every row.

    Raises:
        ValueError: naming the line, the column and the value, for the first that cannot be read.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "jobs.csv"
    ...     _ = path.write_text("cost_gen,noise_to_batch\n5.28,0.5\n5.28,\n")
    ...     [d.rollouts_per_update for _, d in designs_of(Recommend(batch_size=60), path)]
    [20, 31]
    """
    known = {field.name for field in fields(Recommend)} - {"jobs", "json"}
    found = []
    with open(path, newline="", encoding="utf-8") as file:
        try:
            reader = csv.DictReader(file, strict=True)
            columns = [name.strip().replace("-", "_") for name in reader.fieldnames or ()]
            unknown = sorted(set(columns) - known) or (["no header"] if not columns else [])
            if unknown:
                raise ValueError(
                    f"{path} line 1: column {unknown[0]!r} is not allowed: columns are flag names"
                )
            reader.fieldnames = columns
            for row in reader:
                found.append((reader.line_num, _row_design(config, row)))
        except (ValueError, csv.Error) as error:
            where = "" if str(error).startswith(str(path)) else f"{path} line {reader.line_num}: "
            raise ValueError(f"{where}{error}") from None
    if not found:
        raise ValueError(f"{path} is not allowed: it holds no jobs below its header")
    return found


def _row_design(config: Recommend, row: dict[str | None, Any]) -> Design:
    if None in row or None in row.values():
        raise ValueError("this row does not have as many cells as the header")
    hints = get_type_hints(Recommend)
    values = {
        str(name): _cell(str(name), text.strip(), str(hints[str(name)]))
        for name, text in row.items()
        if text.strip()
    }
    return design_of(replace(config, **values))


def _cell(name: str, text: str, hint: str) -> Any:
    """The value of a cell; lists are separated by blanks."""
    kind = int if "int" in hint else float if "float" in hint else str
    try:
        values = tuple(kind(part) for part in (text.split() if "tuple" in hint else [text]))
    except ValueError:
        allowed = "a whole number" if kind is int else "a number"
        raise ValueError(f"{name} = {text!r} is not allowed: it must be {allowed}") from None
    if "tuple[float, float]" in hint and len(values) != 2:
        raise ValueError(f"{name} = {text!r} is not allowed: it must be two numbers")
    return values if "tuple" in hint else values[0]


def split_ratio(text: str) -> tuple[tuple[int, ...], float]:
    """(W, T) or (W, T, B) and mu of a text such as ``6,2:5.34`` (P4).

    Args:
        text: W,T:RATIO or W,T,B:RATIO.

    Returns:
        The split, with its batch if given, and its cost_gen / cost_train.

    Raises:
        ValueError: if the text is anything else.

    >>> split_ratio("6,2:5.34"), split_ratio("6,2,60:5.34")
    (((6, 2), 5.34), ((6, 2, 60), 5.34))
    """
    split, _, ratio = text.partition(":")
    mu = _number("split ratio", text, ratio, "W,T:RATIO or W,T,B:RATIO, as in 6,2:5.34")
    pair, _, batch = split.rpartition(",")
    if "," in pair and batch.isascii() and batch.isdigit():
        return (*parsed_split(pair), int(batch)), mu
    return parsed_split(split), mu


def trainer_share(text: str) -> tuple[int, float]:
    """T and a share of a text such as ``1:0.6``, for the micro-batches of P2's trainers.

    Args:
        text: T:SHARE.

    Returns:
        The trainers and the share of the training speed left.

    Raises:
        ValueError: if the text is anything else.

    >>> trainer_share("1:0.6")
    (1, 0.6)
    """
    trainers, _, share = text.partition(":")
    if not (trainers.isascii() and trainers.isdigit()):
        raise ValueError(f"train efficiency = {text!r} is not allowed: it must be T:SHARE")
    return int(trainers), _number("train efficiency", text, share, "T:SHARE, as in 1:0.6")


def _number(name: str, text: str, part: str, allowed: str) -> float:
    try:
        return float(part)
    except ValueError:
        raise ValueError(f"{name} = {text!r} is not allowed: it must be {allowed}") from None


def parsed_split(split: str) -> tuple[int, int]:
    """(W, T) of a text such as ``6,2`` (P4).

    Args:
        split: two whole numbers >= 1, in decimal digits, with a comma between.

    Returns:
        (W, T), GPUs.

    Raises:
        ValueError: if the text is anything else.

    >>> parsed_split("6,2")
    (6, 2)
    """
    parts = split.split(",")
    if len(parts) != 2 or not all(part.isascii() and part.isdigit() for part in parts):
        raise ValueError(f"split = {split!r} is not allowed: it must be W,T, as in 6,2")
    generators, trainers = int(parts[0]), int(parts[1])
    if not (generators and trainers):
        raise ValueError(f"split = {split!r} is not allowed: W and T must be >= 1")
    return generators, trainers


def record(design: Design) -> dict[str, Any]:
    """The design as strict JSON types; an infinite number, such as no break-even, is None.

    Args:
        design: any design.

    Returns:
        Its fields, the split as ``num_generators`` and ``num_trainers``.

    >>> record(design_of(Recommend(cost_gen=5.28, batch_size=60)))["num_trainers"] is None
    True
    """
    found = asdict(design)
    generators, trainers = found.pop("split") or (None, None)
    found |= {"num_generators": generators, "num_trainers": trainers}
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in found.items()
    }


def as_json(design: Design) -> str:
    """The design as one line of strict JSON.

    Args:
        design: any design.

    Returns:
        One object.

    >>> as_json(design_of(Recommend(cost_gen=5.28, batch_size=60)))[:36]
    '{"replay_ratio": 1.935483870967742, '
    """
    return json.dumps(record(design), allow_nan=False)


def as_text(design: Design) -> str:
    """The design in plain words: what to set, what it costs, why, and what could be wrong.

    Args:
        design: any design.

    Returns:
        Lines of text.

    >>> as_text(design_of(Recommend(cost_gen=5.28, batch_size=60))).splitlines()[2]
    'new rollouts         31 per update of 60'
    """
    lines = [
        ("verdict", design.verdict),
        ("replay ratio", f"{design.replay_ratio:.4g} uses per rollout"),
        ("new rollouts", f"{design.rollouts_per_update} per update of {design.batch_size}"),
        ("buffer size", f"{design.buffer_size} rollouts ({design.staleness_horizon:.4g} updates)"),
        ("GPU split", design.split and "{} generate, {} train".format(*design.split)),
        ("cost ratio", _cost_text(design)),
        ("break-even", _break_even_text(design)),
        ("decided by", ", ".join(design.deciding_inputs)),
        ("step size", design.learning_rate and f"{design.learning_rate:.4g}"),
        ("buffer memory", design.buffer_bytes and f"{design.buffer_bytes / 2**20:.4g} MiB"),
        ("update time", _time_text(design)),
        ("GPU-hours", _hours_text(design)),
    ]
    shown = [f"{name:<20} {value}" for name, value in lines if value]
    shown += [f"why: {reason}" for reason in design.why]
    return "\n".join(shown + [f"warning: {warning}" for warning in design.warnings])


def _cost_text(design: Design) -> str:
    base = "the bound's on-policy" if design.model == "bound" else "on-policy"
    interval = ""
    if design.cost_ratio_low is not None and design.cost_ratio_high is not None:
        interval = f" [{design.cost_ratio_low:.4g}, {design.cost_ratio_high:.4g}]"
    return f"{design.cost_ratio:.4g}{interval} of {base} at this batch ({design.model})"


def _break_even_text(design: Design) -> str:
    parts = []
    if design.break_even_gen_train_ratio is not None:
        parts.append(f"cost_gen/cost_train above {design.break_even_gen_train_ratio:.4g}")
    if design.break_even_noise_to_batch is not None:
        parts.append(f"noise_to_batch below {design.break_even_noise_to_batch:.4g}")
    return "replay pays at " + " or ".join(parts) if parts else ""


def _time_text(design: Design) -> str:
    if design.update_time is None or design.on_policy_update_time is None:
        return ""
    return f"{design.update_time:.4g}, on-policy {design.on_policy_update_time:.4g} (cost unit)"


def _hours_text(design: Design) -> str:
    if design.gpu_hours is None or design.on_policy_gpu_hours is None:
        return ""
    price = "" if design.price is None else f", price {design.price:.6g}"
    return f"{design.gpu_hours:.4g}, on-policy {design.on_policy_gpu_hours:.4g}{price}"


def as_table(designs: Iterable[Design]) -> list[str]:
    """One line a design under a header.

    Args:
        designs: any designs.

    Returns:
        Lines of text.

    >>> as_table([design_of(Recommend(cost_gen=5.28, batch_size=60))])[1].split()
    ['replay', '60', '31', '82', '1.94', '0.8815']
    """
    lines = [f"{'verdict':<26} {'B':>6} {'R':>6} {'N':>8} {'y':>7} {'cost ratio':>10}"]
    return lines + [
        f"{d.verdict:<26} {d.batch_size:>6} {d.rollouts_per_update:>6} {d.buffer_size:>8} "
        f"{d.replay_ratio:>7.3g} {d.cost_ratio:>10.4f}"
        for d in designs
    ]
