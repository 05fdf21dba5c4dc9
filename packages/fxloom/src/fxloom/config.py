"""Settings of the umbrella: read from the environment at the entry points, and handed down.

In: the environment: `FXLOOM_<FIELD>` sets a field (FXLOOM_CACHE_DIR, FXLOOM_DEBUG, FXLOOM_DEBUG_DIR, FXLOOM_DISABLE,
FXLOOM_DUCK_SHAPES). Out: `Settings`, and the root of the artifact store.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from fxloom_interfaces.config import read_environment


@dataclass(frozen=True, slots=True)
class Settings:
    """cache_dir: of compiled artifacts; None for the user's cache folder.

    duck_shapes: sizes that are equal in the first call are taken for one size, where `compile` isn't told otherwise.
    debug: write the debug folder of every compilation under debug_dir. disable: compile nothing, run eager.
    """

    cache_dir: str | None = None
    debug: bool = False
    debug_dir: str = "fxloom_debug"
    disable: bool = False
    duck_shapes: bool = True


def settings() -> Settings:
    """The settings as the environment has them now. ConfigError for a value that can't be read."""
    return Settings(**read_environment(Settings, os.environ))


def cache_root() -> Path:
    """Where compiled artifacts are kept: FXLOOM_CACHE_DIR, else the user's cache folder as the platform has it."""
    named = settings().cache_dir
    if named:
        return Path(named).expanduser()
    from platformdirs import user_cache_path

    return user_cache_path("fxloom", appauthor=False)
