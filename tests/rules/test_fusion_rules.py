"""PD404 and PD405: chains of small kernels, attention in pieces."""

from dataclasses import replace
from pathlib import Path

import pytest

from perfdoc.knobs.knob import Dialect, Value
from perfdoc.results.headline import Framework
from perfdoc.rules.checks import pd404_unfused_operators, pd405_unfused_attention
from perfdoc.rules.engine.advise import value_of
from perfdoc.rules.engine.case import Case
from perfdoc.rules.facts.fusions import FUSIONS, known_off
from tests.analyzers.tiny import GEMM
from tests.rules.cases import case_of, evidence_of, gain_of, result, settings_of
from tests.rules.laid import FLASH, MUL, SILU, SOFTMAX, dense, given, knowing, laid, starting_up

LOG_SOFTMAX = (
    "void at::native::<unnamed>::cunn_SoftMaxForward<4, float, float, float, "
    "at::native::<unnamed>::LogSoftMaxForwardEpilogue>(T2 *)"
)
NLL = "void at::native::<unnamed>::nll_loss_forward_reduce_cuda_kernel_2d<float, float, long>(x)"
OFF: dict[str, Value] = {"bias_activation_fusion": False}


@pytest.fixture(scope="module")
def gated(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Case]:
    """Steps in which silu(x) * y takes so many us of 1,000: 10 is the edge."""
    edge = round(pd404_unfused_operators.MIN_FRAC * 1000)
    assert edge == 10
    return {
        us: case_of(tmp_path_factory.mktemp("x"), laid((GEMM, 100), (SILU, us - 4), (MUL, 4)))
        for us in (9, 10, 100)
    }


def shown(case: Case, framework: Framework) -> Case:
    """The same where the captures show this framework."""
    return replace(case, captures=[replace(capture, framework=framework) for capture in case.captures])


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Case:
    """Products and fused attention, nothing to fuse."""
    return case_of(tmp_path_factory.mktemp("x"), laid((GEMM, 500), (FLASH, 300)))


def test_unfused_operators(gated: dict[int, Case]) -> None:
    assert result("PD404", given(gated[9])).state == "passes"
    found = result("PD404", given(gated[10]))
    assert (found.state, found.level) == ("fires", "problem")
    assert evidence_of(found) == ["1.0 %", "10 µs", "1.0 % of the step"]
    assert [(a.knob, value_of(a), a.from_value) for a in found.advice] == [
        ("bias_activation_fusion", True, None)
    ]
    # silu 6 us and * 4 us: one fused kernel takes a third of the longer one at least, 2 of the 10 us.
    assert (gain_of(found).method, gain_of(found).high_ms) == ("ceiling", pytest.approx(0.008))
    assert found.advice[0].gain is not None
    assert found.advice[0].gain.high_ms == pytest.approx(0.008)


def test_a_trainer_without_settings_gets_words(gated: dict[int, Case]) -> None:
    found = result("PD404", shown(given(gated[100], None), ""))
    assert (found.state, found.advice) == ("fires", [])
    assert "gated activation" in found.remedy
    megatron = result("PD404", shown(given(gated[100], None), "megatron"))
    assert settings_of(megatron) == {"bias_activation_fusion": True}


def test_a_fusion_that_is_on_and_does_nothing(gated: dict[int, Case]) -> None:
    found = result("PD404", given(gated[100], bias_activation_fusion=True))
    assert (found.state, found.advice) == ("fires", [])
    assert "lthough bias_activation_fusion is on" in found.remedy


def test_switches_that_are_off(plain: Case) -> None:
    off: dict[str, Value] = dict.fromkeys(FUSIONS, False)
    found = result("PD404", given(plain, **off))
    assert (found.state, found.level, found.gain) == ("fires", "information", None)
    # Transformer Engine's norms are fused whatever persist_layer_norm says.
    assert set(settings_of(found)) == (set(FUSIONS) | {"cross_entropy_fusion_impl"}) - {"persist_layer_norm"}
    local = result("PD404", given(plain, **off, transformer_impl="local"))
    assert settings_of(local)["persist_layer_norm"] is True
    fsdp = result("PD404", given(plain, **off, use_torch_fsdp2=True, multi_latent_attention=True))
    assert not {"gradient_accumulation_fusion", "apply_rope_fusion"} & {a.knob for a in fsdp.advice}
    assert result("PD404", given(plain)).state == "passes"
    assert result("PD404", given(plain, **dict.fromkeys(FUSIONS, True))).state == "passes"


def test_verl_leaves_fusions_off(plain: Case) -> None:
    found = result("PD404", given(plain, "verl", apply_rope_fusion=True))
    assert (found.state, found.level, "verl" in found.reason) == ("fires", "information", True)
    assert set(settings_of(found)) == {
        "gradient_accumulation_fusion",
        "bias_activation_fusion",
        "bias_dropout_fusion",
    }


def test_verls_fsdp_has_no_fusions_of_megatron(plain: Case, gated: dict[int, Case]) -> None:
    for values in ({"verl_strategy": "fsdp2"}, {"verl_param_offload": True}):
        assert [k for k in FUSIONS if known_off(given(plain, "verl", **values), k)] == []
    off = [k for k in FUSIONS if known_off(given(plain, "verl", verl_strategy="megatron"), k)]
    assert len(off) == 5
    found = result("PD404", given(gated[100], "verl", verl_strategy="fsdp"))
    assert (found.state, found.advice, "torch.compile" in found.remedy) == ("fires", [], True)


@pytest.mark.parametrize("dialect", ["torchtitan", "deepspeed", "accelerate", "env"])
def test_no_settings_of_megatron_elsewhere(
    gated: dict[int, Case], softmax: dict[tuple[int, str], Case], dialect: Dialect
) -> None:
    chains = result("PD404", shown(given(gated[100], dialect), "pytorch"))
    assert (chains.state, chains.advice, "torch.compile" in chains.remedy) == ("fires", [], True)
    attention = result("PD405", shown(given(softmax[20, GEMM], dialect), "pytorch"))
    assert (attention.advice, "scaled_dot_product_attention" in attention.remedy) == ([], True)


def test_loss_over_the_vocabulary(tmp_path: Path) -> None:
    case = case_of(tmp_path, laid((GEMM, 500), (LOG_SOFTMAX, 90), (NLL, 10)))
    known = knowing(given(case, **OFF, cross_entropy_loss_fusion=False), model=dense(), tp=2, cp=1)
    found = result("PD404", knowing(known, micro_batch_sequences=3))
    assert settings_of(found) == {
        "cross_entropy_loss_fusion": True,
        "cross_entropy_fusion_impl": "te",
        "bias_activation_fusion": True,
    }
    # 3 x 2048 x 10,000 x 4 bytes over 2 ranks: 122,880,000 bytes.
    assert "0.11 GiB" in found.advice[0].why
    assert gain_of(found).high_ms == pytest.approx(0.07)  # 100 us less a third of 90
    verl = result("PD404", given(case, "verl", bias_activation_fusion=True))
    assert settings_of(verl)["cross_entropy_fusion_impl"] == "te"
    assert "cross_entropy_loss_fusion" not in settings_of(verl)


@pytest.fixture(scope="module")
def softmax(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[int, str], Case]:
    """Steps in which softmax takes so many us of 1,000, beside products alone or beside fused attention."""
    edge = round(pd405_unfused_attention.MIN_FRAC * 1000)
    return {
        (us, beside): case_of(tmp_path_factory.mktemp("x"), laid((GEMM, 400), (beside, 200), (SOFTMAX, us)))
        for us, beside in ((edge, GEMM), (edge - 1, GEMM), (edge, FLASH))
    }


def test_attention_in_pieces(softmax: dict[tuple[int, str], Case]) -> None:
    found = result("PD405", given(softmax[20, GEMM], masked_softmax_fusion=False))
    assert (found.state, found.level) == ("fires", "problem")
    assert settings_of(found) == {"attention_backend": "auto", "masked_softmax_fusion": True}
    # Which products it belongs to is not seen: what fused attention replaces is not known.
    assert found.gain is None
    foreign = result("PD405", shown(given(softmax[20, GEMM], None), ""))
    assert (foreign.advice, "scaled_dot_product_attention" in foreign.remedy) == ([], True)
    assert result("PD405", given(softmax[19, GEMM])).state == "passes"
    # Beside fused attention a softmax is a router's or a loss'.
    assert result("PD405", given(softmax[20, FLASH])).state == "passes"


@pytest.mark.parametrize(
    ("softmax_us", "gap_us", "state", "level"),
    [(20, 0, "fires", "problem"), (19, 0, "passes", ""), (19, 700, "fires", "information")],
)
def test_a_softmax_between_products(
    tmp_path: Path, softmax_us: int, gap_us: int, state: str, level: str
) -> None:
    """Two products of 50 us around a softmax in each step of 1 ms; fused attention runs elsewhere. 19 us are
    19 / 300 of compute where the device idles for 700, perhaps for launches: the host takes 4 ns for those of
    softmax and second product."""
    kernels = ((GEMM, 50), (SOFTMAX, softmax_us), (GEMM, 50), (FLASH, 20))
    found = result("PD405", given(case_of(tmp_path, laid(*kernels, gap_us=gap_us))))
    assert (found.state, found.level if level else "") == (state, level)
    assert "separate kernels" in found.reason
    if state == "fires":
        # The products are a part of what fused attention replaces.
        assert (gain_of(found).method, gain_of(found).high_ms) == (
            "ceiling",
            pytest.approx((100 + softmax_us + 0.004 * bool(gap_us)) / 1e3, rel=1e-6),
        )


def test_a_softmax_fused_with_its_mask_is_no_fused_attention(tmp_path: Path) -> None:
    """Megatron's kernel of attention in pieces: alone, and between products."""
    masked = "void scaled_upper_triang_masked_softmax_warp_forward<__half, __half, float, 11>(x)"
    for kernels, gain_ms in (
        (((GEMM, 400), (masked, 20)), None),
        (((GEMM, 50), (masked, 20), (GEMM, 50)), 0.12),
    ):
        found = result("PD405", given(case_of(tmp_path, laid(*kernels)), attention_backend="unfused"))
        assert (found.state, found.level, settings_of(found)) == (
            "fires",
            "problem",
            {"attention_backend": "auto"},
        )
        assert (found.gain.high_ms if found.gain else None) == pytest.approx(gain_ms)


def test_start_up_does_not_excuse_it(tmp_path: Path) -> None:
    case = given(case_of(tmp_path, laid((GEMM, 9), (SOFTMAX, 2), (GEMM, 9), gap_us=960)))
    assert result("PD405", case).level == "information"
    found = result("PD405", starting_up(case))
    # 2 of 40 us in which something runs.
    assert (found.state, found.level, evidence_of(found)[0]) == ("fires", "problem", "5.0 %")
    assert found.gain is None


def test_attention_that_is_fused_already_and_not_used(softmax: dict[tuple[int, str], Case]) -> None:
    found = result("PD405", given(softmax[20, GEMM], attention_backend="auto"))
    assert (found.state, found.advice, "Check the log" in found.remedy) == ("fires", [], True)


def test_backend_by_hand(plain: Case, softmax: dict[tuple[int, str], Case], tmp_path: Path) -> None:
    for backend in ("unfused", "local"):
        # The kernels of fused attention speak louder than a setting.
        assert result("PD405", given(plain, attention_backend=backend)).state == "passes"
        found = result("PD405", given(softmax[19, GEMM], attention_backend=backend))
        assert (found.state, found.level) == ("fires", "information")
        assert settings_of(found) == {"attention_backend": "auto"}
    # Attention is 300 of 1,000 us; on Hopper cuDNN's is usually faster than FlashAttention.
    flash = result("PD405", given(plain, attention_backend="flash"))
    assert (flash.state, flash.level, settings_of(flash)) == (
        "fires",
        "information",
        {"attention_backend": "auto"},
    )
    assert result("PD405", given(plain, attention_backend="fused")).state == "passes"
    edge = round(pd405_unfused_attention.MIN_ATTENTION_FRAC * 1000)
    for us, state in ((edge, "fires"), (edge - 1, "passes")):
        case = given(case_of(tmp_path, laid((GEMM, 500), (FLASH, us))), attention_backend="flash")
        assert result("PD405", case).state == state
