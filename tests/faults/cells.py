"""The fault matrix as data: what is done to a job where, and what must come of it.

Left out, because they cannot be or say nothing new:

* A server in modes without one, a network where all is on one host; the host's own loopback is not cut.
* A server that is killed for good in `OWN`: the run starts it again. There it is killed each time it is back.
* The columns other than mid-epoch for a rank that is killed or stops, SIGTERM, and stops of 5 s: the other ranks wait in
  the same collective calls wherever the fault comes; each mode has a rank that is killed elsewhere, too.
* A full disk without root: a file system of a given size needs a mount.
* SIGINT: it is SIGTERM's way out, and a terminal's business.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import chain

# Modes
HOST, PLACED, SERVERS, TLS, OWN = "one host", "rank-placed", "servers", "servers, TLS", "own server"
MODES = (HOST, PLACED, SERVERS, TLS, OWN)
WITH_SERVERS = (SERVERS, TLS, OWN)

# Points: columns, as `tests.faults.program` knows them
START, MID, TO_VAL, SHUTDOWN, EARLY, CHECKPOINT, PREDICT = (
    "start",
    "mid-epoch",
    "train to val",
    "shutdown",
    "early stop",
    "checkpoint",
    "predict",
)
POINTS = (START, MID, TO_VAL, SHUTDOWN, EARLY, CHECKPOINT, PREDICT)

# Short, so that a cell takes seconds; each point but `START` comes later than reconnect_s after the first stream opened.
RECONNECT_S = 10.0
CONNECT_S, CALL_S, LEASE_S, PEER_TIMEOUT_S, PEER_SILENCE_S = 2.0, 3.0, 3.0, 5.0, 5.0
SAMPLER_TIMEOUT_S = 12.0  # of a rank's own samplers: a stopped one ends the run
SERVER_SAMPLER_TIMEOUT_S = 30.0  # a server replaces a stopped one after half of it

# An exit of Python with torch takes a second of a core, which took up to twelve on a machine with a load of 17.
_EXIT_S = 20.0


@dataclass(frozen=True)
class GoesOn:
    """The run ends well: weights of an undisturbed run after each epoch, no seed lost or doubled, nothing left."""

    def __str__(self) -> str:
        return "goes on"


@dataclass(frozen=True)
class Ends:
    """Each rank ends within ``within_s``, a victim by SIGKILL, the others with an exit status above 0; nothing is left.

    naming: pattern of the words that name who is to blame, in what the ranks print.  status0: of rank 0; None: not 0.
    """

    within_s: float
    naming: str
    status0: int | None = None

    def __str__(self) -> str:
        return f"ends in {self.within_s:g} s"


@dataclass(frozen=True)
class Cell:
    """mode, fault (a key of `tests.faults.harm.FAULTS`), point, and what must come of it."""

    mode: str
    fault: str
    point: str
    expected: GoesOn | Ends

    @property
    def name(self) -> str:
        return re.sub(r"[^a-z0-9/]+", "-", f"{self.mode}/{self.fault}/{self.point}".lower())

    @property
    def in_test_all(self) -> bool:
        """Whether it is the one of its fault that ``make test-all`` runs."""
        return (self.mode, self.fault, self.point) in _TEST_ALL


# How long an end may take, put together from the deadlines that lead to it
_AWAY_S = RECONNECT_S + CONNECT_S + CALL_S + PEER_TIMEOUT_S + _EXIT_S


def _rank_dies(rank: int) -> Ends:
    return Ends(PEER_TIMEOUT_S + _EXIT_S, rf"rank {rank} \(process \d+\) of this host died")


_GOES_ON = GoesOn()
_RANK_STANDS_STILL = Ends(
    2 * PEER_SILENCE_S + PEER_TIMEOUT_S + _EXIT_S, r"rank 1 \(process \d+\)"
)  # the others kill it
_SERVER_IS_AWAY = Ends(_AWAY_S, r"\bserver [01]\b")
_OWN_SERVER_IS_AWAY = Ends(_AWAY_S, r"\bserver 0\b|graph server of this run")
# ranks that serve each other miss the rows of the stopped one first
_SAMPLER_STANDS_STILL = Ends(max(SAMPLER_TIMEOUT_S + PEER_TIMEOUT_S + _EXIT_S, _AWAY_S), r"sampler process|rank 1 \(")
_TERMINATED = Ends(2 * PEER_TIMEOUT_S + _EXIT_S, r"rank 0 received SIGTERM", status0=143)
_RAISED = Ends(PEER_TIMEOUT_S + _EXIT_S, r"ZeroDivisionError: of this cell")
_DISK_IS_FULL = Ends(PEER_TIMEOUT_S + _EXIT_S, r"disk/output\S+: .* cannot be written")

# Where the fault that each mode is there to survive comes in each column
_CARRIED = {HOST: "sampler killed", PLACED: "sampler killed", SERVERS: "server killed", TLS: "network cut 4 s"}
_CARRIED |= {OWN: "server killed"}


def _every_column(mode: str) -> list[Cell]:
    points = (START, MID, TO_VAL, SHUTDOWN, EARLY, CHECKPOINT)
    return [Cell(mode, _CARRIED[mode], point, _GOES_ON) for point in points]


def _every_mode(mode: str) -> list[Cell]:
    own_end = {HOST: TO_VAL, PLACED: TO_VAL, SERVERS: CHECKPOINT, TLS: TO_VAL, OWN: SHUTDOWN}
    return [
        Cell(mode, "none", "", _GOES_ON),
        Cell(mode, "rank 0 killed", MID, _rank_dies(0)),
        Cell(mode, "rank 1 killed", MID, _rank_dies(1)),
        Cell(mode, "rank 1 killed", own_end[mode], _rank_dies(1)),
        Cell(mode, "rank 1 stopped", MID, _RANK_STANDS_STILL),
        Cell(mode, "rank 1 raises", MID, _RAISED),
        Cell(mode, "SIGTERM to rank 0", MID, _TERMINATED),
        Cell(mode, "sampler stopped 5 s", MID, _GOES_ON),
        Cell(mode, "sampler stopped", MID, _GOES_ON if mode in WITH_SERVERS else _SAMPLER_STANDS_STILL),
        Cell(mode, "disk full", PREDICT, _DISK_IS_FULL),
        Cell(mode, "disk full", CHECKPOINT, _DISK_IS_FULL),
    ]


def _with_servers(mode: str) -> list[Cell]:
    away = _OWN_SERVER_IS_AWAY if mode == OWN else _SERVER_IS_AWAY
    return [
        Cell(mode, "sampler killed", MID, _GOES_ON),
        Cell(mode, "server killed for good", MID, away),
        Cell(mode, "server stopped 5 s", MID, _GOES_ON),
        Cell(mode, "server stopped", MID, away),
    ]


_ALONE = [
    Cell(SERVERS, "server killed for good", TO_VAL, _SERVER_IS_AWAY),
    Cell(SERVERS, "server killed for good", SHUTDOWN, _GOES_ON),  # the work is done
    Cell(SERVERS, "server killed for good", START, _SERVER_IS_AWAY),
    Cell(SERVERS, "sampler killed", TO_VAL, _GOES_ON),
    Cell(TLS, "server killed", MID, _GOES_ON),
    Cell(TLS, "network cut", MID, _SERVER_IS_AWAY),
    Cell(TLS, "network cut", TO_VAL, _SERVER_IS_AWAY),
    Cell(TLS, "network cut", SHUTDOWN, _GOES_ON),
]

# One for each fault, in the modes by turns
_TEST_ALL = {
    (HOST, "sampler killed", MID),
    (HOST, "rank 1 stopped", MID),
    (HOST, "disk full", CHECKPOINT),
    (HOST, "disk full", PREDICT),
    (PLACED, "sampler stopped", MID),
    (PLACED, "rank 1 raises", MID),
    (PLACED, "rank 0 killed", MID),
    (SERVERS, "server killed", MID),
    (SERVERS, "server killed for good", MID),
    (SERVERS, "server stopped", MID),
    (SERVERS, "rank 1 killed", MID),
    (SERVERS, "sampler stopped 5 s", MID),
    (TLS, "network cut 4 s", MID),
    (TLS, "network cut", MID),
    (OWN, "server killed", MID),
    (OWN, "server stopped 5 s", MID),
    (OWN, "SIGTERM to rank 0", MID),
}

CELLS = [*chain.from_iterable([*_every_mode(mode), *_every_column(mode)] for mode in MODES)]
CELLS += [*chain.from_iterable(_with_servers(mode) for mode in WITH_SERVERS), *_ALONE]
CELLS.sort(key=lambda cell: MODES.index(cell.mode))
