"""All array functions under one name, with their arguments checked."""

from tilegrad.frontend.apply import as_tensor as as_tensor
from tilegrad.frontend.arguments import check_all
from tilegrad.frontend.elementwise import *  # noqa: F403
from tilegrad.frontend.movement import *  # noqa: F403
from tilegrad.frontend.reduction import *  # noqa: F403

_FILES = tuple(f"tilegrad.frontend.{name}" for name in ("elementwise", "movement", "reduction"))
check_all(globals(), [name for name, f in globals().items() if getattr(f, "__module__", "") in _FILES])
