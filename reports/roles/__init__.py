"""Many ranks by role: which do the same work, what is usual among them, and who differs."""

from __future__ import annotations

from perfdoc.reports.roles.groups import MANY, Figures, Role, Roles, roles_of
from perfdoc.reports.roles.outliers import Deviation, Outlier

__all__ = ["MANY", "Deviation", "Figures", "Outlier", "Role", "Roles", "roles_of"]
