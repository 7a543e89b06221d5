"""What became of all calls."""

import asyncio
import statistics
import time
from collections import Counter
from dataclasses import dataclass, field


@dataclass
class Figures:
    """The calls of a test.

    Attributes:
        name: The test.
        made: Calls.
        right: Calls that got their right answer.
        wrong: Calls that got another answer, with an example.
        duplicated: Effects that were counted more than once.
        repeated: Attempts beyond the first one, by the error that made them necessary.
        seconds: Seconds of each call, by phase.
        notes: Other figures, by name.
    """

    name: str
    made: int = 0
    right: int = 0
    wrong: list[str] = field(default_factory=list)
    duplicated: int = 0
    repeated: Counter[str] = field(default_factory=Counter)
    seconds: dict[str, list[float]] = field(default_factory=dict)
    notes: dict[str, object] = field(default_factory=dict)
    started: float = field(default_factory=time.monotonic)

    def check(self, name: object, found: object, expected: object) -> None:
        """Count a call, and compare its answer."""
        if found == expected:
            self.right += 1
        else:
            self.wrong.append(f"{name}: {found!r} instead of {expected!r}")

    async def more(self, calls: int) -> None:
        """Wait until so many more calls have got their right answer."""
        before = self.right
        async with asyncio.timeout(90):
            while self.right < before + calls:
                await asyncio.sleep(0.02)

    @property
    def lost(self) -> int:
        """Calls without an answer."""
        return self.made - self.right - len(self.wrong)

    def p99(self, phase: str) -> float:
        return statistics.quantiles(self.seconds[phase], n=100)[98]

    def text(self) -> str:
        times = [
            f"{phase} p50 {statistics.median(each):.3f} p99 {self.p99(phase):.3f} "
            f"max {max(each):.3f} s"
            for phase, each in self.seconds.items()
            if len(each) > 1
        ]
        repeats = ", ".join(f"{count} {kind}" for kind, count in self.repeated.items()) or "0"
        notes = [f"{name} {value}" for name, value in self.notes.items()]
        return (
            f"{self.name}: {self.made} calls, {self.lost} lost, {self.duplicated} duplicated, "
            f"{len(self.wrong)} wrong; repeated by the caller: {repeats}; "
            f"{'; '.join([*times, *notes])}; {time.monotonic() - self.started:.0f} s"
        )

    def assert_all_right(self) -> None:
        assert self.made > 0
        assert (self.lost, self.duplicated, self.wrong[:3]) == (0, 0, []), self.text()
