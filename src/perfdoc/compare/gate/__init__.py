"""The CI gate: does a change make training slower? One run is one sample; see docs/gate.md."""
