"""Short names of kernels."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfdoc.traces.kineto.names import short_name

LAMBDA = (
    "at::native::gpu_impl<f(at::TensorIteratorBase&)::{lambda()#1}::operator()() const::{lambda(float)#1}>"
)


@pytest.mark.parametrize(
    ("full", "short"),
    [
        ("void at::native::foo<int>(int)", "foo"),
        ("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", "ncclDevKernel_SendRecv"),
        ("void (anonymous namespace)::bar(float*)", "bar"),
        ("void at::native::(anonymous namespace)::Cat<at::(anonymous namespace)::O<4u>, 1>(int)", "Cat"),
        ("<unnamed>::k<1>(int)", "k"),
        ("std::enable_if<!(false), void>::type internal::gemvx::kernel<int, (T)1>(A)", "kernel"),
        (f"void at::native::elementwise_kernel<128, 2, {LAMBDA}>(int, {LAMBDA})", "elementwise_kernel"),
        ("void cutlass::Kernel2<cutlass_80_gemm_tn_align8>(cutlass_80_gemm_tn_align8::Params)", "Kernel2"),
        ("a::b(int)::{lambda(int)#1}::operator()(int) const", "operator()"),
        ("ns::operator<< <int>(int)", "operator<<"),
        ("void foo<(1 > 0), bar<(2 >> 1)>>(int)", "foo"),
        ("foo(int) [clone .kd]", "foo"),
        ("foo[abi:cxx11](int) const", "foo"),
        ("void foo<at::bar<int", "foo"),
        ("a kernel with words", "a kernel with words"),
        ("", ""),
        (">>>)", ">>>)"),
    ],
)
def test_planted_names(full: str, short: str) -> None:
    assert short_name(full) == short


identifiers = st.from_regex(r"\A[a-z_][a-z0-9_]{0,8}\Z").filter(lambda word: word != "operator")
types = st.recursive(
    identifiers | st.just("(anonymous namespace)::x") | st.just("{lambda(int)#1}"),
    lambda inner: (
        st.builds(
            lambda name, arguments, scope: f"{scope}::{name}<{', '.join(arguments)}>",
            identifiers,
            st.lists(inner, min_size=1, max_size=3),
            identifiers,
        )
        | st.builds(lambda result, argument: f"{result} (*)({argument})", inner, inner)
    ),
    max_leaves=8,
)


@given(
    name=identifiers,
    result=st.sampled_from(["", "void "]) | types.filter(lambda t: "(" not in t).map(lambda t: t + " "),
    scopes=st.lists(identifiers | st.just("(anonymous namespace)"), max_size=3),
    templates=st.none() | st.lists(types, max_size=3),
    arguments=st.lists(types, max_size=3),
    suffix=st.sampled_from(["", " const", " [clone .kd]"]),
)
def test_the_function_is_found_in_any_signature(
    name: str, result: str, scopes: list[str], templates: list[str] | None, arguments: list[str], suffix: str
) -> None:
    template = "" if templates is None else f"<{', '.join(templates)}>"
    full = result + "".join(f"{scope}::" for scope in scopes) + name + template
    assert short_name(f"{full}({', '.join(arguments)}){suffix}") == name


@given(st.text(alphabet="ab<>(){}[]: -operator", max_size=60))
def test_any_text_gives_a_part_of_itself(text: str) -> None:
    short = short_name(text)
    assert short in text
    assert bool(short) == bool(text)


@pytest.mark.parametrize("unit", ["<)", "(>", "a ", "::", "{]", "operator"])
def test_a_hostile_name_costs_linear_time(unit: str) -> None:
    def seconds(length: int) -> float:
        hostile = "<" * length + unit * length
        begin = time.perf_counter()
        short_name(hostile)
        return time.perf_counter() - begin

    # Quadratic work would take 256 times as long for 16 times the length.
    assert min(seconds(32_000) for _ in range(3)) < 100 * max(min(seconds(2_000) for _ in range(3)), 1e-4)
