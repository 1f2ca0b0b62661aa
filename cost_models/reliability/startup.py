"""Start-up of a job: the time to make all communication groups, from key-value stores and barriers.

Every process makes every group in the same order, and after each one meets all others at a barrier in a key-value
store: it adds one to a counter and reads the counter until everybody has arrived. The store serves one request at
a time, so a barrier of n processes costs 2 n service times; groups grow with n too, which makes O(n^2) requests.
"""

from __future__ import annotations

from typing import Literal

StartupMethod = Literal["tcp-store", "redis", "ordered"]

# Per process: add 1, then read; PyTorch _store_based_barrier. FIFO: reads follow all adds
REQUESTS_PER_BARRIER = 2
REQUESTS_PER_MEMBER = 2  # per process and kind of group: wait for and get the NCCL id; ProcessGroupNCCL
# Fitted on 1,047 s at 2,048 GPUs (MegaScale section 3.5); single-threaded, blocking
TCP_STORE_REQUEST_S = 214.6e-6
REDIS_REQUEST_S = 74.0e-6  # fitted on 361 s at 2,048 GPUs (the same section); non-blocking, asynchronous


KINDS_OF_GROUPS = 7
"""Partitions of the processes into groups (tensor, pipeline, data, ...); a process is in one of each."""


def group_count(gpus: int, tp: int, pp: int) -> int:
    """Groups that Megatron-LM makes, each by a call.

        data (NCCL and Gloo) 2 tp pp | model n / (tp pp) | tensor n / tp | pipeline, embedding, positions 3 n / pp

    Ignored: context- and expert-parallel groups.
    Source: Megatron-LM megatron/core/parallel_state.py, initialize_model_parallel (mid 2023).
    """
    return 2 * tp * pp + gpus // (tp * pp) + gpus // tp + 3 * (gpus // pp)


def store_requests(gpus: int, tp: int, pp: int, method: StartupMethod) -> int:
    """Requests that the store serves, one after the other.

        tcp-store, redis: n (2 groups + 2 kinds)     a global barrier after every group: O(n^2)
        ordered:          n (2 kinds + 2 kinds)      disjoint groups of a kind at once, one barrier a kind: O(n)

    Source: MegaScale, arXiv 2402.15627 section 3.5.
    """
    barriers = KINDS_OF_GROUPS if method == "ordered" else group_count(gpus, tp, pp)
    return gpus * (REQUESTS_PER_BARRIER * barriers + REQUESTS_PER_MEMBER * KINDS_OF_GROUPS)


def made_in_a_step_s(calls: int, gpus: int) -> float:
    """Time for so many groups that are made while the job runs, one after the other.

        t = calls x 2 n x service time of the store

    Counted: as in group_initialisation_s: every process makes every group, and meets all others at a barrier after it.
    Ignored: NCCL's own connection set-up, release of groups.
    Source: MegaScale, arXiv 2402.15627 section 3.5 (Redis).
    """
    return calls * REQUESTS_PER_BARRIER * gpus * REDIS_REQUEST_S


def group_initialisation_s(gpus: int, tp: int, pp: int, method: StartupMethod) -> float:
    """Time until all communication groups stand.

        t = requests x service time of the store

    `redis` changes the store; `ordered` keeps Redis and orders the groups so that few global barriers remain.
    Counted: barriers and the exchange of NCCL ids, served one by one.
    Ignored: NCCL's own connection set-up (lazy), skew between processes, loading of libraries (part of scheduling).
    Source: MegaScale, arXiv 2402.15627 section 3.5. The two service times are fitted on its first two figures at
        2,048 GPUs with tp = pp = 8 (assumed); the ordered times (< 5 s, < 30 s beyond 10,000) are predictions.
    """
    request_s = TCP_STORE_REQUEST_S if method == "tcp-store" else REDIS_REQUEST_S
    return request_s * store_requests(gpus, tp, pp, method)
