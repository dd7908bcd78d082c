"""PyTorch tensors <-> NumPy arrays, sharing memory where the layout allows. bfloat16 travels as its bits in uint16."""

from __future__ import annotations

import numpy as np
import torch


def to_numpy(tensor: torch.Tensor) -> np.ndarray:
    """The tensor's own memory when it is contiguous and on the CPU, else a contiguous copy."""
    tensor = tensor.detach().resolve_neg().resolve_conj().cpu().contiguous()
    return (tensor.view(torch.uint16) if tensor.dtype == torch.bfloat16 else tensor).numpy()


def to_torch(array: np.ndarray, dtype: str) -> torch.Tensor:
    """A tensor over the array's memory."""
    tensor = torch.from_numpy(array if array.flags.writeable else array.copy())
    return tensor.view(torch.bfloat16) if dtype == "bfloat16" else tensor
