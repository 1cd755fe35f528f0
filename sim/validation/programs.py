"""Compiled programs kept on disk, so that environments of one shape are compiled once."""

from pathlib import Path


def keep_programs(folder: Path) -> None:
    """Keep compiled programs below this folder, for this process and later ones."""
    import jax

    jax.config.update("jax_compilation_cache_dir", str(folder / "programs"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)
