"""A Docker engine of the tests' own, on Debian, without access to a registry of images.

Everything is in one folder, which later runs use again: the engine's data, its socket, the compose
plugin and the base image. System packages are installed by apt if they are missing. Mirrors and
registries are those that this machine is configured for.
"""

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

from .. import debian
from ..debian import MissingTool

ROOT = Path(__file__).parent.parent.parent
HERE = Path(__file__).parent
#: Images that docker-compose.yml names, and their targets in images.Dockerfile.
STAND_INS = {"redis": "redis:8", "prometheus": "prom/prometheus:v3.5.3"}
_CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")


class Engine:
    """Runs `docker` with the tests' own engine.

    Args:
        folder: Where everything is; not on an overlay file system.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._daemon: subprocess.Popen[bytes] | None = None
        self.environment = {
            **{name: value for name, value in os.environ.items() if "DOCKER" not in name},
            "DOCKER_HOST": f"unix://{folder}/docker.sock",
            "DOCKER_CONFIG": str(folder / "config"),
            "DOCKER_BUILDKIT": "1",
        }

    def docker(self, *arguments: object, timeout: float = 240, check: bool = True) -> str:
        """Run a command of docker; return its output, with that of errors if it may fail.

        Raises:
            AssertionError: It failed.
        """
        done = subprocess.run(
            ["docker", *map(str, arguments)],
            env=self.environment,
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        errors = done.stderr[-4000:]
        assert not check or done.returncode == 0, f"docker {arguments}: {done.stdout} {errors}"
        return (done.stdout if check else done.stdout + errors).strip()

    def remove(self, *arguments: object) -> None:
        """Run a command that removes a network, until it succeeds or two minutes have passed.

        The engine reports a container as removed before it has detached it from its network, and
        refuses to remove the network until then.
        """
        deadline = time.monotonic() + 120
        while True:
            try:
                self.docker(*arguments)
            except AssertionError as error:
                if "has active endpoints" not in str(error) or time.monotonic() > deadline:
                    raise
                time.sleep(1)
            else:
                return

    def build(self, dockerfile: Path, tag: str, context: Path = ROOT, *flags: str) -> None:
        """Build an image. Its network is this machine's, as those of the engine lead nowhere."""
        self.docker("build", "--network=host", "-q", "-f", dockerfile, "-t", tag, *flags, context)

    def start(self) -> None:
        """Install what is missing, and start the engine.

        Raises:
            MissingTool: It cannot run here.
        """
        if os.geteuid() != 0 or shutil.which("apt-get") is None:
            raise MissingTool("the engine needs root on Debian")
        self.folder.mkdir(parents=True, exist_ok=True)
        if not all(map(shutil.which, ("dockerd", "mmdebstrap"))):
            debian.run("apt-get", "update", "-qq")
            packages = ("docker.io", "mmdebstrap")
            debian.run("apt-get", "install", "-y", "-qq", "--no-install-recommends", *packages)
        if not (plugins := self.folder / "config/cli-plugins").exists():
            packages = self.folder / "plugins"
            debian.extract(("docker-compose", "docker-buildx"), packages)
            shutil.copytree(packages / "extracted/usr/libexec/docker/cli-plugins", plugins)
        self._start_daemon()

    def stop(self) -> None:
        """End the engine."""
        if self._daemon is not None:
            self._daemon.send_signal(signal.SIGTERM)
            self._daemon.wait(60)
        for mount in ("exec/netns/default", "data"):  # docker leaves them mounted
            if (path := self.folder / mount).exists():
                subprocess.run(["umount", path], stderr=subprocess.DEVNULL, check=False)

    def make_base_image(self) -> None:
        """Make `python:3.13-slim` unless it exists."""
        if self.docker("images", "-q", "python:3.13-slim"):
            return
        tar, context = self.folder / "rootfs.tar", self.folder / "base"
        packages = "--include=python3,python3-venv,python3-pip,ca-certificates"
        debian.run(
            "mmdebstrap", "--variant=minbase", packages, debian.RELEASE, str(tar), debian.source()
        )
        self.docker("import", tar, "rootfs")
        tar.unlink()
        context.mkdir(exist_ok=True)
        shutil.copy(_CERTIFICATES, context)
        command = ("pip", "config", "get", "global.index-url")
        index = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
        lines = ["[global]", f"cert = {_CERTIFICATES}", f"index-url = {index}" if index else ""]
        (context / "pip.conf").write_text("\n".join(lines) + "\n")
        self.build(HERE / "base.Dockerfile", "python:3.13-slim", context)

    def make_images(self) -> None:
        """Build the project's image `cpu`, and the stand-ins for public images."""
        self.build(ROOT / "deploy/Dockerfile", "rewardfleet:cpu", ROOT, "--target=cpu")
        empty = self.folder / "empty"
        empty.mkdir(exist_ok=True)
        for target, tag in STAND_INS.items():
            self.build(HERE / "images.Dockerfile", tag, empty, f"--target={target}")
        self.docker("image", "prune", "--force")  # those that had these tags before
        self.docker("builder", "prune", "--force", "--keep-storage=6GB")

    def _start_daemon(self) -> None:
        folder = self.folder
        _end_previous(folder / "dockerd.pid", str(folder / "data"))
        with (folder / "dockerd.log").open("w") as log:
            self._daemon = subprocess.Popen(
                [
                    "dockerd",
                    *("--data-root", folder / "data", "--exec-root", folder / "exec"),
                    *("--pidfile", folder / "dockerd.pid", "-H", f"unix://{folder}/docker.sock"),
                    # No firewall rule of this machine changes.
                    *("--iptables=false", "--ip6tables=false", "--ip-masq=false"),
                    *("--bridge=none", "--ip-forward=false"),
                ],
                stdout=log,
                stderr=log,
            )
        deadline = time.monotonic() + 90
        while "Server" not in self.docker("version", check=False, timeout=30):
            if self._daemon.poll() is not None or time.monotonic() > deadline:
                log_end = (folder / "dockerd.log").read_text()[-2000:]
                raise MissingTool(f"dockerd does not run here:\n{log_end}")
            time.sleep(0.1)


def _end_previous(pid_file: Path, data: str) -> None:
    """End the engine of a run that was killed."""
    try:
        process = Path("/proc") / pid_file.read_text().strip()
        if data.encode() in (process / "cmdline").read_bytes().split(b"\0"):
            os.kill(int(process.name), signal.SIGTERM)
            while process.exists():
                time.sleep(0.1)
    except FileNotFoundError:
        pass
    pid_file.unlink(missing_ok=True)
