"""A tensor without PyTorch."""

import numpy as np


class Tensor:
    def __init__(self, values: np.ndarray) -> None:
        self.values, self.shape, self.dtype = values, values.shape, f"torch.{values.dtype}"

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, index):
        return Tensor(self.values[index])

    def numpy(self) -> np.ndarray:
        return self.values

    def _same(self):
        return self

    detach = cpu = float = _same
