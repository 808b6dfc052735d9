"""Getting into the Proxmox API: certificate, reach, password, token, ticket; recorded answers over real TLS."""

from __future__ import annotations

import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from inventory.errors import CannotLook, ConfigError, Exit, Failed
from inventory.proxmox import ProxmoxApi

CT = "/nodes/pve/lxc/200"
TOKEN = {"password": "", "user": "ops@pve", "token_name": "tok", "token_value": "env:PVE_TOKEN"}


class TestCertificate:
    def test_the_right_fingerprint_is_accepted(self, pve: Any, api: ProxmoxApi) -> None:
        pve.on("GET", "/version", "read-version/01-ticket")
        assert api.version() == "9.2.11"

    def test_a_wrong_fingerprint_is_refused_before_any_request(self, pve: Any, connect: Any) -> None:
        with pytest.raises(CannotLook) as caught:
            connect(pve, fingerprint="00" * 32)
        assert pve.cert.fingerprint in caught.value.message
        assert pve.requests == []

    def test_a_wrong_fingerprint_keeps_a_token_from_being_sent(self, pve: Any, connect: Any) -> None:
        api = connect(pve, fingerprint="00" * 32, **TOKEN)
        with pytest.raises(CannotLook, match="another fingerprint"):
            api.version()
        assert pve.requests == []

    def test_a_ca_file_is_enough(self, pve: Any, connect: Any) -> None:
        pve.on("GET", "/version", "read-version/01-ticket")
        assert connect(pve, fingerprint="", ca_file=str(pve.cert.pem)).version() == "9.2.11"

    def test_a_ca_file_does_not_lift_a_wrong_fingerprint(self, pve: Any, connect: Any) -> None:
        with pytest.raises(CannotLook, match="another fingerprint"):
            connect(pve, fingerprint="00" * 32, ca_file=str(pve.cert.pem))
        assert pve.requests == []

    def test_another_ca_is_refused_before_any_request(
        self, pve: Any, connect: Any, scripted: Any, tmp_path: Path
    ) -> None:
        other = scripted.certificate(tmp_path / "other")
        with pytest.raises(CannotLook, match="is not accepted"):
            connect(pve, fingerprint="", ca_file=str(other.pem))
        assert pve.requests == []

    def test_a_ca_file_wants_the_right_name(self, connect: Any, scripted: Any, tmp_path: Path) -> None:
        pve = scripted.Api(scripted.certificate(tmp_path / "tls", address="10.9.9.9")).start()
        try:
            with pytest.raises(CannotLook, match="IP address mismatch"):
                connect(pve, fingerprint="", ca_file=str(pve.cert.pem))
            assert pve.requests == []
        finally:
            pve.close()

    @pytest.mark.parametrize("by", ["fingerprint", "ca_file"])
    def test_an_expired_certificate_is_called_expired(
        self, connect: Any, scripted: Any, tmp_path: Path, by: str
    ) -> None:
        pve = scripted.Api(scripted.certificate(tmp_path / "tls", days=(-30, -1))).start()
        try:
            trust = {"fingerprint": "", "ca_file": str(pve.cert.pem)} if by == "ca_file" else {}
            with pytest.raises(CannotLook, match="expired") as caught:
                connect(pve, **trust)
            assert "this machine's clock says" in caught.value.message
            assert pve.requests == []
        finally:
            pve.close()

    def test_without_ca_and_fingerprint_nothing_is_tried(self, pve: Any, connect: Any) -> None:
        with pytest.raises(ConfigError, match="neither ca_file nor fingerprint"):
            connect(pve, fingerprint="")
        assert pve.requests == []

    def test_a_missing_ca_file_is_a_configuration_error(self, pve: Any, connect: Any) -> None:
        with pytest.raises(ConfigError, match="does not exist"):
            connect(pve, fingerprint="", ca_file="nowhere.pem")

    def test_bundles_and_proxies_of_the_environment_change_nothing(
        self, pve: Any, connect: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for variable in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY"):
            monkeypatch.setenv(variable, "http://127.0.0.1:9")
        monkeypatch.setenv("REQUESTS_CA_BUNDLE", "/nowhere")
        pve.on("GET", "/version", "read-version/01-ticket")
        assert connect(pve).version() == "9.2.11"


class TestReach:
    def test_a_closed_port_is_said(self, pve: Any, connect: Any) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        with pytest.raises(CannotLook, match="Connection refused") as caught:
            connect(pve, url=f"https://127.0.0.1:{port}")
        assert caught.value.exit_code is Exit.UNKNOWN

    def test_an_unknown_name_is_said(self, pve: Any, connect: Any) -> None:
        with pytest.raises(CannotLook, match="not known"):
            connect(pve, url="https://no-such-host.invalid:8006")

    def test_a_server_without_tls_is_said(self, pve: Any, connect: Any) -> None:
        with socket.socket() as plain:
            plain.bind(("127.0.0.1", 0))
            plain.listen(1)

            def greet() -> None:
                connection, _ = plain.accept()
                with connection:
                    connection.recv(100)
                    connection.sendall(b"HTTP/1.0 400 Bad Request\r\n\r\n")

            threading.Thread(target=greet, daemon=True).start()
            with pytest.raises(CannotLook, match="does not speak TLS"):
                connect(pve, url=f"https://127.0.0.1:{plain.getsockname()[1]}")

    def test_a_silent_server_ends_at_the_time_limit(self, pve: Any, connect: Any) -> None:
        with socket.socket() as silent:
            silent.bind(("127.0.0.1", 0))
            silent.listen(1)
            began = time.monotonic()
            with pytest.raises(CannotLook):
                connect(pve, url=f"https://127.0.0.1:{silent.getsockname()[1]}", timeout_s=0.4)
            assert time.monotonic() - began < 4

    def test_another_web_server_is_not_taken_for_proxmox(self, pve: Any, connect: Any, scripted: Any) -> None:
        pve.on("POST", "/access/ticket", scripted.Reply(body="<html>welcome</html>"))
        with pytest.raises(CannotLook, match="does not answer like a Proxmox VE API"):
            connect(pve)

    def test_a_redirect_is_not_followed_with_the_password(self, pve: Any, connect: Any, scripted: Any) -> None:
        away = scripted.Reply(307, "Temporary Redirect", headers=(("Location", pve.url + "/api2/json/elsewhere"),))
        pve.on("POST", "/access/ticket", away).on("POST", "/elsewhere", "login-good/01-root")
        with pytest.raises(Failed, match="307"):
            connect(pve)
        assert [request.path for request in pve.requests] == ["/access/ticket"]

    def test_a_read_is_repeated_when_the_connection_breaks(self, pve: Any, api: ProxmoxApi, scripted: Any) -> None:
        pve.on(
            "GET", "/version", scripted.DROP, scripted.Reply(596, ""), scripted.recorded("read-version/01-ticket")
        )
        assert api.version() == "9.2.11"
        assert len(pve.asked("GET", "/version")) == 3

    def test_a_read_that_never_gets_an_answer_is_unknown(self, pve: Any, api: ProxmoxApi, scripted: Any) -> None:
        pve.on("GET", "/version", scripted.Reply(595, "Connection refused"))
        with pytest.raises(CannotLook, match="595"):
            api.version()


class TestLogin:
    def test_a_wrong_password_is_one_sentence_without_it(self, pve: Any, connect: Any) -> None:
        pve.on("POST", "/access/ticket", "login-renew/03-renew-expired")
        with pytest.raises(CannotLook) as caught:
            connect(pve)
        assert "refuses the password of root@pam: authentication failure" in caught.value.message
        assert "correct horse" not in caught.value.message + caught.value.hint + repr(caught.value.__context__)

    def test_a_second_factor_is_explained(self, pve: Any, connect: Any, scripted: Any) -> None:
        pve.on("POST", "/access/ticket", scripted.data({"ticket": "x", "CSRFPreventionToken": "y", "NeedTFA": 1}))
        with pytest.raises(CannotLook, match="second factor"):
            connect(pve)

    def test_a_refused_token_is_named(self, pve: Any, connect: Any) -> None:
        pve.on("GET", "/version", "unauth-token/01-token-wrong-secret")
        with pytest.raises(CannotLook, match="refuses the token ops@pve!tok: Authentication failed!"):
            connect(pve, **TOKEN).version()
        assert len(pve.requests) == 1

    def test_a_token_travels_in_its_header_only(self, pve: Any, connect: Any) -> None:
        pve.on("GET", "/version", "read-version/01-ticket")
        connect(pve, **TOKEN).version()
        (request,) = pve.requests
        assert request.headers["Authorization"] == "PVEAPIToken=ops@pve!tok=11111111-2222-3333-4444-555555555555"
        assert "Cookie" not in request.headers

    def test_an_expired_ticket_is_renewed_once_and_the_call_repeated(self, pve: Any, api: ProxmoxApi) -> None:
        pve.on("GET", "/version", "unauth-ticket/05-ticket-expired", "read-version/01-ticket")
        assert api.version() == "9.2.11"
        assert len(pve.asked("POST", "/access/ticket")) == 2

    def test_a_ticket_that_stays_refused_does_not_loop(self, pve: Any, api: ProxmoxApi) -> None:
        pve.on("GET", "/version", "unauth-ticket/05-ticket-expired")
        with pytest.raises(CannotLook, match="Authentication failed!"):
            api.version()
        assert len(pve.asked("POST", "/access/ticket")) == 2

    def test_an_old_ticket_is_replaced_before_it_is_used(self, pve: Any, api: ProxmoxApi) -> None:
        pve.on("GET", "/version", "read-version/01-ticket")
        api._wire._ticket._born -= 3700
        api.version()
        assert [request.path for request in pve.requests] == ["/access/ticket", "/access/ticket", "/version"]

    def test_writes_carry_the_csrf_token_and_reads_do_not(self, pve: Any, api: ProxmoxApi, scripted: Any) -> None:
        pve.on("POST", f"{CT}/status/start", scripted.Reply(500, "CT 200 already running"))
        pve.on("GET", "/version", "read-version/01-ticket")
        api.version()
        api.start("pve", 200, timeout_s=5)
        assert "CSRFPreventionToken" not in pve.asked("GET", "/version")[0].headers
        assert pve.asked("POST", f"{CT}/status/start")[0].headers["CSRFPreventionToken"].startswith("6B0D70FB:")

    def test_importing_the_client_keeps_the_warnings_of_the_process(self, api: ProxmoxApi) -> None:
        import warnings

        from urllib3.exceptions import HTTPWarning

        assert not any(
            entry[0] == "ignore" and entry[2] is HTTPWarning for entry in warnings.filters if len(entry) > 2
        )
