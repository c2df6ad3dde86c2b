"""Values in PyTorch traces: names of kernels, times, sizes of messages, shapes of operators."""

from __future__ import annotations

import json
import time
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfdoc.traces.kineto import shapes
from perfdoc.traces.kineto.names import short_name
from perfdoc.traces.kineto.payload import PayloadRows, message_bytes
from perfdoc.traces.kineto.read import read_kineto
from perfdoc.traces.kineto.values import READERS, Args, Number, interval_ns
from perfdoc.traces.model import Trace
from perfdoc.traces.table import Rows, Strings

LAMBDA = (
    "at::native::gpu_impl<f(at::TensorIteratorBase&)::{lambda()#1}::operator()() const::{lambda(float)#1}>"
)


ODD: list[Any] = ["rubbish", 7, None, {"a": 1}, True]


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


@given(
    st.integers(0, 2 * 10**18),
    st.integers(0, 10**9),
    st.integers(4, 20),
    st.sampled_from([0, 1, 5, 7]),
    st.data(),
)
def test_a_duration_of_many_decimals_ends_at_the_nearest_ns(
    start_ns: int, whole_us: int, decimals: int, last: int, data: st.DataObject
) -> None:
    """By fractions: ties, of which the last digit 5 makes many, go to the even ns."""
    digits = data.draw(st.integers(0, 999)) * 10 ** (decimals - 3) + last * 10 ** (decimals - 4)
    start = Number(f"{start_ns // 1000}.{start_ns % 1000:03}")
    duration = Number(f"{whole_us}.{digits:0{decimals}}")
    exact = start_ns + 1000 * (whole_us + Fraction(digits, 10**decimals))
    assert interval_ns(start, duration) == (start_ns, round(exact))


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


@pytest.mark.parametrize(
    ("start", "duration", "expected"),
    [
        (5, 2, (5_000, 7_000)),
        (0, 0, (0, 0)),
        # 16 digits before the point: as a float64 this start would be off by up to 125 ns.
        (Number("1694128201435418.123"), Number("0.001"), (1694128201435418123, 1694128201435418124)),
        (Number("4458677052057.143"), Number("2129.38"), (4458677052057143, 4458677054186523)),
        (Number("7.5"), 1, (7_500, 8_500)),
        (Number("-0.500"), 1, (-500, 500)),
        (Number("1.5e3"), Number("1E0"), (1_500_000, 1_501_000)),
        # Four decimals: 1.0004 µs is 1000.4 ns, and the end is rounded from 1000.4 + 0.4, not from 0.4.
        (Number("1.0004"), Number("0.0004"), (1_000, 1_001)),
        (Number("1e-400"), 0, (0, 0)),
    ],
)
def test_planted_times(start: object, duration: object, expected: tuple[int, int]) -> None:
    assert interval_ns(start, duration) == expected


@given(st.integers(0, 10**15), st.integers(0, 10**9), st.integers(4, 12))
def test_more_decimals_round_to_nearest_and_touching_stays_touching(
    whole: int, part: int, digits: int
) -> None:
    start = Number(f"{whole}.{part % 10**digits:0{digits}d}")
    duration = Number(f"0.{(part * 7) % 10**digits:0{digits}d}")
    exact_end = Fraction(str(start)) + Fraction(str(duration))
    next_start = Number(
        f"{exact_end.numerator * 10**digits // exact_end.denominator // 10**digits}."
        f"{exact_end.numerator * 10**digits // exact_end.denominator % 10**digits:0{digits}d}"
    )
    first_start, first_end = interval_ns(start, duration)
    assert abs(first_start - Fraction(str(start)) * 1000) <= Fraction(1, 2)
    assert first_end == interval_ns(next_start, 0)[0]


@pytest.mark.parametrize(
    ("collective", "sent", "received", "dtype", "expected"),
    [
        ("allreduce", 1000, 1000, "Float", 4000),
        ("allreduce_coalesced", 1000, 1000, "Half", 2000),
        ("broadcast", 53, 53, "Long", 424),
        ("_reduce_oop", 10, 10, "Double", 80),
        # What one rank sends: 25136 of the 201088 elements that all eight end up with.
        ("_allgather_base", 25136, 201088, "BFloat16", 50272),
        ("all_gather", 8, 64, "Byte", 8),
        ("all_gather_into_tensor_coalesced", 8, 64, "Char", 8),
        # What one rank receives.
        ("_reduce_scatter_base", 8192, 1024, "BFloat16", 2048),
        ("reduce_scatter_tensor_coalesced", 8192, 1024, "Float", 4096),
        # What goes to each of the eight peers.
        ("all_to_all", 8000, 8000, "Float8_e4m3fn", 1000),
        ("all_to_all", 8001, 8001, "Float", -1),
        ("all_to_allv", 8000, 8000, "Float", -1),
        ("send", 7, 7, "Int", 28),
        ("recv", 7, 9, "Int", 36),
        ("gather", 7, 56, "ComplexFloat", 56),
        ("scatter", 56, 7, "ComplexDouble", 112),
        ("barrier", 0, 0, "Byte", -1),
        ("a collective of tomorrow", 5, 5, "Float", -1),
        ("allreduce", 1000, 1000, "Float3_e1m1", -1),
        ("allreduce", -5, 1000, "Float", -1),
        ("allreduce", "x", 1000, "Float", -1),
        ("allreduce", None, None, None, -1),
    ],
)
def test_message_bytes(collective: str, sent: object, received: object, dtype: str, expected: int) -> None:
    args = Args(
        collective=collective,
        in_elements=sent,
        out_elements=received,
        dtype=dtype,
        group_size=8,
        in_splits="[]",
    )
    assert message_bytes(args) == expected


@pytest.mark.parametrize(
    ("splits", "expected"),
    [("[4, 4]", 16), ([4, 4], 16), ("[3, 5]", -1), ("[4, 4, ...]", -1), ([4, "x"], -1)],
)
def test_all_to_all_with_splits(splits: object, expected: int) -> None:
    # Two peers, 8 elements of 4 bytes: 16 bytes to each, if cut evenly.
    args = Args(
        collective="all_to_allv", in_elements=8, out_elements=8, dtype="Float", group_size=2, in_splits=splits
    )
    assert message_bytes(args) == expected


def test_equal_metadata_of_other_types_stays_apart() -> None:
    """1 and True are equal in Python; the file says different things, and a list cannot be looked up."""
    rows = PayloadRows(Strings())
    for kernel, elements in enumerate((1, True, 1, [1], 2)):
        args = Args(
            collective="allreduce", group_name="0", dtype="Int", in_elements=elements, sequence=kernel
        )
        rows.add(kernel, args)
    table = rows.table()
    assert table.bytes.tolist() == [4, -1, 4, -1, 8]
    assert table.sequence.tolist() == table.kernel.tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("odd", [None, "7", 0, -1, True, 2**70, 0xFFFFFFFF])
def test_a_column_is_read_alike_however_many_plain_numbers_stand_beside(odd: object) -> None:
    rows = Rows("correlation", "stream", readers=READERS)
    for value in (5, odd, 9):
        rows.add((value, value))
    alone = Rows("correlation", "stream", readers=READERS)
    alone.add((odd, odd))
    for name, column in rows.columns().items():
        assert column.tolist() == [5, READERS[name](odd), 9]
        assert alone.columns()[name].tolist() == [READERS[name](odd)]


@pytest.mark.parametrize("beside", [[5, 1 << 33], [-1, 7], [-1, 1 << 33]])
@pytest.mark.parametrize("odd", [0, 7, 0xFFFFFFFF, -1])
def test_what_a_number_means_does_not_depend_on_those_beside(odd: int, beside: list[int]) -> None:
    """CUPTI's 32-bit `invalid` and 0 of ids lie between numbers that are kept."""
    rows = Rows(*READERS, readers=READERS)
    values = [beside[0], odd, beside[1]]
    for value in values:
        rows.add((value,) * len(READERS))
    for name, column in rows.columns().items():
        assert column.tolist() == [READERS[name](value) for value in values], name


def test_columns_hold_whole_numbers_of_their_width() -> None:
    rows = Rows("start_ns")
    rows.add((1.5,))
    with pytest.raises(AssertionError):
        rows.columns()
    with pytest.raises(AssertionError):
        Rows("thread", readers={"thread": READERS["stream"]})


def test_peers_of_sends_and_receives() -> None:
    rows = PayloadRows(Strings())
    rows.add(0, Args(collective="send", destination_rank=3, source_rank=1, group_name="2", rank=1))
    rows.add(5, Args(collective="recv", destination_rank=1, source_rank=0, group_name="2"))
    rows.add(6, Args(collective="allreduce", destination_rank=1, group_name="2"))
    rows.add(7, Args())  # an ordinary kernel
    table = rows.table()
    assert table.kernel.tolist() == [0, 5, 6]
    assert table.peer.tolist() == [3, 0, -1]
    assert table.rank.tolist() == [1, -1, -1]


COLUMNS = ("dims", "dtypes", "values", "strides")


def read(folder: Path, *operators: tuple[str, str], category: str = "cpu_op") -> Trace:
    """Operators as (name, arguments as they stand in the file)."""
    rows = [
        f'{{"ph":"X","cat":"{category}","name":"{name}","pid":1,"tid":1,"ts":{i},"dur":1,"args":{args}}}'
        for i, (name, args) in enumerate(operators)
    ]
    path = folder / "shapes.json"
    path.write_text('{"traceEvents":[' + ",".join(rows) + "]}")
    return read_kineto(path)


def texts(trace: Trace) -> list[tuple[str, ...]]:
    columns = [trace.names(getattr(trace.operators, c)) for c in COLUMNS]
    return list(zip(*columns, strict=True))


def test_equal_inputs_are_one_text_however_they_are_written(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        (
            "aten::mm",
            '{"External id": 1, "Input Dims": [[8, 16], [16, 4]], "Input type": ["float", "float"]}',
        ),
        (
            "aten::mm",
            '{"Input Dims": [[8,\\n16],  [16,4]], "Input type": ["float","float"]}'.replace("\\n", "\n"),
        ),
        ("aten::mm", '{"Input dims": [[8, 16], [16, 4]]}'),
        ("aten::mm", "{}"),
    )
    shape, types = "[[8,16],[16,4]]", '["float","float"]'
    assert texts(found) == [(shape, types, "", ""), (shape, types, "", ""), (shape, "", "", ""), ("",) * 4]
    assert "operator shapes (record_shapes)" in found.recorded


def test_scalars_are_kept_where_the_work_follows_from_them(tmp_path: Path) -> None:
    args = '{"Input Dims": [[8, 4], []], "Concrete Inputs": ["", "[1, 2]"]}'
    found = read(tmp_path, ("aten::view", args), ("aten::cudnn_convolution", args), ("aten::sum", args))
    assert [t[2] for t in texts(found)] == ["", '["","[1, 2]"]', '["","[1, 2]"]']


def test_strides_are_kept_where_an_input_is_expanded(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        ("aten::mul", '{"Input Dims": [[8, 4]], "Input Strides": [[4, 1]]}'),
        ("aten::mul", '{"Input Dims": [[8, 4]], "Input Strides": [[0, 1]]}'),
        ("aten::mul", '{"Input Dims": [[8, 4]], "Input Strides": [[10, 1]]}'),
    )
    assert [t[3] for t in texts(found)] == ["", "[[0,1]]", ""]


@pytest.mark.parametrize("dims", ODD)
def test_what_is_no_list_is_unknown(tmp_path: Path, dims: object) -> None:
    found = read(tmp_path, ("aten::mm", json.dumps({"Input Dims": dims, "Input type": ["float"]})))
    assert texts(found) == [("",) * 4]


@pytest.mark.parametrize("dims", ["[[1, nan]]", "[" * 400 + "]" * 400, "[[1e999]]", "[[" + "9" * 400 + "]]"])
def test_odd_lists_refuse_no_file(tmp_path: Path, dims: str) -> None:
    found = read(tmp_path, ("aten::mm", f'{{"Input Dims": {dims}}}'), ("aten::mm", '{"Input Dims": [[8]]}'))
    assert texts(found)[1][0] == "[[8]]"


def test_texts_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shapes, "MAX_TEXT_BYTES", 20)
    monkeypatch.setattr(shapes, "MAX_DISTINCT_BYTES", 30)
    found = read(
        tmp_path,
        ("aten::mm", '{"Input Dims": [[1000,1000,1000,1000]]}'),
        ("aten::mm", '{"Input Dims": [[1000,1000]]}'),
        ("aten::mm", '{"Input Dims": [[1000,1001]]}'),
        ("aten::mm", '{"Input Dims": [[1000,1002]]}'),
        ("aten::mm", '{"Input Dims": [[1000,1000]]}'),
    )
    assert [t[0] for t in texts(found)] == ["", "[[1000,1000]]", "[[1000,1001]]", "", "[[1000,1000]]"]
