"""The HTTP interface of the service: its page, its paths, and the status of each error."""

import asyncio
import base64
import hashlib
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
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
from distill.serve.jobs.results import name_directory, rename

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

Endpoint = Callable[[Request], Awaitable[Response]]
JobEndpoint = Callable[[Request, QueuedJob], Awaitable[Response]]


def create_app(service: Service) -> FastAPI:
    """Returns the application with its paths."""
    app = http.create_app(service, "Distillations as jobs.", show_page)
    app.add_middleware(AccountMiddleware, accounts=service.accounts, is_local=service.is_local, hosts=service.hosts)
    paths = Paths(app, service)
    paths.add_jobs()
    paths.add_files()
    paths.add_data()
    paths.add_options()
    return app


class Paths:
    """The paths of a service, each of which answers an error with its status and one line."""

    def __init__(self, app: FastAPI, service: Service) -> None:
        self.app, self.service = app, service

    def _add(self, method: str, path: str, summary: str, endpoint: Endpoint) -> None:
        async def answer(request: Request) -> Response:
            response = await self._answer(request, endpoint)
            self.service.measurements.requests[str(response.status_code)] += 1
            return response

        self.app.add_api_route(path, answer, methods=[method], summary=summary, name=f"{method} {path}")

    def _add_job(self, method: str, path: str, summary: str, endpoint: JobEndpoint) -> None:
        async def answer(request: Request) -> Response:
            found = await asyncio.to_thread(self.service.find_job, find_account(request), request.path_params["id"])
            return await endpoint(request, found)

        self._add(method, f"/jobs/{{id}}{path}", summary, answer)

    async def _answer(self, request: Request, endpoint: Endpoint) -> Response:
        try:
            return await endpoint(request)
        except RefusedError as error:
            return refuse(error.status, self._rename(error))
        except FullQueueError as error:
            return refuse(503, str(error), {"Retry-After": "60"})
        except LiveJobError as error:
            return refuse(409, str(error))
        except UnknownJobError as error:
            return refuse(404, str(error))
        except UserError as error:
            return refuse(422, self._rename(error))
        except OSError as error:
            if not is_full_disk(error):
                raise
            return refuse(507, "the disk of the service is full: delete data sets or jobs")

    def _rename(self, error: Exception) -> str:
        """Returns the text of an error without paths of this machine."""
        return rename(str(error), name_directory(self.service.directory, "the service"))

    def add_jobs(self) -> None:
        """Adds the paths of jobs."""
        service = self.service

        async def submit(request: Request) -> Response:
            account = find_account(request)
            job = await service.submit(account, service.read_request(account, await self._read(request)))
            return JSONResponse(service.describe(job), status_code=201, headers={"Location": f"/jobs/{job.id}"})

        async def plan(request: Request) -> Response:
            account = find_account(request)
            asked = service.read_request(account, await self._read(request))
            with service.data.hold(account.name, asked.data):
                found = await service.plan(asked)
            return JSONResponse({"plan": found.text, "seconds": found.seconds, "notices": found.notices})

        async def list_all(request: Request) -> Response:
            found = await asyncio.to_thread(service.queue.jobs, find_account(request).name)
            return JSONResponse({"jobs": await asyncio.to_thread(lambda: [service.describe(job) for job in found])})

        async def show(request: Request, job: QueuedJob) -> Response:
            return await self._show(job)

        async def retry(request: Request, job: QueuedJob) -> Response:
            await asyncio.to_thread(service.check_quotas, find_account(request))
            return await self._show(await asyncio.to_thread(service.retry, job), status=202)

        async def pin(request: Request, job: QueuedJob) -> Response:
            content = await self._read(request)
            pinned = content.get("pinned") if isinstance(content, dict) else None
            if not isinstance(pinned, bool) or len(content) != 1:
                raise UserError(f'got {shorten(content)}, expected {{"pinned": true}} or {{"pinned": false}}')
            return await self._show(await asyncio.to_thread(service.queue.pin, job.id, pinned))

        self._add("POST", "/jobs", "Submits a job, after a dry run", submit)
        self._add("POST", "/plan", "The dry run of a job", plan)
        self._add("GET", "/jobs", "The jobs, oldest first", list_all)
        self._add_job("GET", "", "A job with its runs and results", show)
        self._add_job("DELETE", "", "Cancels a job, or removes one that has ended, unless cancel=1", self._remove)
        self._add_job("POST", "/retry", "Queues a job again that failed or was cancelled", retry)
        self._add_job("PUT", "/pin", "Keeps a job from being cleaned up", pin)
        self._add_job("GET", "/events", "Events of a job, as they come (server-sent events)", self._follow)
        self._add_job("GET", "/log", "The log of a job from a byte on (offset)", self._read_log)

    async def _show(self, job: QueuedJob, *, status: int = 200) -> Response:
        return JSONResponse(await asyncio.to_thread(self.service.describe, job), status_code=status)

    async def _remove(self, request: Request, job: QueuedJob) -> Response:
        if not job.state.is_end:
            return await self._show(await asyncio.to_thread(self.service.cancel, job), status=202)
        if request.query_params.get("cancel") == "1":  # It has ended meanwhile, and its results stay.
            raise RefusedError(409, f"job {job.id} is {job.state} already: there is nothing to cancel")
        await self.service.remove(job)
        return Response(status_code=204)

    async def _follow(self, request: Request, job: QueuedJob) -> Response:
        """Streams the events after the one of Last-Event-ID; 204 if there will be none."""
        queue = self.service.queue
        given = request.headers.get("last-event-id") or request.query_params.get("after") or "0"
        after = int(given) if NUMBER.fullmatch(given) else 0
        if after and not await asyncio.to_thread(queue.events, job.id, after - 1, 1):
            after = 0  # It is of another job.
        if job.state.is_end and not await asyncio.to_thread(queue.events, job.id, after, 1):
            return Response(status_code=204)  # A browser does not connect again.
        stream = self.service.feeds.watch(job.id, after, lambda: self.service.is_ready)
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        return StreamingResponse(stream, media_type="text/event-stream", headers=headers)

    async def _read_log(self, request: Request, job: QueuedJob) -> Response:
        given = request.query_params.get("offset", "0")
        if not NUMBER.fullmatch(given):
            raise UserError(f"got offset={shorten(given)}, expected a number of bytes of at least 0")
        content = await asyncio.to_thread(read_log, self.service.directory, job.id, int(given), LOG_BYTES)
        return Response(content, media_type="text/plain; charset=utf-8", headers={"X-Content-Type-Options": "nosniff"})

    def add_files(self) -> None:
        """Adds the paths of what a job leaves: its bundle, its student, its report, and the use of the bundle."""

        async def bundle(request: Request, job: QueuedJob) -> Response:
            found = await asyncio.to_thread(self._find_bundle, request, job)
            return _send_zip(found, f"{job.id}.bundle.zip")

        async def student(request: Request, job: QueuedJob) -> Response:
            run = await asyncio.to_thread(self._choose_run, request, job)
            return _send_zip(results.find_student(run), f"{job.id}.student.zip")

        async def report(request: Request, job: QueuedJob) -> Response:
            root, name = self.service.runs_directory(job), request.query_params.get("run")
            found = await asyncio.to_thread(results.find_report, root, name)
            headers = {"Content-Security-Policy": REPORT_POLICY, "X-Content-Type-Options": "nosniff"}
            return FileResponse(found, media_type="text/html", headers=headers)

        async def deploy(request: Request, job: QueuedJob) -> Response:
            found = await asyncio.to_thread(self._find_bundle, request, job)
            return JSONResponse(await self.service.deploy(found))

        self._add_job("GET", "/bundle.zip", "The bundle of a run (run, force=1)", bundle)
        self._add_job("GET", "/student.zip", "The student of a run in torch (run)", student)
        self._add_job("GET", "/report", "The report of a job, or of one run (run)", report)
        self._add_job("POST", "/deploy", "Puts the bundle into the place of the one that is served (run)", deploy)
        for action in ACTIONS:
            self._add_job("POST", f"/{action}", f"/{action} of the bundle, as distill.serve has it (run)", self._ask)

    def _choose_run(self, request: Request, job: QueuedJob) -> Any:
        return results.choose_run(self.service.runs_directory(job), request.query_params.get("run"))

    def _find_bundle(self, request: Request, job: QueuedJob) -> Any:
        force = request.query_params.get("force") == "1"
        return results.find_bundle(self._choose_run(request, job), force=force)

    async def _ask(self, request: Request, job: QueuedJob) -> Response:
        body = await read_body(request, self.service.limits)
        found = await asyncio.to_thread(self._find_bundle, request, job)
        action = request.url.path.rpartition("/")[2]
        reply = await self.service.children.ask(found, action, bytes(body), {"Content-Type": "application/json"})
        return Response(reply.body, status_code=reply.status, media_type=reply.type)

    def add_data(self) -> None:
        """Adds the paths of data sets."""
        service = self.service

        async def put(request: Request) -> Response:
            account, name = find_account(request), request.path_params["name"]
            room = None
            if account.disk is not None:
                room = max(0, account.disk - await asyncio.to_thread(service.usage.disk, account.name))
            given = request.query_params.get("format", "")
            found = await service.data.put(account.name, name, request.stream(), given, room=room)
            return JSONResponse(service.data.preview(account.name, found.name), status_code=201)

        async def list_all(request: Request) -> Response:
            found = await asyncio.to_thread(service.data.list, find_account(request).name)
            return JSONResponse({"data": [one.describe() for one in found]})

        async def show(request: Request) -> Response:
            name = request.path_params["name"]
            return JSONResponse(await asyncio.to_thread(service.data.preview, find_account(request).name, name))

        async def delete(request: Request) -> Response:
            await asyncio.to_thread(service.data.delete, find_account(request).name, request.path_params["name"])
            return Response(status_code=204)

        self._add("GET", "/data", "The data sets", list_all)
        self._add("PUT", "/data/{name}", "Uploads a data set (format)", put)
        self._add("GET", "/data/{name}", "A data set with its columns, first rows, labels, lengths and problems", show)
        self._add("DELETE", "/data/{name}", "Deletes a data set that no job reads", delete)

    def add_options(self) -> None:
        """Adds what the page and machines ask for."""
        service = self.service

        async def options(request: Request) -> Response:
            return JSONResponse(await asyncio.to_thread(offer, service.settings.teachers, service.settings.upload))

        async def metrics(request: Request) -> Response:
            content = await asyncio.to_thread(generate_latest, service.measurements.registry)
            return Response(content, media_type=CONTENT_TYPE_LATEST)

        async def health(request: Request) -> Response:
            if not service.dispatcher.is_alive():
                return refuse(503, "no jobs are started: restart the service")
            return JSONResponse({"status": "ok"})

        self._add("GET", "/options", "What a form offers", options)
        self._add("GET", "/metrics", "Counters for Prometheus", metrics)
        self._add("GET", "/healthz", "Whether jobs are run", health)

    async def _read(self, request: Request) -> Any:
        """Returns the JSON of a request."""
        try:
            return parse_body(await read_body(request, self.service.limits))
        except RecursionError:
            raise RefusedError(400, "the body has lists or objects in too many others") from None


def find_account(request: Request) -> Account:
    """Returns the account that the middleware has found."""
    account: Account = request.scope["account"]
    return account


def _send_zip(directory: Any, name: str) -> Response:
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    return StreamingResponse(results.stream_zip(directory), media_type="application/zip", headers=headers)
