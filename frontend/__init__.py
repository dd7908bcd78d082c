"""What a user writes or brings: Tensors, layers, optimizers, transforms, compiled functions, importers."""

from tilegrad.frontend import tensor as tensor  # every array function makes Tensors
