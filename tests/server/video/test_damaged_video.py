"""Incomplete and damaged videos are rejected, in all containers and codecs; intact ones are not.

What a decoder cannot notice is found by the SHA-256 that a request may carry. Files of different
writers are described in tests/data/mp4/README.md.
"""

import base64
import hashlib
import io
import random
import re
import statistics
import struct
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from fractions import Fraction
from functools import reduce
from itertools import pairwise, product
from pathlib import Path

import av
import cv2
import httpx
import numpy as np
import pytest

from rewardfleet.video import video_request
from rewardfleet.wire.errors import InvalidRequest, RewardFleetError, TooLarge
from rewardfleet_server.system.anonymous_file import spool_bytes
from rewardfleet_server.testing import FakeJudge
from rewardfleet_server.video.clip.containers import check_container
from rewardfleet_server.video.clip.frames import (
    Clip,
    DecodeSpec,
    as_mp4,
    decode_images,
    decode_video,
)

from ...conftest import DATA, LONG_CLIP, served, table
from ...videos import CODECS, FPS, encode, encode_cached, scene

TASK = "put the bowl on the plate"
FRAMES = 40
ALL = [(container, codec) for container, codecs in CODECS.items() for codec in codecs]
FORMATS = ("yuv420p10le", "yuv444p", "yuv444p10le")
DEEP = list(product(("mp4", "mkv"), ("h264", "hevc", "vp9", "av1"), FORMATS))


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    with served() as client:
        yield client


def post(client: httpx.Client, video: bytes, **fields: object) -> httpx.Response:
    sent = base64.b64encode(video).decode()
    return client.post("/score", json={"task_text": TASK, "video_base64": sent, **fields})


def check_refused(client: httpx.Client, video: bytes) -> None:
    answer = post(client, video)
    assert answer.status_code == 422, answer.text
    detail = answer.json()["detail"]
    assert any(word in detail for word in ("truncated", "damaged", "cannot be decoded")), detail


def decode(video: bytes) -> Clip:
    """Check and decode a file as the service does."""
    file = spool_bytes(video)
    check_container(file.fd, "video_base64", max_bytes=2**30)
    return decode_video(file.path, DecodeSpec(FRAMES, 200_704))


def check_intact(video: bytes, *, frames: int = FRAMES, width: int = 96, height: int = 64) -> None:
    clip = decode(video)
    assert clip.total == frames
    for index, frame in zip(clip.indices, clip.frames, strict=True):
        expected = scene(index, width, height)
        assert frame.shape == expected.shape
        assert np.abs(frame.astype(int) - expected).mean() < 20, index


def judge_sees_other_frames(video: bytes, intact: Clip) -> bool:
    """Return whether a damaged file is accepted and shows other frames."""
    try:
        clip = decode(video)
    except RewardFleetError:
        return False
    same = [np.array_equal(*pair) for pair in zip(clip.frames, intact.frames, strict=False)]
    return len(clip.frames) != len(intact.frames) or not all(same)


def flips(video: bytes, count: int = 30) -> Iterator[bytes]:
    """Yield files with one flipped bit each, in the middle three quarters of the file."""
    choice = random.Random(18)
    for _ in range(count):
        position = choice.randrange(len(video) // 8, len(video) * 7 // 8)
        yield flipped(video, 8 * position + choice.randrange(8))


def flipped(video: bytes, bit: int, mask: int = 1) -> bytes:
    """Return a file with one other bit, or with the others of a mask, counted from its start."""
    damaged = bytearray(video)
    damaged[bit // 8] ^= mask << bit % 8
    return bytes(damaged)


def headers(video: bytes, start: int, end: int) -> Iterator[int]:
    """Yield the positions of all bytes of an mp4 file that are not in samples."""
    while start + 8 <= end:
        length, name = int.from_bytes(video[start : start + 4], "big"), video[start + 4 : start + 8]
        if name in {b"moov", b"trak", b"mdia", b"minf", b"stbl", b"moof", b"traf", b"mfra"}:
            yield from range(start, start + 8)
            yield from headers(video, start + 8, start + length)
        elif name not in {b"mdat", b"free", b"wide"}:
            yield from range(start, start + length)
        start += length


def positions(video: bytes, *names: bytes) -> list[int]:
    return [found.start() for found in re.finditer(b"|".join(map(re.escape, names)), video)]


# Intact files


@pytest.mark.parametrize(("container", "codec"), ALL)
def test_an_intact_video_is_scored(client, container, codec):
    video = encode_cached(container, codec)
    check_intact(video)
    answer = post(client, video)
    assert answer.status_code == 200, answer.text
    assert answer.json()["provenance"]["frames"]["total"] == FRAMES
    assert answer.json()["provenance"]["frames"]["fps"] == pytest.approx(20, abs=0.1)


#: Files of different writers, and the frames that they show.
WRITERS = dict(table("frames_of_writers"))


@pytest.mark.parametrize(
    ("name", "frames"),
    # In Matroska, a frame before the start of the file has no time.
    [*WRITERS.items(), ("ffmpeg_cut_hevc.mkv", 27)],
)
def test_an_intact_file_of_every_writer_is_decoded(name, frames):
    assert decode((DATA / "mp4" / name).read_bytes()).total == frames


@pytest.mark.slow
@pytest.mark.parametrize(("container", "codec", "pix_fmt"), DEEP)
def test_10_bits_and_full_color_are_decoded(container, codec, pix_fmt):
    try:
        video = encode_cached(container, codec, pix_fmt)
    except av.error.ArgumentError:
        # PyAV's wheel has libvpx without 10 bits, and SVT-AV1 has 4:2:0 only.
        pytest.skip(f"this build of PyAV cannot encode {codec} as {pix_fmt}")
    check_intact(video)


@pytest.mark.slow
@pytest.mark.parametrize(("container", "codec", "options"), table("unusual_videos"), ids=str)
def test_unusual_intact_files_are_decoded(container, codec, options):
    sizes = {name: options[name] for name in ("frames", "width", "height") if name in options}
    check_intact(encode(container, codec, **options), **sizes)


def remuxed(video: bytes, *, first_keyframe: int) -> bytes:
    """Cut a file at a keyframe, without re-encoding."""
    output = io.BytesIO()
    with av.open(io.BytesIO(video)) as source, av.open(output, "w", format="mp4") as target:
        stream = target.add_stream_from_template(source.streams.video[0])
        keyframes = -1
        for packet in source.demux(video=0):
            keyframes += packet.is_keyframe and packet.size > 0
            if keyframes >= first_keyframe and packet.size:
                packet.stream = stream
                target.mux(packet)
    return output.getvalue()


@pytest.mark.parametrize(("codec", "options"), table("cut_videos"), ids=str)
def test_a_file_cut_without_encoding_is_decoded(codec, options):
    video = encode("mp4", codec, codec_options=options)
    clip = decode(remuxed(video, first_keyframe=1))
    assert 20 <= clip.total <= 33


@pytest.mark.parametrize(("first", "last"), [(15, 40), (0, 30), (15, 30)])
def test_an_edit_list_selects_the_frames(first, last):
    video = bytearray(encode("mp4", "h264", codec_options={"bf": "0"}))
    length = (last - first) * 1000 // FPS  # in ticks of the movie
    edit, *lengths = (video.index(b) + n for b, n in ((b"elst", 12), (b"tkhd", 24), (b"mvhd", 20)))
    with av.open(io.BytesIO(video)) as file:
        start = round(Fraction(first, FPS) / file.streams.video[0].time_base)
    video[edit : edit + 8] = length.to_bytes(4, "big") + start.to_bytes(4, "big")
    for at in lengths:
        video[at : at + 4] = length.to_bytes(4, "big")
    clip = decode(bytes(video))
    assert clip.total == last - first
    for index, frame in zip(clip.indices, clip.frames, strict=True):
        assert np.abs(frame.astype(int) - scene(first + index, 96, 64)).mean() < 20


#: Display matrices, without their other five numbers, and how a player shows a frame.
MATRICES = {
    "as it is": ((1, 0, 0, 1), lambda frame: frame),
    "hflip": ((-1, 0, 0, 1), lambda frame: frame[:, ::-1]),
    "vflip": ((1, 0, 0, -1), lambda frame: frame[::-1]),
    "upside down": ((-1, 0, 0, -1), lambda frame: frame[::-1, ::-1]),
    "clockwise": ((0, 1, -1, 0), lambda frame: np.rot90(frame, -1)),
    "counterclockwise": ((0, -1, 1, 0), np.rot90),
    "transpose": ((0, 1, 1, 0), lambda frame: frame.swapaxes(0, 1)),
    "clockwise, hflip": ((0, -1, -1, 0), lambda frame: np.rot90(frame, -1)[:, ::-1][::-1, ::-1]),
    "twice as large": ((2, 0, 0, 2), lambda frame: frame),
}


def with_matrix(video: bytes, numbers: tuple[float, ...]) -> bytes:
    """Return an mp4 file with another display matrix."""
    changed, at = bytearray(video), video.index(b"tkhd") + 4 + 40
    a, b, c, d = (round(number * 65536) for number in numbers)
    matrix = struct.pack(">9i", a, b, 0, c, d, 0, 0, 0, 1 << 30)
    changed[at : at + len(matrix)] = matrix
    return bytes(changed)


@pytest.mark.parametrize("codec", ["h264", "vp9"])  # the latter has a decoder of its own
@pytest.mark.parametrize("kind", MATRICES)
def test_a_rotated_or_mirrored_video_is_shown_as_players_do(kind, codec):
    numbers, shown = MATRICES[kind]
    [frame, _] = decode(with_matrix(encode("mp4", codec, frames=2), numbers)).frames
    expected = shown(scene(0, 96, 64))
    assert frame.shape == expected.shape
    assert np.abs(frame.astype(int) - expected).mean() < 20


@pytest.mark.parametrize("numbers", [(0, 0, 0, 0), (1, 1, -1, 1), (1, 0, 0, 0), (1, 0.1, 0, 1)])
def test_a_display_matrix_that_players_do_not_show_alike_is_refused(numbers):
    with pytest.raises(InvalidRequest, match="display matrix"):
        decode(with_matrix(encode("mp4", "h264", frames=2), numbers))


def endless(video: bytes) -> bytes:
    """Return a Matroska file whose clusters do not state their length, as those of browsers."""
    content = bytearray(video)
    for position in positions(video, b"\x1f\x43\xb6\x75"):
        width = 9 - content[position + 4].bit_length()
        size = (1 << 7 * width) - 1 | 1 << 7 * width
        content[position + 4 : position + 4 + width] = size.to_bytes(width, "big")
    return bytes(content)


def box(name: bytes, content: bytes = b"") -> bytes:
    return (8 + len(content)).to_bytes(4, "big") + name + content


def chunk(name: bytes, content: bytes = b"") -> bytes:
    return name + len(content).to_bytes(4, "little") + content


def nested(wrap: Callable[[bytes], bytes], depth: int = 3000) -> bytes:
    return reduce(lambda content, _: wrap(content), range(depth), b"")


PARTS = 250_000
MANY_PARTS = {
    "boxes": lambda: box(b"ftyp") + box(b"free") * PARTS,
    "boxes in boxes": lambda: box(b"ftyp") + box(b"moov", box(b"free") * PARTS),
    "deep boxes": lambda: box(b"ftyp") + nested(lambda content: box(b"moov", content)),
    "chunks": lambda: chunk(b"RIFF", b"AVI " + chunk(b"JUNK") * PARTS),
    "deep lists": lambda: chunk(b"RIFF", b"AVI " + nested(lambda c: chunk(b"LIST", b"list" + c))),
    "index entries": lambda: chunk(b"RIFF", b"AVI " + chunk(b"idx1", bytes(16 * PARTS))),
    "elements": lambda: (
        b"\x1a\x45\xdf\xa3\x80\x18\x53\x80\x67\x01"
        + (2 * PARTS).to_bytes(7, "big")
        + b"\xec\x80" * PARTS
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MANY_PARTS)
def test_a_file_of_many_parts_is_rejected(client, name):
    check_refused(client, MANY_PARTS[name]())


@pytest.mark.parametrize(
    ("container", "table", "count"), [("mp4", b"stsz", 8), ("fragmented", b"trun", 4)]
)
def test_a_header_that_claims_many_samples_is_rejected(container, table, count):
    """FFmpeg reserves 40 bytes for each, and this is a file of some kilobytes."""
    video = bytearray(encode_cached(container, "mpeg4"))
    at = video.index(table) + 4 + count
    video[at : at + 4] = (300_000_000).to_bytes(4, "big")
    with pytest.raises(TooLarge, match="samples; at most"):
        decode(bytes(video))


# Incomplete files


def test_a_live_recording_without_a_length_is_rejected(client):
    """If it is cut between two clusters, nothing is left to notice it by."""
    answer = post(client, encode("live", "vp9"))
    assert answer.status_code == 422
    assert "live recording" in answer.json()["detail"]


SHORT_CLUSTERS = {"muxer_options": {"cluster_time_limit": "300"}}


@pytest.mark.parametrize(
    ("container", "codec", "options"),
    [
        *((container, codec, {}) for container, codec in ALL),
        *(("sidx", codec, {}) for codec in CODECS["fragmented"]),
        *(("mkv", codec, SHORT_CLUSTERS) for codec in ("h264", "av1")),
        *(("webm", codec, SHORT_CLUSTERS) for codec in CODECS["webm"]),
    ],
    ids=str,
)
def test_a_truncated_video_is_rejected(client, container, codec, options):
    """Cut anywhere, and between two fragments or clusters, also if these do not state a length."""
    video = encode(container, codec, **options) if options else encode_cached(container, codec)
    boxes = [at - 4 for at in positions(video, b"moof", b"mfra")]
    clusters = positions(video, b"\x1f\x43\xb6\x75", b"\x1c\x53\xbb\x6b")
    cuts = [len(video) * percent // 100 for percent in (10, 35, 60, 85, 99)]
    for at in [*cuts, len(video) - 1, *boxes[1:], *clusters]:
        check_refused(client, video[:at])
    if container == "webm":
        check_intact(endless(video))
        for at in cuts:
            check_refused(client, endless(video)[:at])


def test_a_file_without_a_fragment_or_its_index_is_rejected(client):
    video = encode_cached("fragmented", "h264")
    first, second, third, _ = (position - 4 for position in positions(video, b"moof"))
    check_refused(client, video[:second] + video[third:])
    check_refused(client, video[:first] + video[second:])
    for container, name in (("mp4", b"moov"), ("fragmented", b"mfra"), ("avi", b"idx1")):
        video = encode_cached(container, "h264")
        [position] = positions(video, name)
        check_refused(client, video[:position] + b"free" + video[position + 4 :])
    video = encode_cached("mkv", "h264")
    position = positions(video, b"\x1c\x53\xbb\x6b")[-1]
    check_refused(client, video[:position] + bytes(len(video) - position))


def test_an_mp4_that_lists_samples_after_its_end_is_rejected(client):
    """The media data of this file extends to its end, wherever that is."""
    video = bytearray(encode_cached("faststart", "h264"))
    [position] = positions(bytes(video), b"mdat")
    video[position - 4 : position] = bytes(4)
    check_intact(bytes(video))
    for percent in (40, 60, 90):
        check_refused(client, bytes(video[: len(video) * percent // 100]))


# Damaged files


@pytest.mark.slow
@pytest.mark.parametrize(
    ("container", "codec"), [each for each in ALL if each[1] not in {"vp8", "mjpeg"}]
)
def test_zeroed_ranges_are_rejected_or_harmless(container, codec):
    video, choice = encode_cached(container, codec), random.Random(18)
    intact, wrong = decode(video), 0
    for _ in range(15):
        start = choice.randrange(len(video) // 8, len(video) * 7 // 8)
        length = choice.choice((16, 100, 1000))
        damaged = video[:start] + bytes(length) + video[start + length :]
        wrong += judge_sees_other_frames(damaged, intact)
    # In avi, start codes separate the parts of H.264 frames, so zeros are not forbidden.
    assert wrong <= (3 if container == "avi" else 1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("container", "codec", "most_wrong"),
    [
        *table("flipped_bits"),
        *(("mkv", codec, 0) for codec in CODECS["mkv"]),  # ffmpeg writes a CRC-32 per cluster
    ],
)
def test_flipped_bits_are_rejected_or_harmless(container, codec, most_wrong):
    """These are the most that may be accepted; only a SHA-256 finds those that decode cleanly."""
    video = encode_cached(container, codec) if codec else LONG_CLIP.read_bytes()
    intact = decode(video)
    assert sum(judge_sees_other_frames(each, intact) for each in flips(video)) <= most_wrong


@pytest.mark.parametrize("name", WRITERS)
def test_at_most_a_tenth_of_the_changed_bytes_of_a_header_change_the_frames_unnoticed(name):
    """One in 50 changes is tried, of the lowest bit of a byte or of all."""
    video = (DATA / "mp4" / name).read_bytes()
    places = [(8 * at, mask) for at in headers(video, 0, len(video)) for mask in (1, 0xFF)][::50]
    intact = decode(video)
    wrong = sum(judge_sees_other_frames(flipped(video, *each), intact) for each in places)
    assert wrong <= len(places) / 10


@pytest.mark.slow
def test_hevc_with_hashes_is_verified():
    """Encoders of H.265 can write a hash of each frame."""
    video = encode("mp4", "hevc", codec_options={"x265-params": "log-level=none:hash=1"})
    intact = decode(video)
    assert not any(judge_sees_other_frames(each, intact) for each in flips(video, 30))


# Checksums


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def images(count: int = 3) -> list[bytes]:
    return [cv2.imencode(".png", scene(i, 32, 24))[1].tobytes() for i in range(count)]


@pytest.mark.parametrize("container", ["mp4", "avi"])
def test_metadata_in_another_encoding_is_ignored(client, container):
    """E.g. a title in Latin-1, for which PyAV raises UnicodeDecodeError by default."""
    video = encode_cached(container, "h264")
    assert b"Lavf" in video
    answer = post(client, video.replace(b"Lavf", b"L\xe4vf"))
    assert answer.status_code == 200, answer.text


def swapped(video: bytes, first: slice, second: slice) -> bytes:
    """Exchange two parts of a file, the first of which is earlier."""
    between = video[first.stop : second.start]
    return b"".join(
        (video[: first.start], video[second], between, video[first], video[second.stop :])
    )


@pytest.mark.parametrize(
    ("container", "codec"), [each for each in ALL if each[0] in {"fragmented", "webm"}]
)
def test_fragments_and_clusters_in_another_order_are_rejected(client, container, codec):
    video = encode(container, codec, **(SHORT_CLUSTERS if container == "webm" else {}))
    clusters = positions(video, b"\x1f\x43\xb6\x75", b"\x1c\x53\xbb\x6b")[1:]
    times = [slice(at, at + 16) for at in positions(video, b"tfdt")]
    parts = [slice(*each) for each in pairwise(clusters)] if container == "webm" else times
    assert len(parts) >= 3
    for first, second in pairwise(parts):
        check_refused(client, swapped(video, first, second))


@pytest.mark.slow
@pytest.mark.parametrize("container", ["mp4", "faststart"])
def test_flipped_bits_in_the_sizes_of_samples_are_rejected(container):
    """FFmpeg decodes the frames before a size that cannot be, and leaves out the rest."""
    video = encode_cached(container, "av1")
    intact, start = decode(video), video.index(b"stsz") + 16
    for bit in range(0, 8 * 4 * FRAMES, 5):
        assert not judge_sees_other_frames(flipped(video, 8 * start + bit), intact), bit


@pytest.mark.slow
@pytest.mark.parametrize(
    ("container", "codec", "name", "length"),
    [
        ("fragmented", "h264", b"tfhd", 28),
        ("sidx", "h264", b"tfhd", 28),
        ("webm", "vp8", b"\xa3", 6),
        ("webm", "vp9", b"\xa3", 6),
        ("mkv", "h264", b"\xa3", 6),
    ],
)
def test_no_flipped_bit_beside_the_samples_hides_frames(container, codec, name, length):
    """As in the duration of samples of a fragment, and the lacing of a block."""
    video = encode_cached(container, codec)
    for at in positions(video, name)[1::13]:
        for bit in range(8 * length):
            with suppress(RewardFleetError):
                assert decode(flipped(video, 8 * at + bit)).total == FRAMES, (at, bit)


def test_an_mp4_with_a_damaged_duration_of_samples_is_rejected(client):
    """Its edit list would then end within the first frame."""
    video = encode_cached("mp4", "vp9")
    check_refused(client, flipped(video, 8 * (video.index(b"stts") + 4 + 4 + 4 + 4) + 6))


def test_every_flipped_bit_is_found_by_the_checksum(client):
    video = encode_cached("mp4", "hevc")
    assert post(client, video, sha256=digest(video)).status_code == 200
    assert post(client, video, sha256=digest(video).upper()).json()["cached"] is True
    for damaged in flips(video, 10):
        answer = post(client, damaged, sha256=digest(video))
        assert answer.status_code == 422
        assert answer.json()["detail"]


def test_content_with_another_checksum_is_rejected_from_any_source(tmp_path):
    (tmp_path / "clip.mp4").write_bytes(LONG_CLIP.read_bytes())
    video, frames, judge = LONG_CLIP.read_bytes(), images(), FakeJudge()
    sent = [base64.b64encode(image).decode() for image in frames]
    with served(judge, video_root=[tmp_path]) as client:

        def score(sha256: str, files: object = None, **fields: object) -> httpx.Response:
            body = {"task_text": TASK, "sha256": sha256, **fields}
            return client.post("/score", **{"data" if files else "json": body}, files=files)

        sources = (
            {"video_base64": base64.b64encode(video).decode()},
            {"files": {"video": ("a.mp4", video)}},
            {"video_path": "clip.mp4"},
            {"frames_base64": sent},
        )
        for source in sources * 2:  # nothing is cached
            answer = score(digest(b"other content"), **source)
            assert answer.status_code == 422, answer.text
            assert answer.json()["detail"].startswith("sha256 is not the digest of the content")
        assert not judge.seen
        for source in sources:
            content = b"".join(frames) if "frames_base64" in source else video
            assert score(digest(content), **source).status_code == 200
        assert score(digest(b"".join(frames)), frames_base64=sent[::-1]).status_code == 422
        assert score("0" * 63, frames_base64=sent).status_code == 422


def test_the_client_sends_the_checksum_of_what_it_sends():
    video, frames = LONG_CLIP.read_bytes(), images()
    array = np.stack([scene(index, 32, 24) for index in range(3)])
    for sent, content in ((video, video), (frames, b"".join(frames)), (array, array.tobytes())):
        assert video_request(TASK, sent).sha256 == digest(content)
    assert video_request(TASK, "on/the/server.mp4").sha256 is None


# Images


def decode_image(content: bytes) -> np.ndarray:
    clip = decode_images([content], None, DecodeSpec(1, 200_704))
    return clip.frames[0]


def test_every_flipped_bit_of_a_png_is_rejected():
    content = cv2.imencode(".png", scene(0, 96, 64))[1].tobytes()
    decode_image(content)
    decode_image(content + b"after the end")
    for damaged in flips(content):
        with pytest.raises(InvalidRequest):
            decode_image(damaged)


@pytest.mark.parametrize("kind", [".png", ".jpg"])
def test_a_truncated_image_is_rejected(kind):
    content = cv2.imencode(kind, scene(0, 96, 64))[1].tobytes()
    for percent in (20, 40, 60, 80, 95):
        with pytest.raises(InvalidRequest, match=r"frames_base64\[0\]"):
            decode_image(content[: len(content) * percent // 100])
    with pytest.raises(InvalidRequest, match="damaged or truncated"):
        decode_image(content[:-12])


def test_a_jpeg_with_damaged_scan_data_is_rejected():
    content = cv2.imencode(".jpg", scene(0, 96, 64))[1].tobytes()
    middle = len(content) * 3 // 4
    for damaged in (
        content[:middle] + b"\xff\xd9" + content[middle + 2 :],  # the scan ends early
        content[:middle] + bytes(40) + content[middle + 40 :],
        content[:middle] + content[middle + 100 :],
    ):
        with pytest.raises(InvalidRequest, match=r"frames_base64\[0\] is a damaged or truncated"):
            decode_image(damaged)


def test_jpeg_images_have_the_pixels_that_opencv_decodes():
    full_color = [cv2.IMWRITE_JPEG_SAMPLING_FACTOR, cv2.IMWRITE_JPEG_SAMPLING_FACTOR_444]
    for options in ([], [cv2.IMWRITE_JPEG_PROGRESSIVE, 1], full_color):
        content = cv2.imencode(".jpg", scene(0, 97, 65), options)[1]
        expected = cv2.imdecode(content, cv2.IMREAD_COLOR_RGB)
        assert np.array_equal(decode_image(content.tobytes()), expected)


# Both FFmpegs in one process, and speed


@pytest.mark.slow
def test_pyav_and_opencv_work_in_one_process():
    """Both wheels contain FFmpeg's libraries."""
    videos = [encode_cached("mp4", codec) for codec in CODECS["mp4"]]

    def work(index: int) -> int:
        clip = decode(videos[index % len(videos)])
        with as_mp4(clip) as path:  # OpenCV encodes
            capture = cv2.VideoCapture(str(path), cv2.CAP_FFMPEG)
            count = 0
            while capture.grab():
                count += 1
            capture.release()
            return count + decode(Path(path).read_bytes()).total

    with ThreadPoolExecutor(8) as threads:
        assert set(threads.map(work, range(24))) == {2 * FRAMES}


@pytest.mark.serial
@pytest.mark.slow
def test_decoding_takes_hardly_longer_than_opencv():
    """OpenCV hides errors. Both are measured in turns; the time is that of the processor.

    It is up to 1.25 times that of OpenCV on the machines of CI, and up to 1.33 on slower ones.
    """

    def opencv() -> None:
        options = [cv2.CAP_PROP_N_THREADS, 1]
        capture = cv2.VideoCapture(str(LONG_CLIP), cv2.CAP_FFMPEG, options)
        for index in range(308):
            capture.grab()
            if index % 20 == 0:
                cv2.cvtColor(capture.retrieve()[1], cv2.COLOR_BGR2RGB)
        capture.release()

    def service() -> None:
        with LONG_CLIP.open("rb") as file:
            check_container(file.fileno(), "clip", max_bytes=2**30)
        assert decode_video(str(LONG_CLIP), DecodeSpec(16, 200_704)).total == 308

    def ratio() -> float:
        seconds: tuple[list[float], list[float]] = ([], [])
        for _ in range(20):
            for run, measured in zip((opencv, service), seconds, strict=True):
                started = time.thread_time()
                run()
                measured.append(time.thread_time() - started)
        return statistics.median(seconds[1]) / statistics.median(seconds[0])

    # Up to three times, as caches that are shared with other work distort processor time as well.
    assert any(ratio() <= 1.4 for _ in range(3))
