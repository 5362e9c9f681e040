"""The HTTP interface of the service: its page, its paths, and the status of each error."""

import asyncio
import base64
import hashlib
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cache, partial
from importlib.resources import files
from inspect import iscoroutinefunction
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import FileResponse, HTMLResponse, JSONResponse, Response, StreamingResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from distill.core.errors import UserError, shorten
from distill.core.files import is_full_disk
from distill.serve import http
from distill.serve.http import RefusedError, parse_body, read_body, refuse
from distill.serve.jobs import results
from distill.serve.jobs.accounts import Account, AccountMiddleware
from distill.serve.jobs.attempts import read_log
from distill.serve.jobs.deployment import ACTIONS
from distill.serve.jobs.job_service import Service, offer
from distill.serve.jobs.queue import FullQueueError, LiveJobError, QueuedJob, UnknownJobError

# Nothing is loaded from elsewhere, no other page frames it, and no text becomes markup or code.
_POLICY = (
    "default-src 'none'; script-src {script}; style-src {style}; connect-src 'self'; img-src data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)


@dataclass(frozen=True)
class Page:
    """A page and its policy.

    Attributes:
        html: with one script and one style, inline.
        policy: the value of the header `Content-Security-Policy`, which allows these two by their hashes.
    """

    html: str
    policy: str


@cache
def load_page() -> Page:
    """Returns the page of the service, the same for every request."""
    html = files("distill.serve.jobs").joinpath("page.html").read_text(encoding="utf-8")
    return Page(html, _POLICY.format(script=_hash(html, "script"), style=_hash(html, "style")))


def show_page() -> Response:
    """Returns the page with its policy."""
    page = load_page()
    return HTMLResponse(page.html, headers={"Content-Security-Policy": page.policy})


def _hash(html: str, tag: str) -> str:
    """Returns the source expression of the only element of a tag (Content Security Policy 3, section 2.3.1)."""
    [content] = re.findall(rf"<{tag}>(.*?)</{tag}>", html, re.DOTALL)
    digest = hashlib.sha256(content.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


LOG_BYTES = 1_000_000  # Of a log in one answer.
# A report may run its own script, and neither reads anything of the service nor sends anything anywhere.
REPORT_POLICY = (
    "sandbox allow-scripts allow-popups; default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "img-src data:; font-src data:"
)
NUMBER = re.compile(r"[0-9]{1,15}", re.ASCII)

# The statuses of errors that are no refusals, the narrowest class first.
STATUSES = {FullQueueError: 503, LiveJobError: 409, UnknownJobError: 404, UserError: 422}

Endpoint = Callable[..., Any]  # Of a request, and of a job where the path names one.
Decorator = Callable[[Endpoint], Endpoint]


def create_app(service: Service) -> FastAPI:
    """Returns the application with its paths."""
    app = http.create_app(service, "Distillations as jobs.", show_page)
    app.add_middleware(AccountMiddleware, accounts=service.accounts, is_local=service.is_local, hosts=service.hosts)
    routes = Routes(app, service)
    for add in (add_jobs, add_progress, add_files, add_data, add_options):
        add(routes, service)
    return app


class Routes:
    """The paths of a service, each of which answers an error with its status and one line.

    Endpoints that are no coroutines run in a thread, because they read files.
    """

    def __init__(self, app: FastAPI, service: Service) -> None:
        self.app, self.service = app, service

    def add(self, method: str, path: str, summary: str) -> Decorator:
        """Returns a decorator that adds an endpoint. One with an id in its path also gets that job of the account."""

        def decorate(endpoint: Endpoint) -> Endpoint:
            async def answer(request: Request) -> Response:
                try:
                    jobs = [await self._find(request)] if "id" in request.path_params else []
                    response = await _call(endpoint, request, *jobs)
                except (RefusedError, UserError, OSError) as error:
                    response = self._refuse(error)
                self.service.measurements.requests[str(response.status_code)] += 1
                return response

            self.app.add_api_route(path, answer, methods=[method], summary=summary, name=f"{method} {path}")
            return endpoint

        return decorate

    async def _find(self, request: Request) -> QueuedJob:
        return await asyncio.to_thread(self.service.find_job, find_account(request), request.path_params["id"])

    def _refuse(self, error: Exception) -> Response:
        """Returns the answer to an error, without paths of this machine."""
        if isinstance(error, OSError):
            if not is_full_disk(error):
                raise error
            return refuse(507, "the disk of the service is full: delete data sets or jobs")
        known = (status for kind, status in STATUSES.items() if isinstance(error, kind))
        status = error.status if isinstance(error, RefusedError) else next(known)
        reason = results.rename(str(error), results.name_directory(self.service.directory, "the service"))
        return refuse(status, reason, {"Retry-After": "60"} if isinstance(error, FullQueueError) else None)


async def _call(endpoint: Endpoint, *arguments: Any) -> Response:
    """Returns the answer of an endpoint."""
    call = endpoint if iscoroutinefunction(endpoint) else partial(asyncio.to_thread, endpoint)
    response: Response = await call(*arguments)
    return response


def find_account(request: Request) -> Account:
    """Returns the account that the middleware has found."""
    account: Account = request.scope["account"]
    return account


async def _read(request: Request, service: Service) -> Any:
    """Returns the JSON of a request."""
    try:
        return parse_body(await read_body(request, service.limits))
    except RecursionError:
        raise RefusedError(400, "the body has lists or objects in too many others") from None


def add_jobs(routes: Routes, service: Service) -> None:
    """Adds the paths that submit, show and change jobs."""

    @routes.add("POST", "/jobs", "Submits a job, after a dry run")
    async def submit(request: Request) -> Response:
        account = find_account(request)
        job = await service.submit(account, service.read_request(account, await _read(request, service)))
        return JSONResponse(service.describe(job), status_code=201, headers={"Location": f"/jobs/{job.id}"})

    @routes.add("POST", "/plan", "The dry run of a job")
    async def plan(request: Request) -> Response:
        account = find_account(request)
        asked = service.read_request(account, await _read(request, service))
        with service.data.hold(account.name, asked.data):
            return JSONResponse(asdict(await service.plan(asked)))

    @routes.add("GET", "/jobs", "The jobs, oldest first")
    def list_jobs(request: Request) -> Response:
        jobs = service.queue.jobs(find_account(request).name)
        return JSONResponse({"jobs": [service.describe(job) for job in jobs]})

    @routes.add("GET", "/jobs/{id}", "A job with its runs and results")
    def show(request: Request, job: QueuedJob) -> Response:
        return JSONResponse(service.describe(job))

    @routes.add("DELETE", "/jobs/{id}", "Cancels a job, or removes one that has ended, unless cancel=1")
    async def remove(request: Request, job: QueuedJob) -> Response:
        if not job.state.is_end:
            return await asyncio.to_thread(cancel, job)
        if request.query_params.get("cancel") == "1":  # It has ended meanwhile, and its results stay.
            raise RefusedError(409, f"job {job.id} is {job.state} already: there is nothing to cancel")
        await service.remove(job)
        return Response(status_code=204)

    def cancel(job: QueuedJob) -> Response:
        return JSONResponse(service.describe(service.cancel(job)), status_code=202)

    @routes.add("POST", "/jobs/{id}/retry", "Queues a job again that failed or was cancelled")
    def retry(request: Request, job: QueuedJob) -> Response:
        service.usage.check_quotas(find_account(request))
        return JSONResponse(service.describe(service.retry(job)), status_code=202)

    @routes.add("PUT", "/jobs/{id}/pin", "Keeps a job from being cleaned up")
    async def pin(request: Request, job: QueuedJob) -> Response:
        content = await _read(request, service)
        pinned = content.get("pinned") if isinstance(content, dict) else None
        if not isinstance(pinned, bool) or len(content) != 1:
            raise UserError(f'got {shorten(content)}, expected {{"pinned": true}} or {{"pinned": false}}')
        return JSONResponse(await asyncio.to_thread(lambda: service.describe(service.queue.pin(job.id, pinned))))


def add_progress(routes: Routes, service: Service) -> None:
    """Adds the paths of the events and the log of a job."""
    queue = service.queue

    @routes.add("GET", "/jobs/{id}/events", "Events of a job, as they come (server-sent events)")
    def follow(request: Request, job: QueuedJob) -> Response:
        """Streams the events after the one of Last-Event-ID; 204 if there will be none."""
        given = request.headers.get("last-event-id") or request.query_params.get("after") or "0"
        after = int(given) if NUMBER.fullmatch(given) else 0
        if after and not queue.events(job.id, after - 1, 1):
            after = 0  # It is of another job.
        if job.state.is_end and not queue.events(job.id, after, 1):
            return Response(status_code=204)  # A browser does not connect again.
        stream = service.feeds.watch(job.id, after, lambda: service.is_ready)
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        return StreamingResponse(stream, media_type="text/event-stream", headers=headers)

    @routes.add("GET", "/jobs/{id}/log", "The log of a job from a byte on (offset)")
    def show_log(request: Request, job: QueuedJob) -> Response:
        given = request.query_params.get("offset", "0")
        if not NUMBER.fullmatch(given):
            raise UserError(f"got offset={shorten(given)}, expected a number of bytes of at least 0")
        content = read_log(service.directory, job.id, int(given), LOG_BYTES)
        return Response(content, media_type="text/plain; charset=utf-8", headers={"X-Content-Type-Options": "nosniff"})


def add_files(routes: Routes, service: Service) -> None:
    """Adds the paths of what a job leaves: its bundle, its student, its report, and the use of the bundle."""

    def choose_run(request: Request, job: QueuedJob) -> Path:
        return results.choose_run(service.runs_directory(job), request.query_params.get("run"))

    def find_bundle(request: Request, job: QueuedJob) -> Path:
        return results.find_bundle(choose_run(request, job), force=request.query_params.get("force") == "1")

    @routes.add("GET", "/jobs/{id}/bundle.zip", "The bundle of a run (run, force=1)")
    def send_bundle(request: Request, job: QueuedJob) -> Response:
        return _send_zip(find_bundle(request, job), f"{job.id}.bundle.zip")

    @routes.add("GET", "/jobs/{id}/student.zip", "The student of a run in torch (run)")
    def send_student(request: Request, job: QueuedJob) -> Response:
        return _send_zip(results.find_student(choose_run(request, job)), f"{job.id}.student.zip")

    @routes.add("GET", "/jobs/{id}/report", "The report of a job, or of one run (run)")
    def send_report(request: Request, job: QueuedJob) -> Response:
        report = results.find_report(service.runs_directory(job), request.query_params.get("run"))
        headers = {"Content-Security-Policy": REPORT_POLICY, "X-Content-Type-Options": "nosniff"}
        return FileResponse(report, media_type="text/html", headers=headers)

    @routes.add("POST", "/jobs/{id}/deploy", "Puts the bundle into the place of the one that is served (run)")
    async def deploy(request: Request, job: QueuedJob) -> Response:
        return JSONResponse(await service.deploy(await asyncio.to_thread(find_bundle, request, job)))

    async def ask(request: Request, job: QueuedJob) -> Response:
        body = await read_body(request, service.limits)
        bundle = await asyncio.to_thread(find_bundle, request, job)
        action = request.url.path.rpartition("/")[2]
        return await service.children.ask(bundle, action, bytes(body))

    for action in ACTIONS:
        routes.add("POST", f"/jobs/{{id}}/{action}", f"/{action} of the bundle, as distill.serve has it (run)")(ask)


def _send_zip(directory: Path, name: str) -> Response:
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    return StreamingResponse(results.stream_zip(directory), media_type="application/zip", headers=headers)


def add_data(routes: Routes, service: Service) -> None:
    """Adds the paths of data sets."""
    data = service.data

    @routes.add("GET", "/data", "The data sets")
    def list_data(request: Request) -> Response:
        return JSONResponse({"data": [one.describe() for one in data.list(find_account(request).name)]})

    @routes.add("PUT", "/data/{name}", "Uploads a data set (format)")
    async def put(request: Request) -> Response:
        account, name = find_account(request), request.path_params["name"]
        room = None
        if account.disk is not None:
            room = max(0, account.disk - await asyncio.to_thread(service.usage.disk, account.name))
        await data.put(account.name, name, request.stream(), request.query_params.get("format", ""), room=room)
        return JSONResponse(data.preview(account.name, name), status_code=201)

    @routes.add("GET", "/data/{name}", "A data set with its columns, first rows, labels, lengths and problems")
    def show(request: Request) -> Response:
        return JSONResponse(data.preview(find_account(request).name, request.path_params["name"]))

    @routes.add("DELETE", "/data/{name}", "Deletes a data set that no job reads")
    def delete(request: Request) -> Response:
        data.delete(find_account(request).name, request.path_params["name"])
        return Response(status_code=204)


def add_options(routes: Routes, service: Service) -> None:
    """Adds what the page and machines ask for."""

    @routes.add("GET", "/options", "What a form offers")
    def options(request: Request) -> Response:
        return JSONResponse(offer(service.settings.teachers, service.settings.upload))

    @routes.add("GET", "/metrics", "Counters for Prometheus")
    def metrics(request: Request) -> Response:
        return Response(generate_latest(service.measurements.registry), media_type=CONTENT_TYPE_LATEST)

    @routes.add("GET", "/healthz", "Whether jobs are run")
    def health(request: Request) -> Response:
        if not service.dispatcher.is_alive():
            return refuse(503, "no jobs are started: restart the service")
        return JSONResponse({"status": "ok"})
