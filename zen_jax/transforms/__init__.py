"""Optax gradient transformations."""

from zen_jax.transforms.dgc import dgc as dgc
from zen_jax.transforms.dgc import warmup_density as warmup_density
from zen_jax.transforms.random_k import random_k as random_k
from zen_jax.transforms.synchronize import synchronize as synchronize
from zen_jax.transforms.threshold import threshold as threshold
from zen_jax.transforms.top_k import top_k as top_k
