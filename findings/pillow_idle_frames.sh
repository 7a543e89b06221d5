#!/usr/bin/env bash
# Version: Pillow 11.3.0, imageio 2.38.1.
# Guess: an animation of 10 frames has 10 frames, at least in the lossless formats PNG and WebP.
# Seen: a frame that equals the one before is left out, in GIF, PNG and WebP alike. GIF and PNG
# show the one before for longer. Ten frames, of which five show one image and five another,
# become two; imageio, which writes GIF by Pillow, does the same.
# Why it matters: a robot that waits loses its frames: indices no longer match actions, and a
# judge that sees frames at even steps never sees the wait.
# Instead: write video, or read the duration of each frame and repeat it by that.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install -q 'pillow==11.3.0' 'imageio==2.38.1' 'numpy==2.4.6'

venv/bin/python - <<'PYTHON'
import imageio.v3
import numpy
from PIL import Image, ImageSequence

frames = numpy.zeros((10, 32, 32, 3), numpy.uint8)
frames[5:] = 255
images = [Image.fromarray(each) for each in frames]
counts = {}
for kind in ("gif", "png", "webp"):
    name = f"rollout.{kind}"
    images[0].save(name, save_all=True, append_images=images[1:], duration=100, lossless=True)
    with Image.open(name) as image:
        counts[kind] = image.n_frames
        times = [each.info.get("duration") for each in ImageSequence.Iterator(image)]
    print(f"{kind}: {counts[kind]} frames of 10, milliseconds: {times}")
imageio.v3.imwrite("other.gif", frames, duration=100)
counts["imageio"] = len(imageio.v3.imread("other.gif"))
print("imageio:", counts["imageio"], "frames of 10")

assert counts == {"gif": 2, "png": 2, "webp": 2, "imageio": 2}, "equal frames are kept now"
PYTHON
