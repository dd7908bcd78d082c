"""Operators without a rule, and why: zero derivative, or not a function that can be differentiated here."""

from __future__ import annotations

from tilegrad.relax_ext.vjp.table import vjp_rule, without_rule, zero_derivative
from tilegrad.relax_ext.vjp.values import Node, Value

zero_derivative("constant between jumps", *(f"relax.{op}" for op in "ceil floor round trunc sign floor_divide".split()))
zero_derivative(
    "boolean result",
    *(f"relax.{op}" for op in "equal not_equal less less_equal greater greater_equal logical_and logical_or logical_xor "
      "logical_not isfinite isinf isnan".split()),
)  # fmt: skip
zero_derivative(
    "integer result",
    *(f"relax.{op}" for op in "argmax argmin argsort bucketize bitwise_and bitwise_or bitwise_xor bitwise_not left_shift "
      "right_shift nonzero multinomial_from_uniform size shape_of shape_to_tensor tensor_to_shape quantize".split()),
)  # fmt: skip
zero_derivative(
    "made from no float tensor",
    *(f"relax.{op}" for op in "arange eye eye_like full_like zeros zeros_like ones ones_like hamming_window one_hot".split()),
)
zero_derivative("a constant by definition", "tilegrad.stop_gradient", "relax.grad.no_grad")
zero_derivative("integer result", "tilegrad.max_pool_index")


@vjp_rule("relax.full")
def full(n: Node, g: Value):
    """z = one value everywhere: the sum of g (by the walker)."""
    return None, g


@vjp_rule("tilegrad.barrier")
def barrier(n: Node, g: Value):
    """z = x: g."""
    return g


@vjp_rule("relax.grad.start_checkpoint", "relax.grad.end_checkpoint", "relax.to_vdevice", "relax.hint_on_device")
def identity(n: Node, g: Value):
    """z = x: g."""
    return g


without_rule("a kernel: wrap it in custom_vjp", *(f"relax.{op}" for op in "call_tir call_tir_with_grad call_tir_inplace".split()))
without_rule(
    "foreign code: wrap it in custom_vjp",
    *(f"relax.{op}" for op in "call_dps_packed call_inplace_packed call_pure_packed call_py_func call_builtin_with_ctx "
      "invoke_closure invoke_pure_closure make_closure".split()),
)  # fmt: skip
without_rule("the shape of the result depends on values", *(f"relax.{op}" for op in "dynamic_strided_slice unique".split()))
without_rule(
    "discrete selection of boxes",
    *(f"relax.vision.{op}" for op in "all_class_non_max_suppression get_valid_counts non_max_suppression".split()),
)
