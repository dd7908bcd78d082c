"""All array functions under one name."""

from tilegrad.frontend.apply import as_tensor as as_tensor
from tilegrad.frontend.elementwise import *  # noqa: F403
from tilegrad.frontend.movement import *  # noqa: F403
from tilegrad.frontend.reduction import *  # noqa: F403
