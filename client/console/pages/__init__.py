"""The pages: each module has the screens of one subject, as functions that take a visit and return a response."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.responses import Response

from ..visit import Visit
from . import (
    clients,
    dead_letters,
    groups,
    live,
    me,
    messages,
    overview,
    send,
    settings,
    store,
    topics,
    undelivered,
    users,
)

PAGES: tuple[tuple[str, str, Callable[[Visit], Awaitable[Response]]], ...] = (
    ("GET", "/", overview.overview),
    ("GET", "/topics", topics.topic_list),
    ("POST", "/topics", topics.create),
    ("GET", "/topics/{topic}", messages.message_list),
    ("GET", "/topics/{topic}/{queue:int}/{offset:int}", messages.message_detail),
    ("GET", "/topics/{topic}/{queue:int}/{offset:int}/body", messages.message_body),
    ("GET", "/topics/{topic}/live", live.live_page),
    ("GET", "/topics/{topic}/live/stream", live.live_stream),
    ("GET", "/topics/{topic}/send", send.send_form),
    ("POST", "/topics/{topic}/send", send.send_message),
    ("GET", "/topics/{topic}/queues", topics.queues),
    ("GET", "/topics/{topic}/config", topics.config),
    ("POST", "/topics/{topic}/config", topics.change),
    ("POST", "/topics/{topic}/delete", topics.delete),
    ("GET", "/topics/{topic}/readers", groups.topic_readers),
    ("GET", "/groups", groups.group_list),
    ("GET", "/groups/{group}", groups.group_detail),
    ("GET", "/groups/{group}/reset", groups.reset_preview),
    ("POST", "/groups/{group}/reset", groups.reset),
    ("POST", "/groups/{group}/delete", groups.delete),
    ("GET", "/dlq", dead_letters.overview),
    ("GET", "/dlq/{group}", dead_letters.of_group),
    ("GET", "/dlq/{group}/export", dead_letters.export),
    ("POST", "/dlq/{group}/resend", dead_letters.resend),
    ("POST", "/dlq/{group}/stop", dead_letters.stop),
    ("POST", "/dlq/{group}/purge", dead_letters.purge),
    ("GET", "/search", messages.search),
    ("GET", "/waiting", undelivered.delays),
    ("GET", "/waiting/transactions", undelivered.transactions),
    ("GET", "/waiting/transactions/end", undelivered.transaction),
    ("POST", "/waiting/transactions/end", undelivered.end_transaction),
    ("GET", "/waiting/stages", undelivered.stages),
    ("GET", "/waiting/stages/drop", undelivered.stage),
    ("POST", "/waiting/stages/drop", undelivered.drop_stage),
    ("GET", "/store", store.store),
    ("GET", "/clients", clients.client_list),
    ("GET", "/settings", settings.setting_list),
    ("GET", "/settings/{name}", settings.setting),
    ("POST", "/settings/{name}", settings.change),
    ("GET", "/users", users.user_list),
    ("POST", "/users", users.create),
    ("GET", "/users/{user}", users.user_detail),
    ("POST", "/users/{user}/grant", users.grant),
    ("POST", "/users/{user}/revoke", users.revoke),
    ("POST", "/users/{user}/password", users.change_password),
    ("POST", "/users/{user}/keys", users.add_key),
    ("POST", "/users/{user}/keys/remove", users.remove_key),
    ("POST", "/users/{user}/delete", users.delete),
    ("GET", "/me", me.me),
    ("POST", "/me/end", me.end_session),
)
"""Method, path and function of each page."""
