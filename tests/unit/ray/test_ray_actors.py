"""Classes of actors as Ray gets them from the hook, without a Ray."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import cloudpickle
import ray
import ray.util.queue

from egs_ray import actors
from egs_ray.gate.ticketing import with_ticket


class Base(ABC):
    @abstractmethod
    def kind(self) -> str: ...


class Model(Base):
    """A model."""

    def __init__(self, value: int, *, more: int = 0) -> None:
        self.value = value + more

    def kind(self) -> str:
        return type(self).__name__


def test_a_class_takes_a_ticket_before_its_own_arguments() -> None:
    """The class with a ticket is one of the user's, named and shown like it, drops the ticket and passes all else on;
    pickled it brings all of that along."""
    remote: Any = ray.remote(num_gpus=1)(Model)
    made = actors.class_behind(remote)
    assert made is not None
    ticketed: Any = cloudpickle.loads(cloudpickle.dumps(actors.with_ticket(made, with_ticket)))
    one = ticketed(None, 2, more=3)
    assert isinstance(one, Model)
    assert (one.value, one.kind()) == (5, "Model")
    assert (ticketed.__module__, ticketed.__name__) == (Model.__module__, "Model")
    assert str(actors.signature_of(remote)).startswith("(value")


def test_what_is_no_class_of_the_users() -> None:
    """Functions are no actors' classes, and those of Ray's own libraries are told apart."""
    function: Any = ray.remote(lambda: None)
    assert actors.class_behind(function) is None
    own: Any = ray.remote(ray.util.queue._QueueActor)
    assert actors.is_of_library(own)
    assert not actors.is_of_library(ray.remote(Model))
