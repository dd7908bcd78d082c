"""What kernels are and how their loops are arranged. Public names; everything else by its full path."""

from tilegrad.schedules.dispatch import TEMPLATES, schedule, task_of, template_named
from tilegrad.schedules.own import OwnTemplate
from tilegrad.schedules.template import Config, Scheduled, Template, Workload

__all__ = ["TEMPLATES", "Config", "OwnTemplate", "Scheduled", "Template", "Workload", "schedule", "task_of", "template_named"]
