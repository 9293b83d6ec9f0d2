"""Several hosts on one machine, and torchrun on each: what a cluster does, in small.

    networks   hosts with addresses of their own, or several on loopback
    agents     one torchrun a host: start it, end a rank or a host, read what it said
    saved      how far a run on them is: its checkpoint
    kills      a rank killed at a random step, again and again
    reasons    why a torchrun failed, in one line
"""

from course.lab.hosts.agents import on_hosts
from course.lab.hosts.reasons import reason
from course.lab.hosts.saved import saved, until_saved

__all__ = ["on_hosts", "reason", "saved", "until_saved"]
