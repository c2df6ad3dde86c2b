"""Named configurations, overrides and their origins."""

from perfdoc.trainer.config.resolve import ResolvedConfig, named_configs, resolve
from perfdoc.trainer.config.schema import Config

__all__ = ["Config", "ResolvedConfig", "named_configs", "resolve"]
