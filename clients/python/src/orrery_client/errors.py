"""What the client raises. Every error is an `OrreryError`."""

from __future__ import annotations

from typing import Any, Optional

from .types import Execution, Prediction


class OrreryError(Exception):
    """Every error of this package."""


class ApiError(OrreryError):
    """The service rejected a request. Rely on `status`, not on the message."""

    def __init__(self, status: int, message: str, hint: Optional[str], details: Any, request_id: Optional[str]) -> None:
        self.status = status
        self.message = message
        self.hint = hint
        """What to change, if the service says so."""
        self.details = details
        """More information, such as every violation of a schema."""
        self.request_id = request_id
        """The request in the service's log."""
        text = f"{status}: {message}"
        super().__init__(f"{text} ({hint})" if hint else text)


class NotConnected(OrreryError):
    """No response: the connection failed, or a named timeout has passed. The cause is in `__cause__`."""


class WaitTimeout(OrreryError):
    """The work has not ended in the time given to `wait`. It continues; `last` is its state."""

    def __init__(self, last: Any) -> None:
        super().__init__(f"still {last['status']}; it continues, and can be waited for again")
        self.last = last


class PredictionFailed(OrreryError):
    """The prediction that `run` waited for failed or was cancelled."""

    def __init__(self, prediction: Prediction) -> None:
        classification = prediction["error_classification"] or prediction["status"]
        super().__init__(f"{classification}: {prediction['error'] or 'the prediction was cancelled'}")
        self.prediction = prediction


class ExecutionFailed(OrreryError):
    """The execution that `run` waited for failed or was cancelled."""

    def __init__(self, execution: Execution) -> None:
        cause = execution["error_cause"] or "the execution was cancelled"
        super().__init__(f"{execution['error'] or execution['status']}: {cause}")
        self.execution = execution


class WebhookError(OrreryError):
    """A webhook that cannot be trusted. Answer it with 401."""
