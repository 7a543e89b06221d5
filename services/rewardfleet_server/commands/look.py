"""`rewardfleet look`: a page that shows what was scored."""

import functools
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rewardfleet.bulk.rows import clip_of
from rewardfleet.commands.options import grouped, path_option
from rewardfleet.score_log.copying import copied
from rewardfleet.wire.optional_imports import require
from rewardfleet.wire.urls import is_loopback
from rewardfleet_server.settings import read_keys
from rewardfleet_server.system.listener import bind, url_of
from rewardfleet_server.up.flags import network_flags

if TYPE_CHECKING:
    from rewardfleet_server.video.clip.strip import FileStrips

#: Bytes of a clip whose frames are shown, at most.
_MAX_CLIP_BYTES = 512 * 2**20
#: Away from the ports of services, replicas and gateways.
_PORT = 18070


@dataclass(frozen=True)
class _Network:
    """Where the page is, and who may see it."""

    host: str | None
    port: int | None
    api_key_file: Path | None


@click.command(
    name="look",
    help="Show a page of what was scored: folders of --score-log, outputs of `rewardfleet score`, "
    "and URLs of running services or fleets. People can filter, compare and label scores there.",
)
@click.argument("sources", nargs=-1, required=True, metavar="FOLDER|URL...")
@network_flags("the page", port=_PORT)
@path_option(
    "--score-log-key-file",
    "FILE",
    "File with the key for URLs, of their --score-log-key-file; the first line counts.",
    "key_file",
)
@path_option(
    "--labels",
    "FILE",
    "File that labels are added to.",
    default=Path("labels.jsonl"),
    show_default=True,
)
@path_option(
    "--video-root",
    "FOLDER",
    "Folder of clips that requests name by path, or library of the judge `reference`, to show "
    "their frames.  Can be repeated.",
    "video_roots",
    multiple=True,
)
@grouped(network=_Network)
def command(
    sources: tuple[str, ...],
    key_file: Path | None,
    labels: Path,
    video_roots: tuple[Path, ...],
    network: _Network,
) -> int:
    """Serve the page until it is interrupted."""
    host = network.host or "127.0.0.1"
    if not (is_loopback(host) or network.api_key_file):
        raise ValueError(f"--host {host}: give --api-key-file")
    for folder in video_roots:
        if not folder.is_dir():  # else it would be noticed with the first clip only
            raise ValueError(f"{folder}: no such folder of clips")
    require("look", "the page", "duckdb", "jinja2")
    from rewardfleet_server.look.app import serve_page  # noqa: PLC0415 - optional packages
    from rewardfleet_server.look.labels import Labels  # noqa: PLC0415 - likewise
    from rewardfleet_server.look.records import Records  # noqa: PLC0415 - likewise

    folders = [Path(each) for each in sources if "://" not in each]
    key = None if key_file is None else read_keys(key_file, "--score-log-key-file")[0]
    with copied([each for each in sources if "://" in each], key) as copies:
        records = Records(folders, copies, decode=strips(video_roots))
        known = Labels(labels)
        listener = bind(host, _PORT if network.port is None else network.port)
        listener.listen()  # so that who reads the next line can connect
        click.echo(f"{url_of(listener)}/  (Ctrl-C ends it)")
        return serve_page(records, known, listener, network.api_key_file)


def strips(roots: Sequence[Path]) -> Callable[[Mapping[str, Any]], bytes | None]:
    """Return what decodes clips in folders, references in the library, and clips of inputs.

    The packages that it needs are imported with the first clip, as that takes a quarter of the
    time in which the page opens.
    """

    @functools.cache
    def decoder(folders: Sequence[Path]) -> "FileStrips":
        from rewardfleet_server.video.clip.sources import VideoFiles  # noqa: PLC0415 - see above
        from rewardfleet_server.video.clip.strip import FileStrips  # noqa: PLC0415 - see above
        from rewardfleet_server.video.references.library import SHIPPED  # noqa: PLC0415 - see above

        return FileStrips(VideoFiles([*folders, SHIPPED], max_bytes=_MAX_CLIP_BYTES))

    def strip_at(path: Path, request: Mapping[str, Any]) -> bytes | None:
        return decoder((path.parent,)).strip_of({**request, "video_path": path.name})

    def strip_of(request: Mapping[str, Any]) -> bytes | None:
        if "path" not in request:
            return decoder(tuple(roots)).strip_of(request)
        if request["path"] is not None:
            path = Path(request["path"])
            return strip_at(path, request) if path.is_file() else None
        content = clip_of(request, request.get("sha256"))
        if content is None:
            return None
        with tempfile.NamedTemporaryFile() as file:
            file.write(content)
            file.flush()
            return strip_at(Path(file.name), request)

    return strip_of
