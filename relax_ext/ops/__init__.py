"""Operators that Relax lacks. Each function makes a Relax call; ``register.REGISTERED`` lists them."""

from tilegrad.relax_ext.ops import legalize, order  # noqa: F401  (importing them registers lowerings)
from tilegrad.relax_ext.ops.attention import attention, attention_backward
from tilegrad.relax_ext.ops.convolution import conv_by_data, conv_by_weight
from tilegrad.relax_ext.ops.identity import barrier, stop_gradient
from tilegrad.relax_ext.ops.indexing import gather_elements_backward, gather_nd_backward, take_backward
from tilegrad.relax_ext.ops.interpolation import interpolate
from tilegrad.relax_ext.ops.number import euclid, reinterpret
from tilegrad.relax_ext.ops.pooling import (
    adaptive_avg_pool_backward,
    avg_pool,
    avg_pool_backward,
    max_pool_index,
    window_gather,
    window_scatter,
)
from tilegrad.relax_ext.ops.random import dropout, random_key, random_uniform
from tilegrad.relax_ext.ops.register import REGISTERED, register
from tilegrad.relax_ext.ops.reshape import reshape

__all__ = [
    "REGISTERED",
    "adaptive_avg_pool_backward",
    "attention",
    "attention_backward",
    "avg_pool",
    "avg_pool_backward",
    "barrier",
    "conv_by_data",
    "conv_by_weight",
    "dropout",
    "euclid",
    "gather_elements_backward",
    "gather_nd_backward",
    "interpolate",
    "max_pool_index",
    "random_key",
    "random_uniform",
    "register",
    "reinterpret",
    "reshape",
    "stop_gradient",
    "take_backward",
    "window_gather",
    "window_scatter",
]
