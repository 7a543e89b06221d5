"""Take the screenshots of docs/look.md: the LIBERO example and some programs, scored and shown.

.venv/bin/python docs/look_screenshots.py        needs Debian's Chromium; `make screenshots`
"""

import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

import rewardfleet
from rewardfleet.commands.local_service import local_service

ROOT = Path(__file__).parent.parent
DATA = ROOT / "tests" / "data"
#: What a weak policy writes.
PROGRAMS = (
    "print(input())",
    "import sys\nfor line in sys.stdin:\n    print(line.strip()[::-1])",
    "def solve(:\n    pass",
    "while True: pass",
)
#: The task of the clip, in which a robot takes the wrong bowl.
TASK = "pick up the black bowl between the plate and the ramekin and place it on the plate"


async def score_programs(url: str) -> None:
    """Score programs on rows of published data sets, over five steps of a run."""
    async with rewardfleet.RewardFleet(code=url) as fleet:
        for step in range(5):
            for path in sorted((DATA / "rows").glob("*.jsonl")):
                row = json.loads(path.read_text().splitlines()[0])
                row.pop("_source", None)
                text = f"I read the input first.\n```python\n{PROGRAMS[step % 4]}\n```\nDone."
                await fleet.code.score(
                    text, row, run="example", step=step, uid=path.stem, limits={"cpu_s": 1}
                )


def main() -> None:
    """Score, serve the page, and take the screenshots."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "log")
        example = [sys.executable, str(ROOT / "examples" / "libero_episodes.py")]
        keep = {"REWARDFLEET_SCORE_LOG": str(log), "REWARDFLEET_SCORE_LOG_SAMPLE": "1"}
        subprocess.run(
            [*example, str(DATA / "libero"), f"{folder}/episodes.png"],
            env={**os.environ, **keep},
            stdout=subprocess.DEVNULL,
            check=True,
        )
        with local_service("code", f"--cache '' --score-log {log} score_log_sample 1") as url:
            asyncio.run(score_programs(url))
        look = [sys.executable, "-m", "rewardfleet", "look", str(log), "--port", "0"]
        options = ["--labels", f"{folder}/labels.jsonl"]
        with subprocess.Popen([*look, *options], stdout=subprocess.PIPE, text=True) as page:
            try:
                assert page.stdout is not None
                take(page.stdout.readline().split()[0])
            finally:
                page.terminate()


def take(url: str) -> None:
    """Take the screenshots of a page."""
    with sync_playwright() as runtime:
        browser = runtime.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        page = browser.new_page(viewport={"width": 1100, "height": 640})
        page.goto(f"{url}?run=example")
        page.screenshot(path=ROOT / "docs" / "look-table.png")
        for name, query, heading in (
            ("clip", f"service=video&task={TASK}&sort=score", "Frames"),
            ("program", "cause=wrong_answer&run=example", ""),
            ("group", "service=episode&text=wrong_object__s48781", "Group"),
        ):
            page.goto(f"{url}?{query}")
            page.locator("tr[data-n] a").first.click()
            page.locator("#back").wait_for()
            page.wait_for_load_state("networkidle")
            if heading:
                top = page.locator("h2", has_text=heading).first
                top.evaluate("element => element.scrollIntoView()")
            page.screenshot(path=ROOT / "docs" / f"look-{name}.png")
        browser.close()
    for path in (ROOT / "docs").glob("look-*.png"):  # a third of the size
        Image.open(path).convert("RGB").quantize(256, dither=Image.Dither.NONE).save(
            path, optimize=True
        )


main()
