"""The broker's certificate: errors name the setting of an unusable file, and a bad new certificate changes nothing."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from flintmq.broker.config import load_settings
from flintmq.broker.security.tls import TlsFiles
from flintmq.protocol.errors import ConfigurationError
from tests.tls_tools import Authority


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.mark.parametrize(
    ("assignments", "why"),
    [
        (
            ["security.tls_certificate=a.pem"],
            r"security\.tls_certificate = 'a\.pem' \(--set\): TLS also needs .*tls_key",
        ),
        (["security.tls_key=a.pem"], r"TLS also needs security\.tls_certificate"),
        (["security.tls_client_ca=a.pem"], r"TLS also needs security\.tls_key"),
        (["security.tls_min=1.1"], r"security\.tls_min = '1\.1' \(--set\): must be \"1\.2\" or \"1\.3\""),
        (["security.auth=basic"], r"must be \"off\" or \"scram\""),
    ],
)
def test_settings_that_do_not_go_together(assignments: list[str], why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        load_settings(config=None, environment={}, assignments=assignments, flags={})


def test_files_that_cannot_be_used(authority: Authority, tmp_path: Path) -> None:
    mine, other = authority.issue("mine"), authority.issue("other")
    junk = tmp_path / "junk.pem"
    junk.write_text("junk")
    nowhere = str(tmp_path / "none.pem")
    for certificate, key, client_ca, why in (
        (nowhere, mine.key, "", r"security\.tls_certificate = .*none\.pem': cannot read the file: No such file"),
        (mine.certificate, nowhere, "", r"security\.tls_key = .*none\.pem': cannot read the file: No such file"),
        (mine.certificate, other.key, "", "the key must belong to it"),
        (str(junk), mine.key, "", "both must be PEM"),
        (mine.certificate, mine.key, nowhere, r"security\.tls_client_ca = .*: cannot read the file"),
        (mine.certificate, mine.key, str(junk), r"security\.tls_client_ca .* must be PEM"),
    ):
        with pytest.raises(ConfigurationError, match=why):
            TlsFiles(certificate, key, client_ca, "1.2")


def test_an_encrypted_key_is_refused_without_a_prompt(authority: Authority, tmp_path: Path) -> None:
    from cryptography.hazmat.primitives import serialization

    mine = authority.issue("encrypted")
    key = serialization.load_pem_private_key(Path(mine.key).read_bytes(), None)
    encrypted = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"secret")
    )
    Path(mine.key).write_bytes(encrypted)
    with pytest.raises(ConfigurationError, match="the key is encrypted, and the broker cannot ask for its password"):
        TlsFiles(mine.certificate, mine.key, "", "1.2")


def test_new_files_are_taken_when_both_are_there(authority: Authority, caplog: pytest.LogCaptureFixture) -> None:
    files, new = authority.issue("files"), authority.issue("new")
    tls = TlsFiles(files.certificate, files.key, "", "1.2")
    before = tls.context
    tls.refresh()
    assert tls.context is before
    shutil.copy(new.key, files.key)
    tls.refresh()
    assert tls.context is before
    assert "keeping the previous certificate" in caplog.text
    caplog.clear()
    tls.refresh()
    assert caplog.text == ""  # once is enough
    shutil.copy(new.certificate, files.certificate)
    tls.refresh()
    assert tls.context is not before
    assert (tls.reloads, tls.reload_failures) == (1, 1)


def test_a_key_that_everybody_can_read_is_warned_about(authority: Authority, caplog: pytest.LogCaptureFixture) -> None:
    files = authority.issue("open")
    Path(files.key).chmod(0o644)
    TlsFiles(files.certificate, files.key, "", "1.2")
    assert "every user of this machine can read the key" in caplog.text
