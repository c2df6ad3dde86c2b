from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfdoc.reports.sections.contention import kernel_text


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("void at::native::(anonymous namespace)::f<float, 4>(int, float*)", "f<float, 4>"),
        ("void cutlass::Kernel2<cutlass_80_gemm_nn>(T1::Params)", "Kernel2<cutlass_80_gemm_nn>"),
        ("sm90_xmma_gemm_bf16bf16_tn_n", "sm90_xmma_gemm_bf16bf16_tn_n"),
        ("void ns::g<(int)32, ns::Op<float>>(T3)", "g<(int)32, ns::Op<float>>"),
        ("void <unnamed>::h(int)", "h"),
        # Cut in the capture inside a bracket: no function can be told, the name stands.
        ("void ns::g<(int)32, ns::Op<", "void ns::g<(int)32, ns::Op<"),
        ("", ""),
        ("(a)", "(a)"),
        ("a b ", "a b "),
    ],
)
def test_a_kernels_name_keeps_function_and_template_arguments(name: str, shown: str) -> None:
    assert kernel_text(name) == shown


@given(st.text(alphabet="ab:<>() ,\x1b\u202e", max_size=3000))
def test_any_text_is_fit_to_be_shown(name: str) -> None:
    shown = kernel_text(name)
    assert len(shown) <= 64
    assert shown.isprintable()
