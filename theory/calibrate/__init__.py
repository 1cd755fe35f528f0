"""From measurements to the theory's inputs: one place to import from.

The noise scale from updates to target (``updates_fit``) or from gradients (``noise_scale``), the
staleness profile from importance ratios (``ratio_noise``) and its formula (``profile_fit``), and
mu from counts or times (``measured_cost``), each with a 95 % interval. Fits of whole laws to the
updates of a pilot, without intervals: the finite-memory laws (``memory_fit``), the published bound
(``bound_fit``) and a power-law quadratic (``spectrum_fit``). Each module states its model and where
it fails.

>>> fit = noise_scale_from_updates([16, 64, 256], [[490, 510], [198, 202], [125, 125]])
>>> mu = gen_train_ratio_from_windows([880, 880], [520, 480], 6, 2).gen_train_ratio.value
>>> round((mu / (fit.noise_scale.value / 64)) ** 0.5, 4)
2.2978
"""

from theory.calibrate.bound_fit import BoundFit, bound_from_updates
from theory.calibrate.estimate import Estimate
from theory.calibrate.measured_cost import (
    MeasuredRatio,
    gen_train_ratio_from_times,
    gen_train_ratio_from_windows,
)
from theory.calibrate.memory_fit import MemoryFit, fixed_step_memory_fit, tuned_memory_fit
from theory.calibrate.noise_scale import (
    NoiseScale,
    noise_scale_from_batches,
    noise_scale_from_gradients,
)
from theory.calibrate.profile_fit import ProfileFit, ProfileFits, profile_fits
from theory.calibrate.ratio_noise import (
    MeasuredProfile,
    RatioMoments,
    moments_from_ess,
    moments_from_means,
    moments_from_ratios,
    staleness_profile,
)
from theory.calibrate.spectrum_fit import SpectrumFit, spectrum_from_updates
from theory.calibrate.updates_fit import UpdatesFit, long_run_updates, noise_scale_from_updates

__all__ = [
    "BoundFit",
    "Estimate",
    "MeasuredProfile",
    "MeasuredRatio",
    "MemoryFit",
    "NoiseScale",
    "ProfileFit",
    "ProfileFits",
    "RatioMoments",
    "SpectrumFit",
    "UpdatesFit",
    "bound_from_updates",
    "fixed_step_memory_fit",
    "gen_train_ratio_from_times",
    "gen_train_ratio_from_windows",
    "long_run_updates",
    "moments_from_ess",
    "moments_from_means",
    "moments_from_ratios",
    "noise_scale_from_batches",
    "noise_scale_from_gradients",
    "noise_scale_from_updates",
    "profile_fits",
    "spectrum_from_updates",
    "staleness_profile",
    "tuned_memory_fit",
]
