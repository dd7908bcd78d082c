"""The text of docs/gradients.md, from the table: ``python -m tilegrad.relax_ext.vjp.documentation > docs/gradients.md``."""

from __future__ import annotations

import sys

from tilegrad.relax_ext.vjp import RULES, WITHOUT, ZERO

_HEAD = """\
# Gradients

Reverse mode on the graph: `relax_ext/gradient.py` walks the bindings from the results back to what is asked for, and
`relax_ext/vjp/` holds one rule per operator. This page is generated from that table by
`python -m tilegrad.relax_ext.vjp.documentation`; a test keeps it current.

## The walk

- Only nodes between the differentiated inputs and the outputs are visited. Integers, booleans and operators whose
  derivative is zero wherever it exists end a path; an input that no output depends on gets `None`, and no zeros are emitted.
- A rule returns one cotangent per argument. Summing over broadcast axes, casting back, accumulating and taking tuples
  apart happen once, in the walk.
- Rules are written in operators that have rules, so `vjp` can be applied to its own result, to any order.
- What a rule computes is emitted only if a requested gradient needs it, and only once. What the forward pass already
  computed is reused, except for arithmetic that is cheaper to do again inside a fused kernel than to keep.
- Transposes stay `permute_dims` beside `matmul`, where lowering folds them into the kernel; the gradient of a transposed
  weight comes out in the weight's own layout.
- `region.checkpoint` recomputes a region from `tilegrad.barrier` of its inputs and of a cotangent: no pass can merge the
  copy with the original or move it before the backward pass. `region.custom_vjp` takes the user's own rule for a region,
  which may call any kernel (docs/frontend.md has one with a schedule template of its own). Regions nest; a rule inside a
  recomputed region holds there too. `tilegrad.stop_gradient` ends a path.
- `gradient_pass.Gradient` is the walk as an ordinary pass for any IRModule.
- `Graph.saved` lists, per node, the bytes that the backward pass keeps from the forward pass, who reads them and the node's
  source line; `tilegrad explain` prints it.

## Conventions

PyTorch's values at kinks, ties and poles: relu'(0) = 0, |0|' = 0; `maximum` and `minimum` give half to each at a tie; `max`
and `min` share equally among the elements that attain the extreme; max pooling goes to the first maximum of a window;
`clip` passes the gradient at its bounds; std' = 0 where the deviation is 0; `prod` and `cumprod` are exact at zeros.

Comparisons, `maximum`, `minimum`, `clip`, `max`, `min`, max pooling, `argmax` and `argmin` see NaN as PyTorch's do, forward
and backward: kernels keep what IEEE 754 says of NaN, infinities and rounding (`schedules/floats.py`).

Operators without a rule on a differentiated path are listed in one error, all of them, with their source lines. To add one:

```python
from tilegrad.relax_ext.vjp import F, Node, Value, vjp_rule

@vjp_rule("relax.tanh")
def tanh(n: Node, g: Value):
    \"\"\"z = tanh x: g (1 - z^2).\"\"\"
    return g * (1.0 - n.out * n.out)
```

`@composition` instead of `@vjp_rule` takes a function that writes the operator in others; it is differentiated as that.
"""


def page() -> str:
    """The whole page."""
    parts = [_HEAD, f"## Rules\n\n{len(RULES)} operators. `c` marks those differentiated as a composition.\n"]
    for family in dict.fromkeys(r.family for r in RULES.values()):
        rows = [r for r in RULES.values() if r.family == family]
        parts.append(f"### {family.replace('_', ' ')} (`relax_ext/vjp/{family}.py`)\n")
        parts.append("| operator | | cotangents |\n|---|---|---|")
        parts += [f"| `{r.op}` | {'c' if r.kind == 'composition' else ''} | {_cell(r.doc)} |" for r in rows]
        parts[-1] += "\n"
    parts.append("## No gradient: the derivative is zero wherever it exists\n\n" + _reasons(ZERO))
    parts.append("## No rule\n\n" + _reasons(WITHOUT))
    return "\n".join(parts).rstrip() + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _reasons(table: dict[str, str]) -> str:
    groups: dict[str, list[str]] = {}
    for op, reason in table.items():
        groups.setdefault(reason, []).append(f"`{op}`")
    return "\n".join(f"- {reason}: {', '.join(ops)}" for reason, ops in groups.items()) + "\n"


if __name__ == "__main__":
    sys.stdout.write(page())
