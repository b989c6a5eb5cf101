"""Both transports, for the tests that hold for any."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from glt_lightning.workers.transport.credentials import Credentials
from glt_lightning.workers.transport.flight_transport import FlightTransport
from tests.helpers.in_process import InProcessNetwork
from tests.helpers.places import DEADLINES, Desk, Place


@pytest.fixture(params=["in process", "flight"])
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    if request.param == "flight":
        yield from _closing(Place("flight", FlightTransport(Credentials(), DEADLINES)))
    else:
        with InProcessNetwork() as network:
            yield from _closing(Place("in process", network))


@pytest.fixture
def flight_place() -> Iterator[Place]:
    yield from _closing(Place("flight", FlightTransport(Credentials(token="a secret of this test"), DEADLINES)))


def _closing(place: Place) -> Iterator[Place]:
    try:
        yield place
    finally:
        place.close()


@pytest.fixture
def desk(request: pytest.FixtureRequest) -> Iterator[Desk]:
    desk = Desk()
    yield desk
    desk.release.set()
