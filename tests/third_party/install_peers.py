"""Fetch the sources that sources.toml names into .peers, or the folder that PEERS names."""

import os
import subprocess
import tomllib
from pathlib import Path

HERE = Path(__file__).parent
PEERS = Path(os.environ.get("PEERS", HERE.parent.parent / ".peers"))


def main() -> None:
    for name, source in tomllib.loads((HERE / "sources.toml").read_text()).items():
        folders = [f"/{each}/" for each in source.get("folders", [])]
        files = [f"/{each}" for each in source.get("files", [])]
        fetch(PEERS / name, source["url"], source["commit"], folders + files)


def fetch(folder: Path, url: str, commit: str, parts: list[str]) -> None:
    """Check out a commit without its history, and only some folders and files, if any are given."""

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
    if parts:
        git("sparse-checkout", "set", "--no-cone", *parts)
    git("checkout", "--quiet", "--force", "--detach", commit)
    git("branch", "--force", "installed", commit)  # only once all of it is there


if __name__ == "__main__":
    main()
