"""What is brought back: runs packed into few files of bounded size, each as soon as it is there."""

import tarfile
from pathlib import Path

MOST_BYTES = 15 << 20
"""Of a bundle; 16 MiB come back."""
MOST_BUNDLES = 4
"""Eight files come back, and table, results, probe and log are four."""
OVERHEAD_BYTES = 12_000
"""A member's header, and the end of the file."""
LEFT_OUT = ("data", "perfdoc-data")


class Bundles:
    """Fills `runs0.tar`, `runs1.tar`, … in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._number = folder, 0

    def add(self, run: Path, log: Path) -> str:
        """Pack a run with its log; what had to stay behind, empty where nothing did."""
        for without in ((), (".pickle",), (".pickle", ".json.gz")):
            packed = _packed(run, log, without)
            if packed.stat().st_size <= MOST_BYTES and self._put(packed):
                return f"without {', '.join(without)}" if without else ""
        return "not brought back: no room"

    def _put(self, packed: Path) -> bool:
        for number in range(self._number, MOST_BUNDLES):
            bundle = self._folder / f"runs{number}.tar"
            held = bundle.stat().st_size if bundle.exists() else 0
            if held + packed.stat().st_size + OVERHEAD_BYTES <= MOST_BYTES:
                with tarfile.open(bundle, "a") as tar:
                    tar.add(packed, arcname=packed.name)
                return True
        return False


def _packed(run: Path, log: Path, without: tuple[str, ...]) -> Path:
    target = run.with_name(f"{run.name}.tgz")

    def wanted(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        name = Path(member.name).name
        return None if name in LEFT_OUT or name.endswith(without) else member

    with tarfile.open(target, "w:gz", compresslevel=6) as tar:
        for path in (run, log):
            if path.exists():
                tar.add(path, arcname=path.name, filter=wanted)
    return target


def unpack(folder: Path, into: Path) -> None:
    """The runs of all bundles, each in a folder of its name."""
    for bundle in sorted(folder.glob("runs*.tar")):
        with tarfile.open(bundle) as tar:
            tar.extractall(into, filter="data")
    for packed in sorted(into.glob("*.tgz")):
        with tarfile.open(packed) as tar:
            tar.extractall(into, filter="data")
        packed.unlink()
