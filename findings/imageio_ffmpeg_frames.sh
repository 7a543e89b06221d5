#!/usr/bin/env bash
# Version: imageio 2.38.1, imageio-ffmpeg 0.8.1, PyAV 18.1.0.
# Guess: the plugins FFMPEG and pyav of imageio read the same frames of a file.
# Seen: FFMPEG reads a file at a constant rate, so frames are repeated where the recorder was
# slow. Of 60 frames, of which the last 30 are ten times as far apart, it gives 330, and pyav
# gives 60. Nothing warns, and which plugin runs depends on what is installed.
# Why it matters: frame indices no longer match actions, and sampling N frames evenly shows the
# slow part of the rollout only.
# Instead: name the plugin, plugin='pyav', and compare the count with the number of actions.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install -q 'imageio==2.38.1' 'imageio-ffmpeg==0.8.1' 'av==18.1.0' 'numpy==2.4.6'

venv/bin/python - <<'PYTHON'
from fractions import Fraction

import av
import imageio.v3
import numpy

with av.open("rollout.mp4", "w") as file:
    stream = file.add_stream("libx264", rate=30)
    stream.width, stream.height, stream.pix_fmt = 64, 64, "yuv420p"
    for index in range(60):
        frame = av.VideoFrame.from_ndarray(numpy.full((64, 64, 3), 4 * index, numpy.uint8))
        frame.pts = index if index < 30 else 30 + 10 * (index - 30)
        frame.time_base = Fraction(1, 30)
        file.mux(stream.encode(frame))
    file.mux(stream.encode(None))

counts = {name: len(imageio.v3.imread("rollout.mp4", plugin=name)) for name in ("pyav", "FFMPEG")}
print("frames read of 60:", counts)
assert counts["pyav"] == 60
assert counts["FFMPEG"] == 330, "the plugins agree more now"
PYTHON
