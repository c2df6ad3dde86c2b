"""Loading the distributed optimizer's state when the inner optimizer is PyTorch's AdamW.

Call sites in optimizer/distrib_optimizer.py, all written for Transformer Engine's and Apex's FusedAdam, which
keep `step` per group, not per parameter:
- `_set_main_param_and_optimizer_states` copies every key of the state, finds `step` missing in the
checkpoint,
  and copies into leaf tensors with gradient tracking on;
- `load_state_dict` puts one and the same `step` tensor into every parameter's state: AdamW then advances it
  once per parameter and trains on, silently wrong;
- `state_dict` reads `step` from the state, which is empty before the first step, and always on a rank whose
  share of the buffers is padding only.
"""

from typing import Any

import torch

GIVEN_SEPARATELY = "step"


def _set_states(self: Any, model_param: Any, tensors: dict[str, torch.Tensor]) -> None:
    """Copy one parameter's main weights and moments; `step` comes from the parameter groups."""
    group_index, group_order = self.model_param_group_index_map[model_param]
    main_param = self.optimizer.param_groups[group_index]["params"][group_order]
    targets = {"param": main_param, **self.optimizer.state[main_param]}
    with torch.no_grad():
        for key, target in targets.items():
            if key != GIVEN_SEPARATELY:
                target.copy_(tensors[key])


def inner_optimizers(optimizer: Any) -> list[Any]:
    """The torch optimizers inside megatron-core's wrappers; ranks without parameters of a kind have none."""
    chained = getattr(optimizer, "chained_optimizers", [optimizer])
    return [each.optimizer for each in chained if getattr(each, "optimizer", None) is not None]


def create_state(optimizer: Any) -> None:
    """Create AdamW's state as its first step would, without stepping, so that it can be saved or loaded."""
    for inner in inner_optimizers(optimizer):
        for group in inner.param_groups:
            for param in group["params"]:
                state = inner.state[param]
                if "exp_avg" not in state:
                    state["exp_avg"] = torch.zeros_like(param, memory_format=torch.preserve_format)
                    state["exp_avg_sq"] = torch.zeros_like(param, memory_format=torch.preserve_format)
                state.setdefault("step", torch.tensor(0.0, dtype=torch.float32))


def separate_steps(optimizer: Any) -> None:
    """Give every parameter a `step` tensor of its own."""
    for inner in inner_optimizers(optimizer):
        for state in inner.state.values():
            if "step" in state:
                state["step"] = torch.tensor(float(state["step"]), dtype=torch.float32)


def _state_without_parameters(self: Any) -> dict[str, Any]:
    """What `state_dict` gives on a rank that owns no parameter: the groups' settings at step 0."""
    groups = [
        {**{key: value for key, value in group.items() if key != "params"}, "step": 0.0}
        for group in self.optimizer.state_dict()["param_groups"]
    ]
    state: dict[str, Any] = {"optimizer": {"param_groups": groups}}
    if self.grad_scaler:
        state["grad_scaler"] = self.grad_scaler.state_dict()
    return state


def install() -> None:
    """Replace the methods that cannot be worked round from outside."""
    from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer

    state_dict = DistributedOptimizer.state_dict

    def state_of_any_rank(self: Any) -> Any:
        owns_none = self.optimizer is not None and not self.optimizer.state
        return _state_without_parameters(self) if owns_none else state_dict(self)

    DistributedOptimizer.state_dict = state_of_any_rank
    DistributedOptimizer._set_main_param_and_optimizer_states = _set_states
