"""Errors of a registry. Each says what a person can do."""

from __future__ import annotations


class RegistryError(Exception):
    """The registry did not do what was asked. A change that raises it was not applied, and never will be."""


class EndpointError(RegistryError):
    """One endpoint cannot serve; another one may."""


class RegistryUnreachable(EndpointError):
    """No connection could be opened, or it ended or fell silent before the response."""


class RegistryUnavailable(EndpointError):
    """The registry answers that it cannot serve now: it has no leader, for example, or no room."""


class NotARegistry(EndpointError):
    """The endpoint answers, but not as etcd does."""


class UnsafeRegistry(EndpointError):
    """The endpoint runs a version of etcd that may lose or contradict what it has answered."""


class RegistryCredentialsRejected(RegistryError):
    """The registry does not accept this broker's user, password or certificate."""


class RegistryPermissionDenied(RegistryError):
    """The registry knows this broker's user, but does not let it use the keys of the set."""


class RegistryRefused(RegistryError):
    """The registry refused the request for another reason."""


class MalformedRegistry(RegistryError):
    """The registry holds a configuration that this version cannot use."""


class ConfigTooLong(RegistryError):
    """The configuration is longer than the registry may hold."""


class OutcomeUnknown(Exception):
    """No response came to a change that was sent. It may be applied now, later, or never."""
