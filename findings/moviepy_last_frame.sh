#!/usr/bin/env bash
# Version: moviepy 2.2.1, imageio-ffmpeg 0.8.1.
# Guess: a clip of 10 frames at 10 frames per second is written as 10 frames, and an MP4 file of
# 31 frames at 30 is read as 31.
# Seen: 10 frames are written as 9, and 31 are read as 30. Reading takes the duration from text
# with two decimals and multiplies it by the rate; writing steps through times in floats. The last
# frame is the one that is lost. At 30 frames per second, reading cuts every third length: 28, 31,
# 34.
# Why it matters: the last frame of a rollout is often the only one that shows success.
# Instead: write and read with PyAV, and compare frame counts; or repeat the last frame once.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install -q 'moviepy==2.2.1' 'imageio-ffmpeg==0.8.1' 'av==18.1.0' 'numpy==2.4.6'

venv/bin/python - <<'PYTHON'
import av
import numpy
from moviepy import ImageSequenceClip, VideoFileClip


def frames(count):
    return [numpy.full((64, 64, 3), 4 * index, numpy.uint8) for index in range(count)]


def write(count, rate):
    with av.open("clip.mp4", "w") as file:
        stream = file.add_stream("libx264", rate=rate)
        stream.width, stream.height, stream.pix_fmt = 64, 64, "yuv420p"
        for each in [*map(av.VideoFrame.from_ndarray, frames(count)), None]:
            file.mux(stream.encode(each))


def decoded(path):
    with av.open(path) as file:
        return sum(1 for _ in file.decode(video=0))


ImageSequenceClip(frames(10), fps=10).write_videofile("written.mp4", logger=None)
written = decoded("written.mp4")
print("10 frames, written:", written)
read = {}
for count in range(28, 35):
    write(count, 30)
    assert decoded("clip.mp4") == count
    with VideoFileClip("clip.mp4") as clip:
        read[count] = sum(1 for _ in clip.iter_frames())
short = [count for count in read if read[count] == count - 1]
print("frames in a file -> frames read:", {count: read[count] for count in (30, 31, 32)})
print("lengths of which one frame is lost:", short)

assert written == 9, "all frames are written now"
assert read[31] == 30 and short == [28, 31, 34], "all frames are read now"
PYTHON
