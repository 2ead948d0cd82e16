"""Security: users and their authentication, permissions, TLS and the audit log."""
