"""The training step of the user, which says what an estimator costs in practice."""

from dataclasses import dataclass
from math import inf

from ..diagnostics import pilot_settings as settings
from .gradient_samples import GradientSampler, Step
from .trials import Trial


@dataclass
class UserStep:
    """The training step of the user beside the estimate and its gradients, as the pilot times them.

    Attributes:
        call: Makes a step with an estimator; None: only the estimate and its gradients are timed.
        task: The gradient to estimate.
        rest_seconds: What a step takes apart from the estimate and its gradients,
        ratio: or its time relative to these, if it is shorter (when it is compiled).
        fastest: The shortest time of a step so far.
        draw_seconds: What a further plain draw adds to a step, if that is compiled.
        compiling_seconds: What first calls took longer than second ones, which is not counted.
    """

    call: Step | None
    task: GradientSampler
    rest_seconds: float | None = None
    ratio: float = 1.0
    fastest: float = inf
    draw_seconds: float | None = None
    compiling_seconds: float = 0.0

    @property
    def is_compiled(self) -> bool:
        """Whether a step is shorter than the estimate and its gradients in the pilot.

        Then the times of the pilot say little about those of the user's step: on a GPU, the pilot's
        steps are spent on launching kernels, which a captured step does not do.
        """
        return self.ratio < 1

    def can_time(self, trial: Trial) -> bool:
        """Return whether the time of a step is that of every step with this estimator.

        It is not if a coin decides whether a call corrects. This coin must not be set during the
        user's step, which may be captured and then be used with the advice.
        """
        return self.call is not None and (trial.kinds == 1 or self.is_compiled)

    def look(self, trial: Trial, seconds: float) -> None:
        """Compare a step with the time of the estimate and its gradients, once."""
        if self.call is None or self.rest_seconds is not None:
            return
        whole = self._seconds_of_second(trial)
        self.rest_seconds = max(0.0, whole - seconds)
        self.ratio = min(1.0, whole / seconds) if seconds > 0 else 1.0

    def use(self, trial: Trial) -> None:
        """Replace the times of a promising trial by that of a step."""
        if self.can_time(trial) and not trial.is_whole:
            trial.times = [self._seconds_of_second(trial)]
            trial.rest_seconds = 0.0
            trial.is_whole = True

    def seconds(self, trial: Trial) -> float:
        """Return the time of a step."""
        assert self.call is not None
        count = settings.STEPS_IN_A_ROW if self.task.view.device.type == "cuda" else 1
        seconds = self.task.step_seconds(trial.estimator, self.call, count)
        self.fastest = min(self.fastest, seconds)
        return seconds

    def _seconds_of_second(self, trial: Trial) -> float:
        """Return the time of the second call. The first may compile; that is not counted."""
        assert self.call is not None
        first = self.task.step_seconds(trial.estimator, self.call)
        second = self.seconds(trial)
        self.compiling_seconds += max(0.0, first - second)
        return second
