"""Vector-Jacobian products: one rule per operator, one file per family of operators, one table."""

from tilegrad.relax_ext.vjp import (  # noqa: F401  (importing a family registers its rules)
    activation,
    attention,
    contraction,
    convolution,
    elementwise,
    image,
    indexing,
    loss,
    lowering,  # noqa: F401, I001  (after the rules it reuses)
    movement,
    nondifferentiable,
    normalisation,
    pooling,
    reduction,
    upstream_gradients,
    vision,
)
from tilegrad.relax_ext.vjp.table import RULES, WITHOUT, ZERO, Rule, composition, vjp_rule, without_rule, zero_derivative
from tilegrad.relax_ext.vjp.values import F, Node, Value

__all__ = ["F", "Node", "RULES", "Rule", "Value", "WITHOUT", "ZERO", "composition", "vjp_rule", "without_rule", "zero_derivative"]
