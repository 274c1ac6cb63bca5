"""zen_jax: sparse gradient synchronisation for JAX with near-optimal communication time."""

from zen_jax import embedding as embedding
from zen_jax import hashing as hashing
from zen_jax import kernels as kernels
from zen_jax import schemes as schemes
from zen_jax._native import backend_info as backend_info
from zen_jax.agreement import check_agreement as check_agreement
from zen_jax.collective import all_reduce as all_reduce
from zen_jax.info import Info as Info
from zen_jax.info import total as total
from zen_jax.planning.autotune import Autotuned as Autotuned
from zen_jax.planning.autotune import autotune as autotune
from zen_jax.planning.calibrate import calibrate as calibrate
from zen_jax.planning.cluster import Cluster as Cluster
from zen_jax.planning.cluster import KernelCost as KernelCost
from zen_jax.planning.cluster import Link as Link
from zen_jax.planning.estimate import Estimate as Estimate
from zen_jax.planning.estimate import estimate as estimate
from zen_jax.planning.plan import LeafPlan as LeafPlan
from zen_jax.planning.plan import Plan as Plan
from zen_jax.planning.plan import plan as plan
from zen_jax.planning.profile import profile as profile
from zen_jax.planning.profiler import Profiler as Profiler
from zen_jax.planning.simulate import Simulation as Simulation
from zen_jax.planning.simulate import simulate as simulate
from zen_jax.planning.sparsity import LeafProfile as LeafProfile
from zen_jax.planning.sparsity import SparsityProfile as SparsityProfile
from zen_jax.planning.sparsity import UnitProfile as UnitProfile
from zen_jax.row_sparse import RowSparseGradient as RowSparseGradient
from zen_jax.sparse import SparseGradient as SparseGradient
from zen_jax.training import value_and_grad as value_and_grad
from zen_jax.transforms.dgc import DgcState as DgcState
from zen_jax.transforms.dgc import dgc as dgc
from zen_jax.transforms.dgc import warmup_density as warmup_density
from zen_jax.transforms.random_k import RandomKState as RandomKState
from zen_jax.transforms.random_k import random_k as random_k
from zen_jax.transforms.synchronize import SynchronizeState as SynchronizeState
from zen_jax.transforms.synchronize import synchronize as synchronize
from zen_jax.transforms.threshold import ThresholdState as ThresholdState
from zen_jax.transforms.threshold import threshold as threshold
from zen_jax.transforms.top_k import TopKState as TopKState
from zen_jax.transforms.top_k import top_k as top_k

__version__ = "0.1.0"
