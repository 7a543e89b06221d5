"""What `rewardfleet-router label` prints: counts of labels, and how far methods agree."""

import json
from collections import Counter
from collections.abc import Hashable, Mapping
from dataclasses import asdict, dataclass, field
from itertools import combinations
from typing import TypeVar

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

ItemT = TypeVar("ItemT", bound=Hashable)

#: Disagreements that are printed; JSON has all.
_MAX_SHOWN = 10


@dataclass(frozen=True)
class Agreement:
    """How far two methods give the same labels.

    Attributes:
        methods: Their names.
        count: Items that both have labeled.
        share: Share of these with the same label; None without items.
        kappa: Cohen's kappa: the share beyond what chance would give; None where chance would
            give everything. Source: Cohen, A Coefficient of Agreement for Nominal Scales (1960).
    """

    methods: tuple[str, str]
    count: int
    share: float | None
    kappa: float | None


@dataclass(frozen=True)
class Disagreement:
    """A tool that methods label differently.

    Attributes:
        tool: Its name.
        description: What it does.
        rows: Rows that have it.
        families: Its family by method.
    """

    tool: str
    description: str
    rows: int
    families: Mapping[str, str]


@dataclass(frozen=True)
class Output:
    """A file that was written.

    Attributes:
        path: The file.
        rows: Its rows.
        targets: Number of rows by label.
        malformed: Rows whose ground truth is malformed; they are `MIXED`.
    """

    path: str
    rows: int
    targets: Mapping[str, int]
    malformed: int


@dataclass
class Report:
    """What was labeled.

    Attributes:
        outputs: The files that were written.
        families: Number of tools by method and family. `result` is what was written.
        tools: Agreement of methods on tools.
        targets: Agreement on the labels of rows that call tools, all of which have a family by
            both methods; and of the model's labels of rows with labels by families.
        disagreements: Tools on which methods differ, the most frequent ones first.
        unanswered: Texts for which the model gave no valid answer, by what was asked.
    """

    outputs: list[Output] = field(default_factory=list)
    families: dict[str, Mapping[str, int]] = field(default_factory=dict)
    tools: list[Agreement] = field(default_factory=list)
    targets: list[Agreement] = field(default_factory=list)
    disagreements: list[Disagreement] = field(default_factory=list)
    unanswered: dict[str, int] = field(default_factory=dict)

    def as_json(self) -> str:
        """Return it as JSON."""
        return json.dumps(asdict(self), indent=2)

    def as_text(self) -> str:
        """Return it as tables."""
        console = Console(width=120)
        with console.capture() as capture:
            for table in self._tables():
                if table.row_count:
                    console.print(table)
            for what, count in self.unanswered.items():
                if count:
                    console.print(f"No valid answer of the model for {count} {what}.")
            malformed = sum(output.malformed for output in self.outputs)
            if malformed:
                console.print(f"Ground truths that are malformed, labeled MIXED: {malformed} rows.")
        return capture.get().rstrip()

    def _tables(self) -> list[Table]:
        outputs = _table("Output", "Rows", *self.outputs[0].targets)
        for output in self.outputs:
            outputs.add_row(
                escape(output.path), str(output.rows), *map(str, output.targets.values())
            )
        families = _table("Tools", "search", "calculate", "other")
        for method, counts in self.families.items():
            cells = [str(counts.get(name, 0)) for name in ("search", "calculate", "other")]
            families.add_row(method, *cells)
        agreement = _table("Agreement", "on", "labeled by both", "same", "kappa")
        for what, items in (("tools", self.tools), ("rows", self.targets)):
            for each in items:
                share = "-" if each.share is None else f"{each.share:.1%}"
                kappa = "-" if each.kappa is None else f"{each.kappa:.2f}"
                agreement.add_row(" / ".join(each.methods), what, str(each.count), share, kappa)
        methods = [name for name in self.families if name != "result"]
        differences = _table("Disagreement", "Rows", *methods)
        for tool in self.disagreements[:_MAX_SHOWN]:
            cells = [tool.families.get(method, "-") for method in methods]
            differences.add_row(escape(tool.tool), str(tool.rows), *cells)
        return [outputs, families, agreement, differences]


def _table(*columns: str) -> Table:
    table = Table(box=SIMPLE_HEAD)
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number else "left", overflow="fold")
    return table


def agreements(labels: Mapping[str, Mapping[ItemT, str]]) -> list[Agreement]:
    """Return the agreement of each pair of methods.

    Args:
        labels: Labels by method and item. A method need not label every item.
    """
    return [agreement(labels, first, second) for first, second in combinations(labels, 2)]


def agreement(labels: Mapping[str, Mapping[ItemT, str]], first: str, second: str) -> Agreement:
    """Return the agreement of two methods."""
    both = [
        (label, labels[second][item])
        for item, label in labels[first].items()
        if item in labels[second]
    ]
    count = len(both)
    if not count:
        return Agreement((first, second), 0, None, None)
    share = sum(a == b for a, b in both) / count
    of_first, of_second = Counter(a for a, _ in both), Counter(b for _, b in both)
    by_chance = sum(of_first[label] * of_second[label] for label in of_first) / count**2
    kappa = None if by_chance == 1 else (share - by_chance) / (1 - by_chance)
    return Agreement((first, second), count, share, kappa)
