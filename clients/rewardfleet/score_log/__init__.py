"""A log of what was scored: `ScoreLog` writes it, and `reading` reads it with DuckDB."""

from .record import Scored
from .writer import ScoreLog

__all__ = ["ScoreLog", "Scored"]
