"""The one door to the Hugging Face Hub: identity, listing, tokens, and its errors in our words."""

from __future__ import annotations

import os
import ssl
import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from inventory.errors import CannotLook, ConfigError, Failed, GpuctlError, Refused
from provision.weights.model import Listing, RemoteFile, Wanted
from provision.weights.patience import PASSING_STATUS, Passing, Patience, retry_after_s, tries

if TYPE_CHECKING:
    import httpx2
    from huggingface_hub import HfApi

_FIXED = {
    "HF_HUB_DISABLE_XET": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "HF_HUB_DISABLE_UPDATE_CHECK": "1",
}


def _library() -> Any:
    """huggingface_hub, which reads its environment once, when it is imported."""
    os.environ.update(_FIXED)
    import huggingface_hub

    return huggingface_hub


class Hub:
    """One Hub, one token. Every call is bounded and retried; every failure is a `GpuctlError`."""

    def __init__(
        self, wanted: Wanted, patience: Patience, stop: threading.Event, note: Callable[[str], None]
    ) -> None:
        self._wanted = wanted
        self._patience = patience
        self._stop = stop
        self._note = note
        library = _library()
        from huggingface_hub import constants
        from huggingface_hub.utils._headers import build_hf_headers

        self.endpoint = wanted.endpoint or str(constants.ENDPOINT)
        # A token saved on the machine is for the public Hub; it must not leak to a mirror somebody named.
        token = wanted.token or (False if wanted.endpoint else None)
        self._api: HfApi = library.HfApi(endpoint=self.endpoint, token=token, library_name="gpuctl")
        self.headers: Mapping[str, str] = build_hf_headers(token=token, library_name="gpuctl")
        self._has_token = "authorization" in {name.lower() for name in self.headers}
        self._client: httpx2.Client | None = None
        _bound_requests(patience)

    def listing(self) -> Listing:
        """Commit, sizes and digests of the wanted revision, in one answer so that they belong together.

        Raises `ConfigError` (no such repository or revision, gated without token, token not accepted),
        `Refused` (gated, access not granted), `CannotLook` (the Hub cannot be reached).
        """
        info = self._call(
            lambda: self._api.model_info(
                self._wanted.repo,
                revision=self._wanted.revision,
                files_metadata=True,
                timeout=self._patience.stall_s,
            )
        )
        commit = str(info.sha)
        files = [self._sibling(entry) for entry in info.siblings or ()]
        if any(file is None for file in files):
            files = list(self._tree(commit))
        known = tuple(file for file in files if file is not None)
        if len(commit) != 40 or not known:
            raise self._not_a_hub(f"it lists {len(known)} files for commit {commit!r}")
        gated = bool(info.gated)
        if gated:
            self._call(lambda: self._api.auth_check(self._wanted.repo))
        return Listing(self._wanted.repo, commit, known, gated)

    def url(self, commit: str, path: str) -> str:
        return f"{self.endpoint}/{self._wanted.repo}/resolve/{commit}/{quote(path)}"

    def stream(self, url: str, headers: Mapping[str, str]) -> AbstractContextManager[httpx2.Response]:
        """A GET whose body is read by the caller; the token is not sent on to another origin."""
        import httpx2

        if self._client is None:
            limits = httpx2.Timeout(self._patience.stall_s, connect=self._patience.connect_s)
            self._client = httpx2.Client(verify=_tls(), follow_redirects=True, timeout=limits, max_redirects=10)
        return self._client.stream("GET", url, headers={**self.headers, **headers, "Accept-Encoding": "identity"})

    def close(self) -> None:
        if self._client is not None:
            self._client.close()

    def _sibling(self, entry: Any) -> RemoteFile | None:
        """A file of the listing; None when a mirror left its size or identity out."""
        if entry.lfs is not None:
            return RemoteFile(str(entry.rfilename), int(entry.lfs.size), sha256=str(entry.lfs.sha256))
        if entry.size is None or not entry.blob_id:
            return None
        return RemoteFile(str(entry.rfilename), int(entry.size), git_sha1=str(entry.blob_id))

    def _tree(self, commit: str) -> tuple[RemoteFile, ...]:
        entries = self._call(
            lambda: list(self._api.list_repo_tree(self._wanted.repo, recursive=True, revision=commit))
        )
        files = []
        for entry in entries:
            if not hasattr(entry, "blob_id"):
                continue
            if entry.lfs is not None:
                files.append(RemoteFile(entry.path, int(entry.lfs.size), sha256=entry.lfs.sha256))
            else:
                files.append(RemoteFile(entry.path, int(entry.size), git_sha1=entry.blob_id))
        return tuple(files)

    def _call(self, ask: Callable[[], Any]) -> Any:
        try:
            for attempt in tries(self._patience, self._stop, self._note):
                with attempt:
                    return self._once(ask)
        except Passing as error:
            raise error.final from error
        raise AssertionError("unreachable")

    def _once(self, ask: Callable[[], Any]) -> Any:
        import httpx2
        from huggingface_hub.errors import OfflineModeIsEnabled

        try:
            return ask()
        except OfflineModeIsEnabled:
            raise CannotLook(
                f"{self._wanted.repo}: the Hub may not be asked because HF_HUB_OFFLINE is set",
                hint="unset it, or stage once with a cache folder while online",
            ) from None
        except httpx2.HTTPStatusError as error:
            raise self.refusal(error.response) from error
        except httpx2.HTTPError as error:
            # The library's own HfHubHTTPError carries the response but is no HTTPStatusError.
            response = getattr(error, "response", None)
            raise (self.unreachable(error) if response is None else self.refusal(response)) from error
        except (ValueError, KeyError, TypeError) as error:
            raise self._not_a_hub(f"its answer is not the Hub's protocol ({type(error).__name__})") from error

    def unreachable(self, error: Exception) -> Passing:
        """A transport failure: no HTTP answer came."""
        reason = str(error) or type(error).__name__
        return Passing(
            f"{self.endpoint}: {reason}",
            CannotLook(
                f"{self._wanted.repo}: the Hub at {self.endpoint} cannot be reached: {reason}",
                hint="check network, proxy and name resolution; with a filled cache folder none is needed",
            ),
        )

    def refusal(self, response: httpx2.Response) -> Exception:
        """An HTTP error status as the exception to raise: `Passing`, or what the user must do."""
        repo, status = self._wanted.repo, response.status_code
        code = response.headers.get("X-Error-Code", "")
        said = response.headers.get("X-Error-Message", "") or f"HTTP status {status}"
        if status in PASSING_STATUS:
            asked = retry_after_s(response.headers.get("Retry-After"))
            final = CannotLook(
                f"{repo}: the Hub at {self.endpoint} keeps answering with HTTP status {status}",
                hint=f"it asks to wait {asked:.0f} s" if asked else "it is overloaded or down; run again later",
            )
            return Passing(f"{self.endpoint} answered {status}", final, retry_after_s=asked)
        if code == "GatedRepo":
            return self._gated()
        if code == "RevisionNotFound":
            return ConfigError(
                f"{repo} has no revision {self._wanted.revision!r}",
                hint="name a branch, a tag or a full commit id",
            )
        if code == "EntryNotFound":
            return Failed(
                f"{repo}: {said}", hint="the Hub lists a file that it does not have; try another revision"
            )
        if status == 401 and self._has_token and code != "RepoNotFound":
            return ConfigError(
                f"{repo}: the Hub at {self.endpoint} does not accept the access token",
                hint="it is wrong, expired or revoked: make a new one and update what the inventory's token names",
            )
        if code == "RepoNotFound" or status in (401, 404):
            also = "" if self._has_token else ", or it is private and needs a token"
            return ConfigError(
                f"the Hub at {self.endpoint} has no repository {repo}{also}",
                hint="check its spelling (owner/name, case matters) and that the token may read it",
            )
        return Failed(f"{repo}: the Hub at {self.endpoint} refuses: {said}", hint="check the token's permissions")

    def _gated(self) -> GpuctlError:
        page = f"{self.endpoint}/{self._wanted.repo}"
        if not self._has_token:
            return ConfigError(
                f"{self._wanted.repo} is gated and no access token was given",
                hint=f"accept its terms at {page} and set token: in the inventory (env:, file: or command:)",
            )
        return Refused(
            f"{self._wanted.repo} is gated and the owner of the access token has not been granted access",
            hint=f"ask for access at {page}, or use the token of an account that has it",
        )

    def _not_a_hub(self, reason: str) -> CannotLook:
        return CannotLook(
            f"{self._wanted.repo}: what answers at {self.endpoint} is not a Hub: {reason}",
            hint="check endpoint: in the inventory and HF_ENDPOINT; a network login page answers like this too",
        )


@lru_cache(maxsize=1)
def _tls() -> ssl.SSLContext:
    """One for all clients: reading the certificate authorities takes longer than small models do."""
    import httpx2

    return httpx2.create_ssl_context()


def _bound_requests(patience: Patience) -> None:
    """Give the library's own client time limits: its listing calls have none."""
    import httpx2
    from huggingface_hub import set_client_factory
    from huggingface_hub.utils._http import hf_request_event_hook

    limits = httpx2.Timeout(patience.stall_s, connect=patience.connect_s).as_dict()

    def bound(request: httpx2.Request) -> None:
        given = request.extensions.get("timeout") or {}
        request.extensions["timeout"] = {
            name: limit if given.get(name) is None else given[name] for name, limit in limits.items()
        }

    set_client_factory(
        lambda: httpx2.Client(
            verify=_tls(),
            event_hooks={"request": [hf_request_event_hook, bound]},
            follow_redirects=True,
            timeout=None,
        )
    )
