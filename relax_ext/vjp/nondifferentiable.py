"""Operators without a rule, and why: zero derivative, or not a function that can be differentiated here."""

from __future__ import annotations

from tilegrad.relax_ext.vjp.table import vjp_rule, without_rule, zero_derivative
from tilegrad.relax_ext.vjp.values import Node, Value


def _relax(names: str, prefix: str = "relax.") -> list[str]:
    return [prefix + name for name in names.split()]


zero_derivative("constant between jumps", *_relax("ceil floor round trunc sign floor_divide"))
zero_derivative(
    "boolean result",
    *_relax("equal not_equal less less_equal greater greater_equal logical_and logical_or logical_xor logical_not"),
    *_relax("isfinite isinf isnan"),
)
zero_derivative(
    "integer result",
    *_relax("argmax argmin argsort bucketize bitwise_and bitwise_or bitwise_xor bitwise_not left_shift right_shift nonzero"),
    *_relax("multinomial_from_uniform size shape_of shape_to_tensor tensor_to_shape quantize"),
    *_relax("euclid max_pool_index random_key", "tilegrad."),
)
zero_derivative(
    "made from no float tensor",
    *_relax("arange eye eye_like full_like zeros zeros_like ones ones_like hamming_window one_hot"),
    "tilegrad.random_uniform",
)
zero_derivative("the bits of a number", "tilegrad.reinterpret")
zero_derivative("a constant by definition", "tilegrad.stop_gradient", "relax.grad.no_grad")

without_rule("a kernel: wrap it in custom_vjp", *_relax("call_tir call_tir_with_grad call_tir_inplace"))
without_rule(
    "foreign code: wrap it in custom_vjp",
    *_relax("call_dps_packed call_inplace_packed call_pure_packed call_py_func call_builtin_with_ctx"),
    *_relax("invoke_closure invoke_pure_closure make_closure"),
)
without_rule("the shape of the result depends on values", *_relax("dynamic_strided_slice unique"))
without_rule(
    "discrete selection of boxes",
    *_relax("all_class_non_max_suppression get_valid_counts non_max_suppression", "relax.vision."),
)
without_rule("upstream has no lowering for it", "relax.nn.attention_var_len")
without_rule(
    "made by lowering, after differentiation",
    *_relax("builtin.alloc_tensor builtin.stop_lift_params memory.alloc_storage memory.alloc_tensor memory.ensure_zero_offset"),
    *_relax("memory.kill_storage memory.kill_tensor memory.view wrap_param"),
    *_relax("alloc_storage alloc_tensor call_tir_dyn kill_object", "relax.vm."),
)
without_rule(
    "reads a tensor's description, not its values",
    *_relax("byte_offset dtype_bits dtype_code dtype_lanes elem_offset ndim shape_i stride_i", "relax.inspect.tensor_"),
)
without_rule("no value to differentiate", *_relax("assert_op print null_value"))
without_rule(
    "spreads work over several devices",
    *_relax("to_vdevice hint_on_device"),
    *_relax("allgather allreduce broadcast_from_worker0 scatter_from_worker0", "relax.ccl."),
    *_relax("annotate_sharding call_tir_local_view redistribute redistribute_replica_to_shard", "relax.dist."),
)


@vjp_rule("relax.full")
def full(n: Node, g: Value):
    """z = one value everywhere: the sum of g (by the walker)."""
    return None, g


@vjp_rule("tilegrad.barrier")
def barrier(n: Node, g: Value):
    """z = x, behind its other arguments: g."""
    return g


@vjp_rule("relax.grad.start_checkpoint", "relax.grad.end_checkpoint")
def identity(n: Node, g: Value):
    """z = x: g."""
    return g
