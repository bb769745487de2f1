"""Client of Orrery. `Orrery` and `AsyncOrrery` have the same methods; `types` has the shapes of all responses.

`verify_webhook` checks deliveries, and `orrery_client.worker` turns functions into models.
"""

from ._async import AsyncOrrery
from ._base import Event, Retries, Timeouts
from ._sync import Orrery
from .errors import ApiError, ExecutionFailed, NotConnected, OrreryError, PredictionFailed, WaitTimeout, WebhookError
from .webhooks import verify_webhook

__all__ = [
    "ApiError",
    "AsyncOrrery",
    "Event",
    "ExecutionFailed",
    "NotConnected",
    "Orrery",
    "OrreryError",
    "PredictionFailed",
    "Retries",
    "Timeouts",
    "WaitTimeout",
    "WebhookError",
    "verify_webhook",
]
