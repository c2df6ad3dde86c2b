"""Download what the machine with the GPU lacks: wheels for Python 3.12 on x86-64 Linux.

    python benchmarks/one_gpu/pack.py [-o dist/one_gpu]

The folder is what is carried there; the rest is in the repository. There, from the repository's root:

    python3 benchmarks/one_gpu --wheels dist/one_gpu -o OUT
"""

import argparse
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_COLUMNS = ("adbc-driver-manager", "adbc-driver-sqlite", "nanoarrow")
LACKING = ("megatron-core", "msgspec", *_COLUMNS, "nvtx", "plotly")
"""Of perfdoc's dependencies, what an image with PyTorch, NumPy, pyarrow, typer and Triton does not have."""
MOST_BYTES = 40 << 20
"""64 MiB travel, the repository among them."""
PLATFORMS = (
    *("manylinux_2_28", "manylinux_2_27", "manylinux_2_24", "manylinux_2_17", "manylinux2014"),
    "manylinux1",
)


def pinned() -> list[str]:
    """LACKING with the versions of constraints.txt."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return [line.strip() for line in lines if line.partition("==")[0] in LACKING]


def main() -> int:
    """Fill the folder, and say what to do with it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, default=ROOT / "dist" / "one_gpu")
    folder = parser.parse_args().output
    line = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:"]
    line += ["--python-version", "3.12", "--implementation", "cp", "-d", str(folder)]
    line += [word for name in PLATFORMS for word in ("--platform", f"{name}_x86_64")]
    done = subprocess.run([*line, *pinned()], capture_output=True, text=True)
    if done.returncode:
        sys.stderr.write(f"pack: {(done.stderr.strip().splitlines() or ['pip failed'])[-1]}\n")
        return 1
    size = sum(file.stat().st_size for file in folder.glob("*.whl"))
    sys.stdout.write(f"{folder}: {len(list(folder.glob('*.whl')))} wheels, {size / 1e6:.1f} MB\n")
    if size > MOST_BYTES:
        sys.stderr.write(f"pack: over {MOST_BYTES >> 20} MiB: too little is left for the repository\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
