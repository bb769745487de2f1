"""The asynchronous client, which `clients/generate` also makes `_sync.py` from. Change this file, then run it."""

from __future__ import annotations

import asyncio
import math
import os
import uuid
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import Any, AsyncIterator, Dict, List, Mapping, Optional, Type, Union, cast

import httpx

from . import _base
from ._base import Event, Retries, Timeouts, given, path
from .errors import ApiError, ExecutionFailed, NotConnected, PredictionFailed, WaitTimeout
from .types import (
    EventAccepted,
    Execution,
    ExecutionAccepted,
    ExecutionCancelled,
    File,
    Model,
    Prediction,
    PredictionAccepted,
    Workflow,
    WorkflowDefinition,
)

Json = Mapping[str, Any]


class AsyncOrrery:
    """The asynchronous client of one service. Use it as a context manager, or close it. It can be used concurrently.

    `url` is the base host, `key` an API key; without them, the environment's ORRERY_URL and ORRERY_API_KEY count.
    """

    def __init__(
        self,
        url: Optional[str] = None,
        key: Optional[str] = None,
        *,
        timeouts: Timeouts = Timeouts(),
        retries: Retries = Retries(),
        verify: Any = True,
    ) -> None:
        """`verify` is passed to httpx, such as an `ssl.SSLContext` that trusts the service's own authority."""
        key = key or os.environ.get("ORRERY_API_KEY")
        self.url = (url or os.environ.get("ORRERY_URL") or "http://127.0.0.1:8080").rstrip("/")
        self.timeouts, self.retries = timeouts, retries
        # A link carries its own authorization, and may lead to another server: the key is sent to the service only.
        self._key = {"X-API-Key": key} if key else {}
        self._http = httpx.AsyncClient(verify=verify, timeout=timeouts.of_httpx(), follow_redirects=False)
        self.models = AsyncModels(self)
        self.predictions = AsyncPredictions(self)
        self.workflows = AsyncWorkflows(self)
        self.files = AsyncFiles(self)

    async def aclose(self) -> None:
        """Closes the connections."""
        await self._http.aclose()

    async def __aenter__(self) -> AsyncOrrery:
        return self

    async def __aexit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        await self.aclose()

    async def request(self, method: str, url: str, *, idempotency_key: Optional[str] = None, hold: float = 0, **more: Any) -> Any:
        """Sends a request to any route, such as `("GET", "/v1/limits")`, and returns the JSON of the response.

        `more` is passed to httpx (`json`, `params`, `headers`). With an `idempotency_key`, on the routes that accept
        one, a POST is also repeated if its response is lost. `hold` is how long the service may hold the response.
        """
        response = await self.send(method, url, idempotency_key=idempotency_key, hold=hold, **more)
        return response.json() if response.content else None

    async def send(
        self,
        method: str,
        url: str,
        *,
        idempotency_key: Optional[str] = None,
        hold: float = 0,
        is_stream: bool = False,
        headers: Optional[Mapping[str, str]] = None,
        **more: Any,
    ) -> httpx.Response:
        """Sends a request, repeats it where that is safe, and returns a successful response."""
        is_link = not url.startswith("/")
        sent = {**({} if is_link else self._key), **(headers or {}), **given(**{"Idempotency-Key": idempotency_key})}
        timeout = self.timeouts.of_httpx(hold, is_stream)
        attempt = 0
        while True:
            attempt += 1
            request = self._http.build_request(method, url if is_link else self.url + url, headers=sent, timeout=timeout, **more)
            result: Union[httpx.Response, httpx.HTTPError]
            try:
                result = await self._http.send(request, stream=is_stream)
                if result.is_success:
                    return result
                await result.aread()
                await result.aclose()
                retry_after = result.headers.get("retry-after")
            except httpx.HTTPError as error:
                result, retry_after = error, None
            delay = None
            if _base.is_retried(method, idempotency_key is not None, attempt, result):
                delay = self.retries.delay(attempt, retry_after)
            if delay is None:
                if isinstance(result, httpx.Response):
                    raise _base.error_of(result)
                raise NotConnected(f"{method} {url}: {result or type(result).__name__}") from result
            # httpx itself reads the files of a form from their beginning again.
            await asyncio.sleep(delay)

    async def follow(self, url: str) -> AsyncIterator[Event]:
        """The events of a stream, which is resumed after a lost connection, until `end`."""
        events = _base.Events()
        lost = 0
        while True:
            headers = {"Accept": "text/event-stream", **given(**{"Last-Event-ID": events.last_id})}
            response = await self.send("GET", url, is_stream=True, headers=headers)
            events.clear()
            cause: Optional[httpx.HTTPError] = None
            try:
                # The client has received `end`.
                if response.status_code == 204:
                    return
                async for line in response.aiter_lines():
                    event = events.line(line)
                    if event:
                        lost = 0
                        yield event
                        if event.type == "end":
                            return
            except httpx.TransportError as error:
                cause = error
            finally:
                await response.aclose()
            lost += 1
            delay = self.retries.delay(lost)
            if delay is None:
                raise NotConnected(f"{url}: the stream ended before the work did") from cause
            await asyncio.sleep(delay)


class AsyncModels:
    """The catalog."""

    def __init__(self, client: AsyncOrrery) -> None:
        self._client = client

    async def list(self, name: Optional[str] = None, *, limit: int = 50, offset: int = 0) -> List[Model]:
        """A page of the models, by slug; `name` is a part of the slug or the title."""
        params = given(name=name, limit=limit, offset=offset, format="catalog")
        return cast("List[Model]", await self._client.request("GET", "/v1/models", params=params))

    async def get(self, slug: str) -> Model:
        """A model with the schema of its input."""
        url = path("v1", "models", *slug.split("/"))
        return cast(Model, await self._client.request("GET", url, params={"format": "catalog"}))


class AsyncPredictions:
    """Runs of one model."""

    def __init__(self, client: AsyncOrrery) -> None:
        self._client = client

    async def create(
        self,
        model: str,
        input: Json,
        *,
        version: str = "0.0.1",
        webhook_url: Optional[str] = None,
        webhook_secret: Optional[str] = None,
        fallback_selector: Optional[str] = None,
        idempotency_key: Optional[str] = None,
    ) -> PredictionAccepted:
        """Creates a prediction, once, even if the request is repeated. Its id is `["predictionID"]`.

        For 24 hours, the same `idempotency_key` and body return the same prediction; without one, each call has its own.
        """
        body = given(
            model=model,
            version=version,
            input=input,
            webhook_url=webhook_url,
            webhook_secret=webhook_secret,
            fallback_selector=fallback_selector,
        )
        key = idempotency_key or str(uuid.uuid4())
        answer = await self._client.request("POST", "/v1/prediction", json=body, idempotency_key=key)
        return cast(PredictionAccepted, answer)

    async def run(
        self,
        model: str,
        input: Json,
        *,
        timeout: Optional[float] = None,
        version: str = "0.0.1",
        fallback_selector: Optional[str] = None,
        idempotency_key: Optional[str] = None,
    ) -> Prediction:
        """Creates a prediction, waits for it, and returns it. Raises `PredictionFailed` unless it succeeds."""
        accepted = await self.create(
            model, input, version=version, fallback_selector=fallback_selector, idempotency_key=idempotency_key
        )
        prediction = await self.wait(accepted["predictionID"], timeout=timeout)
        if prediction["status"] != "success":
            raise PredictionFailed(prediction)
        return prediction

    async def get(self, id: str) -> Prediction:
        """The prediction as it is now."""
        return cast(Prediction, await self._client.request("GET", path("v1", "prediction", id)))

    async def wait(self, id: str, *, timeout: Optional[float] = None) -> Prediction:
        """Waits until the prediction ends, however it ends. Raises `WaitTimeout` after `timeout` seconds."""
        url = path("v1", "prediction", id)
        return cast(Prediction, await _wait(self._client, url, "wait", _base.PREDICTION_HOLD_S, timeout))

    def stream(self, id: str) -> AsyncIterator[Event]:
        """The prediction's events: `status`, `log`, `output`, `reset`, and finally `end` with the prediction."""
        return self._client.follow(path("v1", "prediction", id, "events"))

    async def cancel(self, id: str) -> PredictionAccepted:
        """Cancels the prediction, also repeatedly. Raises `ApiError` with status 409 if it has ended otherwise."""
        answer = await self._client.request("POST", path("v1", "prediction", id, "cancel"))
        return cast(PredictionAccepted, answer)


class AsyncWorkflows:
    """Workflows and their executions. A workflow is named by its slug or its id."""

    def __init__(self, client: AsyncOrrery) -> None:
        self._client = client

    async def get(self, workflow: str) -> Workflow:
        """A workflow with its versions."""
        return cast(Workflow, await self._client.request("GET", path("v1", "workflows", workflow)))

    async def push(self, name: str, definition: Union[WorkflowDefinition, Json], *, description: str = "") -> Workflow:
        """Makes the definition the latest version of the workflow with this name or slug.

        Creates a missing workflow, adds a version (`v` and the next number) if the definition differs from the latest,
        and changes nothing otherwise.
        """
        id = await self._find(name)
        if id is None:
            body = given(name=name, definition=definition, description=description or None)
            key = str(uuid.uuid4())
            return cast(Workflow, await self._client.request("POST", "/v1/workflows", json=body, idempotency_key=key))
        while True:
            workflow = await self.get(id)
            versions = path("v1", "workflows", workflow["workflow_id"], "versions")
            latest = await self._client.send("GET", f"{versions}/{workflow['latest_version_id']}")
            if latest.json()["definition"] == definition:
                return workflow
            version = _base.new_version(one["version_id"] for one in workflow["versions"])
            headers = {"If-Match": latest.headers["etag"]}
            try:
                await self._client.request("PUT", f"{versions}/{version}", json={"definition": definition}, headers=headers)
            except ApiError as error:
                # Somebody else, or an attempt whose response was lost, has changed the workflow: read it again.
                if error.status != 412:
                    raise

    async def _find(self, name: str) -> Optional[str]:
        """The id of the workflow with this slug, or else with this name."""
        found: Dict[bool, str] = {}
        offset, total = 0, 1
        while offset < total:
            params: Dict[str, Any] = {"keyword": name, "limit": 100, "offset": offset}
            page = await self._client.request("GET", "/v1/workflows", params=params)
            for one in page["workflows"]:
                if name in (one["slug"], one["name"]):
                    found.setdefault(one["slug"] == name, one["workflow_id"])
            offset, total = offset + 100, page["total_count"]
        return found.get(True) or found.get(False)

    async def trigger(
        self,
        workflow: str,
        inputs: Optional[Json] = None,
        *,
        version: Optional[str] = None,
        webhook_url: Optional[str] = None,
        webhook_secret: Optional[str] = None,
        idempotency_key: Optional[str] = None,
    ) -> ExecutionAccepted:
        """Starts an execution, once, even if the request is repeated. Its id is `["execution_id"]`."""
        body = given(inputs=inputs, version_id=version, webhook_url=webhook_url, webhook_secret=webhook_secret)
        key = idempotency_key or str(uuid.uuid4())
        url = path("v1", "workflows", workflow, "trigger")
        return cast(ExecutionAccepted, await self._client.request("POST", url, json=body, idempotency_key=key))

    async def run(
        self,
        workflow: str,
        inputs: Optional[Json] = None,
        *,
        timeout: Optional[float] = None,
        version: Optional[str] = None,
        idempotency_key: Optional[str] = None,
    ) -> Execution:
        """Triggers the workflow, waits, and returns the execution. Raises `ExecutionFailed` unless it completes."""
        accepted = await self.trigger(workflow, inputs, version=version, idempotency_key=idempotency_key)
        execution = await self.wait(accepted["execution_id"], timeout=timeout)
        if execution["status"] != "completed":
            raise ExecutionFailed(execution)
        return execution

    async def execution(self, id: str) -> Execution:
        """The execution as it is now."""
        return cast(Execution, await self._client.request("GET", _execution(id), params={"timeout": 0}))

    async def wait(self, id: str, *, timeout: Optional[float] = None) -> Execution:
        """Waits until the execution ends, however it ends. Raises `WaitTimeout` after `timeout` seconds."""
        return cast(Execution, await _wait(self._client, _execution(id), "timeout", _base.EXECUTION_HOLD_S, timeout))

    def follow(self, id: str) -> AsyncIterator[Event]:
        """The execution's events: `status`, `step`, `wait`, `pause`, `resume`, `reset`, and finally `end` with it."""
        return self._client.follow(_execution(id, "events"))

    async def send_event(self, id: str, name: str, payload: Any) -> EventAccepted:
        """Sends the event that a step waits for, such as an approval. Only one is accepted: never repeated by itself."""
        url = _execution(id, "events", name)
        return cast(EventAccepted, await self._client.request("POST", url, json={"payload": payload}))

    async def cancel(self, id: str) -> ExecutionCancelled:
        """Cancels the execution. Raises `ApiError` with status 409 if it has ended."""
        return cast(ExecutionCancelled, await self._client.request("POST", _execution(id, "cancel")))

    async def redrive(self, id: str, *, idempotency_key: Optional[str] = None) -> ExecutionAccepted:
        """Starts a new execution from a failed or cancelled one, which reuses the outputs of its completed steps."""
        key = idempotency_key or str(uuid.uuid4())
        url = _execution(id, "redrive")
        return cast(ExecutionAccepted, await self._client.request("POST", url, json={}, idempotency_key=key))


class AsyncFiles:
    """Inputs and outputs that are files."""

    def __init__(self, client: AsyncOrrery) -> None:
        self._client = client

    async def upload(
        self,
        content: _base.Upload,
        *,
        filename: Optional[str] = None,
        content_type: str = "application/octet-stream",
        expires_in_seconds: Optional[int] = None,
    ) -> File:
        """Uploads bytes, an open binary file, or the file at a path. Its `url` can be the input of a model."""
        if isinstance(content, (str, Path)):
            with open(content, "rb") as file:
                return await self.upload(
                    file,
                    filename=filename or Path(content).name,
                    content_type=content_type,
                    expires_in_seconds=expires_in_seconds,
                )
        files = {"file": (filename or "file", content, content_type)}
        data = given(expires_in_seconds=expires_in_seconds)
        return cast(File, await self._client.request("POST", "/v1/files", files=files, data=data))

    async def get(self, id: str) -> File:
        """The file's record."""
        return cast(File, await self._client.request("GET", path("v1", "files", id)))

    async def download(self, file: str, to: Union[str, Path, None] = None) -> bytes:
        """The bytes of a file, by its id or by a URL such as the output of a prediction.

        With `to`, writes them to that path and returns nothing but `b""`.
        """
        url = file if "://" in file else path("v1", "files", file, "content")
        if to is None:
            return (await self._client.send("GET", url)).content
        response = await self._client.send("GET", url, is_stream=True)
        try:
            with open(to, "wb") as output:
                async for part in response.aiter_bytes():
                    output.write(part)
        except httpx.TransportError as error:
            raise NotConnected(f"{url}: the download was interrupted") from error
        finally:
            await response.aclose()
        return b""

    async def delete(self, id: str) -> None:
        """Deletes the file, also repeatedly. Its URL stops working at once."""
        await self._client.request("DELETE", path("v1", "files", id))


def _execution(id: str, *more: str) -> str:
    return path("v1", "workflows", "executions", id, *more)


async def _wait(client: AsyncOrrery, url: str, name: str, longest: int, timeout: Optional[float]) -> Dict[str, Any]:
    """Long polls until the status is final; `name` is the parameter that holds the response."""
    deadline = None if timeout is None else monotonic() + timeout
    while True:
        left = math.inf if deadline is None else max(deadline - monotonic(), 0)
        hold = min(longest, math.ceil(left)) if left < longest else longest
        state = cast("Dict[str, Any]", await client.request("GET", url, params={name: hold}, hold=hold))
        if state["status"] in _base.FINAL:
            return state
        if deadline is not None and monotonic() >= deadline:
            raise WaitTimeout(state)
