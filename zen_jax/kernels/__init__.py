"""The kernels: each a typed function with CUDA, CPU and pure-JAX lowerings.

`aggregate_for_others`, `place_own`, `send_drawn`, `send_reaching` and `unique_ids` have no CUDA lowering of their own.
`aggregate_encode` is two kernels in a row in pure JAX, one elsewhere.

The lowerings agree bit for bit, except for sums of subnormals, which on a CPU pure JAX and error feedback flush to
zero, the payloads of NaNs in sums and in bfloat16, and which index wins a slot of `hierarchical_hash`.
"""

from zen_jax.kernels.aggregate import aggregate as aggregate
from zen_jax.kernels.aggregate_encode import aggregate_encode as aggregate_encode
from zen_jax.kernels.aggregate_for_others import aggregate_for_others as aggregate_for_others
from zen_jax.kernels.hash_bitmap_decode import hash_bitmap_decode as hash_bitmap_decode
from zen_jax.kernels.hash_bitmap_encode import hash_bitmap_encode as hash_bitmap_encode
from zen_jax.kernels.hierarchical_hash import hierarchical_hash as hierarchical_hash
from zen_jax.kernels.partition import nonzero_units as nonzero_units
from zen_jax.kernels.partition import partition as partition
from zen_jax.kernels.partition_coo import partition_coo as partition_coo
from zen_jax.kernels.place_own import place_own as place_own
from zen_jax.kernels.send_drawn import send_drawn as send_drawn
from zen_jax.kernels.send_largest import list_largest as list_largest
from zen_jax.kernels.send_largest import send_largest as send_largest
from zen_jax.kernels.send_reaching import send_reaching as send_reaching
from zen_jax.kernels.unique_ids import unique_ids as unique_ids
