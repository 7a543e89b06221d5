"""Make the published torchvision, which is built for CUDA, importable with a CPU build of torch.

`make install-engines` copies it into the environment as `_tvstub.py`, with a line in a .pth file so
that it runs in every process. It declares two operators before torchvision is imported. The
compiled operators stay missing; the transforms are plain torch and work.
"""

import contextlib
import sys


class _Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "torchvision":
            sys.meta_path.remove(self)
            import torch

            if not torch.version.cuda:
                boxes = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
                for operator in ("nms", "qnms"):
                    with contextlib.suppress(RuntimeError):  # declared already
                        torch.library.define(f"torchvision::{operator}", boxes)


sys.meta_path.insert(0, _Finder())
