"""Types shared by annotations."""

from collections.abc import Hashable
from typing import Any, TypeAlias

import jax
import numpy as np

Array: TypeAlias = jax.Array
ArrayLike: TypeAlias = jax.Array | np.ndarray | int
AxisName: TypeAlias = Hashable | tuple[Hashable, ...]
PyTree: TypeAlias = Any
Capacity: TypeAlias = int | tuple[int | None, ...] | None
Unit: TypeAlias = str | int
