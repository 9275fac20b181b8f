"""Pipeline schedules as data: written as lists of actions, checked, and played through with costs."""

from labkit.theory.schedule.actions import Action, Kind, Schedule, read_actions
from labkit.theory.schedule.dry_run import Blocked, ScheduleDeadlock, check_schedule, dry_run
from labkit.theory.schedule.plan import ScheduleError
from labkit.theory.schedule.simulate import Costs, Event, Simulation, simulate
from labkit.theory.schedule.zero_bubble import zb_h1, zb_h2

__all__ = [
    "Action",
    "Blocked",
    "Costs",
    "Event",
    "Kind",
    "Schedule",
    "ScheduleDeadlock",
    "ScheduleError",
    "Simulation",
    "check_schedule",
    "dry_run",
    "read_actions",
    "simulate",
    "zb_h1",
    "zb_h2",
]
