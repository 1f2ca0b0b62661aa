"""Settings that change nothing in a setup, because of another one: each by its dotted key, with the reason.

A switch without effect is legal, but whoever set it believes that it does something. Only settings other than the
defaults are looked at: nobody set the others.

A rule is a reason and the keys that it takes the effect from. What is merely hidden (launches behind kernels, loading
behind the step before) is no such rule, since other batches bring it out: `hidden_settings` finds it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from hdpsim.cost_models.layer.attention.ring_attention import CUT_ALONG_TOKENS
from hdpsim.cost_models.layer.recomputation import repeated_share
from hdpsim.cost_models.layout.layout import SWITCHES, Layout
from hdpsim.cost_models.layout.switches import parts_of_text
from hdpsim.cost_models.memory.report import MemoryReport
from hdpsim.cost_models.transformer.layers import kinds_of
from hdpsim.cost_models.transformer.model import Model
from hdpsim.cost_models.transformer.parameters import stage_contents
from hdpsim.errors import InfeasibleError
from hdpsim.simulator.settings import changed_settings, note_on, with_default
from hdpsim.simulator.setup import OF_PAPERS, Setup, StrategyOptions

Rule = tuple[str, str, str]
"""Why some settings change nothing (an empty text: they may), their section and their names."""


def without_effect(
    setup: Setup,
    largest_group: int | None = None,
    report: MemoryReport | None = None,
    *,
    shares_packs: bool = True,
) -> tuple[str, ...]:
    """One sentence for every setting that changes nothing.

    *largest_group* of the plan, whether it *shares_packs* of several sequences among ranks, and its memory *report*,
    where there is a plan, tell more.
    """
    of_setup = (_of_sharding, _of_recomputation, _of_precision, _of_experts, _of_pipeline, _of_host)
    rules = (
        ("" if setup.model.frozen else "adapter_rank is 0", "model", "adapter_targets adapter_dropout"),
        ("" if setup.model.frozen else "adapter_rank is 0", "layout", "adapter_kernels"),
        *(rule for of in of_setup for rule in of(setup)),
        *_of_needs(setup.layout),
        *_of_strategy(setup, largest_group, shares_packs=shares_packs),
        *_of_execution(setup),
        *_of_memory(setup, report),
    )
    changed = changed_settings(setup)
    note_by_key: dict[str, str] = {}
    for why, section, names in rules:
        for key in (f"{section}.{name}" for name in names.split() if why):
            if key in changed:
                note_by_key.setdefault(key, note_on(key, changed[key], f": {why}", setup.set_by_software))
    return tuple(note_by_key.values())


def _of_sharding(setup: Setup) -> Iterator[Rule]:
    layout, ranks = setup.layout, setup.ranks
    sharding = f"sharding is {layout.sharding.kind}"
    alone = "there is one rank" if ranks == 1 else ""
    of_gradients = "gather_overlap gradient_overlap prefetch_gather owner_broadcasts gradient_all_reduce"
    yield (
        alone,
        "layout",
        f"dp_overlap loss_average shard_ranks sum_every_micro_batch {of_gradients}",
    )
    yield alone, "layout", "bucket_parameters gather_lists shard_copies reuse_parameters"
    yield alone, "layout", "cp" if layout.sharding.kind == "zero3" else "cp sharding"
    yield alone, "memory", "bucket_bytes bucket_buffer_bytes gather_buffer_bytes"
    copies_nothing = "" if setup.memory.overheads.update_copy_bytes else "update_copy_bytes is 0"
    on_host = "optimizer states are on the host" if layout.sharding.optimizer_offload else ""
    yield on_host, "memory", "update_copy_bytes"
    yield on_host or copies_nothing, "memory", "update_in_one_piece update_parameters"
    parallel = layout.parallel
    copies = ranks * max(1.0, parallel.tp / parallel.expert_gpus if setup.model.experts else 1.0)
    few = layout.sharding.ranks is not None and layout.sharding.ranks >= copies
    yield f"there are only {ranks} ranks" if few else "", "layout", "shard_ranks"
    yield "the weights are frozen" if setup.model.frozen else "", "layout", "muon"
    early = "" if layout.sharding.kind in ("none", "zero1") else f"{sharding}, neither none nor zero1"
    yield early, "memory", "bucket_bytes second_gradient_bytes"
    yield "" if layout.sharding.kind == "zero1" else f"{sharding}, not zero1", "memory", "gather_buffer_bytes"
    yield (
        "" if layout.sharding.kind == "zero3" else f"{sharding}, not zero3",
        "memory",
        "sixteen_bit_shards gathered_parameters",
    )
    piped = "" if layout.parallel.pp == 1 else "a pipeline has several micro-batches in a step"
    yield piped, "memory", "gradients_freed"


def _of_recomputation(setup: Setup) -> Iterator[Rule]:
    layout, kept = setup.layout, setup.memory.overheads
    mode = f"recompute is {layout.recompute.kind}"
    selective = "" if layout.recompute.kind == "selective" else f"{mode}, not selective"
    yield selective, "memory", "selective_share selective_keeps"
    again = (
        "" if repeated_share(layout, "gemm") else "no product is computed again: attention keeps them anyway"
    )
    yield again, "memory", "keys_values_kept"
    shares = (layout.recompute.products, layout.recompute.attention, layout.recompute.collectives)
    repeats = any((layout.recompute.share, layout.recompute.small_kernels, *shares))
    spared = kept.selective_share not in (None, 1.0) or kept.selective_keeps is not None
    unfused = layout.kernels.attention == "unfused"
    if layout.recompute.kind == "selective" and not (unfused or repeats or spared):
        yield "flash attention keeps no scores, and nothing else is recomputed", "layout", "recompute"
    if layout.recompute.kind == "selective" and unfused:
        yield "selective recomputation repeats unfused attention", "layout", "recompute_attention"
    alike = all(kind.has_experts for kind in kinds_of(setup.model))
    yield "every layer has experts" if alike else "", "layout", "recompute_layers"
    if kept.selective_keeps is not None:
        yield "selective_keeps names what is kept", "memory", "selective_share"
    separate = "" if layout.kernels.fused else "fused_kernels is false, which makes such copies"
    full = f"{mode}: no layer keeps them" if layout.recompute.kind == "full" else ""
    yield separate or full, "memory", "unfused_copies"
    norms = (
        "" if setup.model.norm == "rms" else f"the norms of {setup.model.name} are not by root mean squares"
    )
    yield full or norms, "memory", "norms_in_32_bits"


def _of_precision(setup: Setup) -> Iterator[Rule]:
    layout = setup.layout
    wide = "precision is bf16" if layout.precision.products == "bf16" else ""
    yield wide, "memory", "eight_bit_copy_bytes"
    yield "sharding is zero3" if layout.sharding.kind == "zero3" else "", "memory", "eight_bit_copy_bytes"
    has = {"attention": True, "latent": setup.model.expert_latent, "prediction": setup.model.mtp_layers}
    has_parts = any(has[part] for part in parts_of_text(layout.precision.bf16_parts))
    yield "" if has_parts else f"{setup.model.name} has no such parts", "layout", "bf16_parts"


def _of_experts(setup: Setup) -> Iterator[Rule]:
    model, layout = setup.model, setup.layout
    none = "" if model.experts else f"{model.name} has no experts"
    yield none, "layout", "etp expert_kernels expert_dispatch expert_imbalance expert_routing expert_padding"
    yield none, "layout", "ep_overlap cuda_graph_experts expert_weights"
    same = layout.parallel.etp == max(1, layout.parallel.tp // layout.parallel.ep)
    yield "that is what tp / ep leaves of it anyway" if same else "", "layout", "etp"


def _of_pipeline(setup: Setup) -> Iterator[Rule]:
    model, layout = setup.model, setup.layout
    for name in ("embedding_layers", "stage_balance", "pipeline_layout") if layout.parallel.pp > 1 else ():
        same = _same_stages(model, with_default(setup, f"layout.{name}").layout, layout)
        yield "every stage has the same layers without it" if same else "", "layout", name


def _same_stages(model: Model, plain: Layout, layout: Layout) -> bool:
    try:
        return stage_contents(model, plain) == stage_contents(model, layout)
    except InfeasibleError:  # without it the model cannot be cut at all
        return False


def _of_host(setup: Setup) -> Iterator[Rule]:
    layout = setup.layout
    if layout.host.cuda_graphs and (layout.host.cuda_graph_experts or not setup.model.experts):
        yield "graphs leave no launch of a layer to wait for", "layout", "launch_blocking"
    on_arm = any(kind.cluster.node.arm_host for kind in setup.kinds)
    yield "" if on_arm else "the nodes' processors are not Arm's", "layout", "untuned_for_arm"


def _of_needs(layout: Layout) -> Iterator[Rule]:
    """What the fields of a layout say of themselves."""
    values = layout.switches()
    for name, switch in SWITCHES.items():
        for need in switch.about.needs:
            yield "" if need.met(layout) else need.otherwise.format(**values), "layout", name


def _of_strategy(setup: Setup, largest_group: int | None, *, shares_packs: bool) -> Iterator[Rule]:
    options = setup.strategy
    name = f"strategy is {options.name}"
    if options.name == "static":
        parts = (
            "dynamic_groups selective_offloading offload_ratio communicators balancing remote_data_loading "
        )
        yield f"{name}, they are parts of HDP", "strategy", parts + "estimate_error"
    else:
        yield f"{name}, not static", "strategy", "activation_offload"
        remote = options.remote_data_loading
        why = "" if remote else "remote_data_loading is false: every node reads all at once"
        yield why, "data", "loader asynchronous_loading prefetch_steps"
    apart = "" if options.in_turns else f"{name}, whose ranks run different numbers of micro-batches"
    yield apart, "layout", "loss_average blocking_maxima sum_every_micro_batch"
    alike = "" if len(setup.cluster.kinds) > 1 else "all nodes are of one kind"
    static = f"{name}, which gives all ranks the same" if options.name == "static" else ""
    dynamic = options.dynamic_groups
    mesh = "" if dynamic else "dynamic_groups is false, and a static mesh gives all ranks the same"
    others = options.is_own or options.name in OF_PAPERS
    own = f"{name}, which plans as if all nodes were the slowest" if others else ""
    yield alike or static or own or mesh, "strategy", "speed_aware"
    if not options.is_own:  # which may read any of these
        yield from _of_hdp(options, name)
    at_once = "" if setup.data_pipeline.asynchronous else "asynchronous_loading is false"
    yield at_once, "data", "prefetch_steps"
    alone = "no sequence is shared by several ranks" if largest_group == 1 else ""
    yield alone, "layout", "cp_kind cp_keep_gathered"
    kind = setup.layout.context.kind
    ring = "" if kind == "ring" else f"cp_kind is {kind}, not ring"
    yield alone or ring, "memory", "ring_steps_kept"
    along = kind in CUT_ALONG_TOKENS
    cut = "" if along else f"cp_kind is {kind}, whose ranks attend alike however packs are cut"
    single_sequences = "" if shares_packs else "what ranks share are single sequences"
    usual = replace(setup, layout=setup.layout.changed(cp_sharding=None)).cp_sharding
    same = f"{name}, which does so anyway" if setup.cp_sharding == usual else ""
    yield alone or cut or single_sequences or same, "layout", "cp_sharding"
    yield alone or single_sequences, "layout", "cp_tolerance"


def _of_hdp(options: StrategyOptions, name: str) -> Iterator[Rule]:
    if options.name == "hdp-naive":
        yield f"{name}, which never balances", "strategy", "balancing"
    shaped = "" if options.of_bytescale else f"{name}, which is neither of ByteScale's algorithms"
    yield shaped, "strategy", "fixed_shape"
    fills = options.name in ("hdp-balance", "hdp-opt")  # which also looks at plans of hdp-balance
    if not (fills and options.balancing and options.dynamic_groups):
        why = "balancing or dynamic_groups is false" if fills else name
        yield f"{why}, which fills no buckets", "strategy", "buckets delta mode"
    waits = options.name == "wlb-llm" and options.dynamic_groups
    yield "" if waits else f"{name}, in which no document waits", "strategy", "outlier_queues"
    if options.name in OF_PAPERS and options.dynamic_groups:
        keys = "packing padding balancing selective_offloading offload_ratio"
        yield f"{name}, which packs by work", "strategy", keys
        yield f"{name}, whose groups are all ranks" if options.name == "distca" else "", "layout", "cp"
    elif options.name != "static" and options.dynamic_groups:
        if options.name == "hdp-naive" or not options.balancing:
            yield f"{name}, which packs and groups as sequences need it", "strategy", "packing padding"
        elif options.name == "hdp-balance":
            yield f"{name}, which packs sequences in order of their length", "strategy", "packing padding"
        elif options.packing != "concatenate":
            yield f"{name}, which tries all packers that keep sequences whole", "strategy", "packing"
        yield f"{name}, whose groups are dynamic", "layout", "cp"
        kept = "" if options.selective_offloading else "selective_offloading is false"
        yield "its plans say what is offloaded" if options.is_own else kept, "strategy", "offload_ratio"
    elif options.name != "static":
        yield "dynamic_groups is false", "strategy", "selective_offloading offload_ratio communicators"
        yield "dynamic_groups is false, which leaves HDP the static mesh", "strategy", "name"


def _of_execution(setup: Setup) -> Iterator[Rule]:
    options = setup.execution
    one_node = "all GPUs are on one node" if setup.cluster.nodes == 1 else ""
    yield one_node, "execution", "network link_flaps_per_hour"
    hashed = options.network == "flows" and setup.cluster.fabric.routing == "ecmp"
    drawn = options.draws_steps or options.slow_node_share or options.gpu_spread
    drawn = drawn or (setup.strategy.estimate_error and setup.strategy.name != "static")
    yield "" if drawn or hashed else "no jitter, slow nodes, spread or pauses are drawn", "execution", "seed"
    flaps = "link_flap_mean nccl_timeout nccl_retries adaptive_retransmission"
    for name, value, keys in (
        ("node_jitter", options.node_jitter, "node_jitter_steps"),
        ("slow_period_share", options.slow_period_share, "slow_period_factor slow_period_steps"),
        ("slow_node_share", options.slow_node_share, "slow_node_factor"),
        ("gc_pause", options.gc_pause_s, "gc_period_steps gc_synchronised"),
        ("link_flaps_per_hour", options.link_flaps_per_hour, flaps),
    ):
        yield "" if value else f"{name} is 0", "execution", keys


def _of_memory(setup: Setup, report: MemoryReport | None) -> Iterator[Rule]:
    if report is None:
        return
    yield "the step fits" if report.fits else "", "memory", "must_fit"
    room = report.capacity_bytes - report.total_bytes - report.run_ahead
    yield "there is memory left for it" if room >= 0.0 else "", "memory", "host_run_ahead"
