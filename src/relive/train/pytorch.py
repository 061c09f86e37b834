"""PyTorch, for the modules of this room that need it; without it, one sentence that says how to get it."""

from relive.errors import ReliveError


class MissingTorchError(ReliveError, ImportError):
    """PyTorch is not installed."""


try:
    import torch as torch
except ImportError as error:
    raise MissingTorchError(
        "Training needs PyTorch: pip install 'relive[train]'. For the CPU build, which is far smaller, install torch "
        "first as https://pytorch.org/get-started/locally says."
    ) from error
