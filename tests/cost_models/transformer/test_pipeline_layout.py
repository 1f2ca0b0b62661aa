"""Pipelines that are cut by hand, in Megatron-Core's words."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hdpsim.cost_models.hardware.catalog import model
from hdpsim.cost_models.layout.layout import Layout
from hdpsim.cost_models.layout.pipeline_cut import is_cut, stages_of
from hdpsim.cost_models.layout_checks import check_layout
from hdpsim.cost_models.transformer.layers import LayerKind
from hdpsim.cost_models.transformer.parameters import parameters_per_gpu, stage_contents, stage_layers
from hdpsim.errors import InfeasibleError, UserInputError

DENSE, MOE = LayerKind.DENSE, LayerKind.MOE
DEEPSEEK = model("deepseek-v3")  # 61 layers, the first 3 dense, one of multi-token prediction
LLAMA = model("llama-3.1-405b")  # 126 layers


def test_four_layers_on_every_stage_and_one_with_all_that_ends_the_model() -> None:
    """DeepSeek-V3's public recipe of 16 stages: embedding + 4, 14 x 4, 1 + multi-token prediction + loss."""
    layout = Layout(pp=16, pipeline_layout="Et*4|(t*4|)*14tmL")
    assert stage_layers(DEEPSEEK, layout) == ((4,),) * 15 + ((1,),)
    first, *between, last = (chunks[0] for chunks in stage_contents(DEEPSEEK, layout))
    assert (first.by_kind, first.embedding, first.head) == (((DENSE, 3), (MOE, 1)), True, False)
    assert all((stage.by_kind, stage.mtp_layers) == (((MOE, 4),), 0) for stage in between)
    assert (last.by_kind, last.mtp_layers, last.head, last.embedding) == (((MOE, 1),), 1, True, False)


def test_prediction_and_loss_on_stages_of_their_own() -> None:
    """32 virtual stages on 8 GPUs: E + 3, 29 x 2, the prediction layer alone, the loss alone."""
    layout = Layout(pp=8, vpp=4, schedule="interleaved", pipeline_layout="Et*3|(tt|)*29m|L")
    contents = stage_contents(DEEPSEEK, layout)
    in_turn = [contents[virtual % 8][virtual // 8] for virtual in range(32)]
    assert [chunk.layers for chunk in in_turn] == [3] + [2] * 29 + [0, 0]
    assert [chunk.mtp_layers for chunk in in_turn] == [0] * 30 + [1, 0]
    assert [chunk.head for chunk in in_turn] == [False] * 31 + [True]


def test_a_cut_that_says_nothing_of_prediction_leaves_it_with_the_loss() -> None:
    silent, said = (Layout(pp=4, pipeline_layout=f"Et*16|(t*16|)*2t*13{end}") for end in ("L", "mL"))
    assert stage_contents(DEEPSEEK, silent) == stage_contents(DEEPSEEK, said)


def test_the_first_and_last_stage_of_405_billion_parameters() -> None:
    by_hand = Layout(pp=16, pipeline_layout="Et*7|(t*8|)*14t*7L")
    assert stage_contents(LLAMA, by_hand) == stage_contents(LLAMA, Layout(pp=16))


def test_one_stage_is_not_cut() -> None:
    assert stage_layers(LLAMA, Layout(pipeline_layout="Et|tL")) == ((126,),)


@pytest.mark.parametrize(
    "text", ["", "tL", "Et", "Et|tE|tL", "Etm|tL", "EtLx", "E(t|", "Et*L", "Et*99999L", "(Et|)*2L", "et|l"]
)
def test_what_is_no_cut_is_refused(text: str) -> None:
    assert not is_cut(text)
    with pytest.raises(UserInputError, match="Megatron-Core writes it"):
        Layout(pp=2, pipeline_layout=text)


def test_a_cut_is_not_written_out_for_ever() -> None:
    assert not is_cut("E" + "(t*9999|)*9999" * 2 + "L")


def test_a_long_text_that_is_no_cut_is_refused_at_once() -> None:
    """A hundred thousand stages and a wrong letter: were reading to take the square of that, this test would show."""
    assert not is_cut("E(||||||||||)*9999X")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("Et*61L", "has 1 stage, pp x vpp are 2"),
        ("Et|L", "has 1 layer (t), deepseek-v3 has 61"),
        ("Et*31|t*31L", "has 62 layers (t), deepseek-v3 has 61"),
        ("Et*31|t*30mmL", "has 2 layers of multi-token prediction (m), deepseek-v3 has 1"),
    ],
)
def test_a_cut_of_another_model_says_what_is_wrong(text: str, reason: str) -> None:
    with pytest.raises(InfeasibleError) as caught:
        check_layout(DEEPSEEK, Layout(pp=2, pipeline_layout=text))
    assert reason in str(caught.value)


@given(st.lists(st.integers(0, 9), min_size=2, max_size=12))
def test_every_way_of_writing_a_cut_is_read(layers: list[int]) -> None:
    plain = "E" + "|".join("t" * count for count in layers) + "L"
    short = "E " + " | ".join(f"t*{count}" if count else "" for count in layers) + "m*2, L"
    assert [stage.layers for stage in stages_of(plain)] == layers
    assert [stage.layers for stage in stages_of(short)] == layers
    assert stages_of(short)[-1].mtp_layers == 2
    assert stages_of(plain)[0].embedding
    assert stages_of(plain)[-1].head


@given(st.integers(2, 8), st.data())
def test_no_parameter_is_lost_wherever_it_sits(pp: int, data: st.DataObject) -> None:
    """Between layers of one kind a cut moves parameters and neither makes nor loses any."""
    ends = sorted(data.draw(st.lists(st.integers(0, 126), min_size=pp - 1, max_size=pp - 1)))
    layers = [last - first for first, last in zip([0, *ends], [*ends, 126], strict=True)]
    cut = "E" + "|".join("t" * count for count in layers) + "L"

    def total(layout: Layout) -> int:
        return sum(parameters_per_gpu(LLAMA, layout, stage).total for stage in range(pp))

    assert total(Layout(pp=pp, pipeline_layout=cut)) == total(Layout(pp=pp))
