"""Fetch the sources that sources.toml names into .peers, or the folder that PEERS names."""

import os
import subprocess
import tomllib
from pathlib import Path

HERE = Path(__file__).parent
PEERS = Path(os.environ.get("PEERS", HERE.parent.parent / ".peers"))


def main() -> None:
    for name, source in tomllib.loads((HERE / "sources.toml").read_text()).items():
        fetch(PEERS / name, source["url"], source["commit"], source.get("folders"))


def fetch(folder: Path, url: str, commit: str, folders: list[str] | None) -> None:
    """Check out a commit without its history, and only the files of some folders."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(folder), *arguments]
        return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()

    folder.mkdir(parents=True, exist_ok=True)
    git("init", "--quiet")
    if commit in git("for-each-ref", "--format=%(objectname)", "refs/heads/installed"):
        return
    print(f"fetching {url} at {commit[:7]} ...", flush=True)
    git("config", "remote.origin.url", url)
    git("fetch", "--quiet", "--depth", "1", "--filter", "blob:none", "origin", commit)
    if folders:
        git("sparse-checkout", "set", "--no-cone", *(f"/{each}/" for each in folders))
    git("checkout", "--quiet", "--force", "--detach", commit)
    git("branch", "--force", "installed", commit)  # only once all of it is there


if __name__ == "__main__":
    main()
