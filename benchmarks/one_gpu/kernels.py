"""Two kernels of Triton that keep the SMs that they are given."""

import triton
import triton.language as tl


@triton.jit
def copy_persistent(source, target, count, rounds, SIZE: tl.constexpr):  # noqa: N803 - as Triton writes constants
    """Copy `count` elements `rounds` times by blocks that live long, as those of a ring's kernel."""
    first, blocks = tl.program_id(0), tl.num_programs(0)
    for _ in range(rounds):
        for start in range(first * SIZE, count, blocks * SIZE):
            at = start + tl.arange(0, SIZE)
            tl.store(target + at, tl.load(source + at, mask=at < count, other=0.0), mask=at < count)


@triton.jit
def rms_norm_persistent(given, weight, out, rows, WIDTH: tl.constexpr):  # noqa: N803
    """RMSNorm of `rows` rows on as many SMs as there are blocks: as Transformer Engine's, with a margin."""
    first, blocks = tl.program_id(0), tl.num_programs(0)
    column = tl.arange(0, WIDTH)
    scale = tl.load(weight + column)
    for row in range(first, rows, blocks):
        value = tl.load(given + row * WIDTH + column).to(tl.float32)
        inverse = tl.rsqrt(tl.sum(value * value) / WIDTH + 1e-5)
        tl.store(out + row * WIDTH + column, (value * inverse * scale).to(tl.bfloat16))
