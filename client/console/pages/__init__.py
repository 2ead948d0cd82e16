"""The pages: each module has the screens of one subject, as functions that take a visit and return a response."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.convertors import Convertor, register_url_convertor
from starlette.responses import Response

from ..visit import Visit
from . import broker, groups, messages, topics, undelivered, users

Page = Callable[[Visit], Awaitable[Response]]


class _Number(Convertor[int]):
    """A number in a path. Starlette's own ``int`` takes any number of digits, and Python refuses to read more than
    4,300."""

    regex = "[0-9]{1,19}"

    def convert(self, value: str) -> int:
        return int(value)

    def to_string(self, value: int) -> str:
        return str(value)


register_url_convertor("number", _Number())

PAGES: tuple[tuple[str, str, Page, Page | None], ...] = (
    ("GET", "/", broker.overview, None),
    ("GET", "/topics", topics.topic_list, None),
    ("POST", "/topics", topics.create, topics.topic_list),
    ("GET", "/topics/{topic}", messages.message_list, messages.message_list),
    ("GET", "/topics/{topic}/{queue:number}/{offset:number}", messages.message_detail, None),
    ("GET", "/topics/{topic}/{queue:number}/{offset:number}/body", messages.message_body, None),
    ("GET", "/topics/{topic}/live", topics.live_page, topics.live_page),
    ("GET", "/topics/{topic}/live/stream", topics.live_stream, None),
    ("GET", "/topics/{topic}/send", messages.send_form, None),
    ("POST", "/topics/{topic}/send", messages.send_message, messages.send_form),
    ("GET", "/topics/{topic}/queues", topics.queues, None),
    ("GET", "/topics/{topic}/config", topics.config, None),
    ("POST", "/topics/{topic}/config", topics.change, topics.config),
    ("POST", "/topics/{topic}/delete", topics.delete, topics.config),
    ("GET", "/topics/{topic}/readers", groups.topic_readers, None),
    ("GET", "/groups", groups.group_list, None),
    ("GET", "/groups/{group}", groups.group_detail, None),
    ("GET", "/groups/{group}/reset", groups.reset_preview, groups.group_detail),
    ("POST", "/groups/{group}/reset", groups.reset, groups.reset_preview),
    ("POST", "/groups/{group}/delete", groups.delete, groups.group_detail),
    ("GET", "/dlq", undelivered.dead_letters, None),
    ("GET", "/dlq/{group}", undelivered.of_group, None),
    ("GET", "/dlq/{group}/export", undelivered.export, None),
    ("POST", "/dlq/{group}/resend", undelivered.resend, undelivered.of_group),
    ("POST", "/dlq/{group}/stop", undelivered.stop, undelivered.of_group),
    ("POST", "/dlq/{group}/purge", undelivered.purge, undelivered.of_group),
    ("GET", "/search", messages.search, None),
    ("GET", "/waiting", undelivered.delays, None),
    ("GET", "/waiting/transactions", undelivered.transactions, None),
    ("GET", "/waiting/transactions/end", undelivered.transaction, None),
    ("POST", "/waiting/transactions/end", undelivered.end_transaction, undelivered.transaction),
    ("GET", "/waiting/stages", undelivered.stages, None),
    ("GET", "/waiting/stages/drop", undelivered.stage, None),
    ("POST", "/waiting/stages/drop", undelivered.drop_stage, undelivered.stage),
    ("GET", "/store", broker.store, None),
    ("GET", "/clients", broker.client_list, None),
    ("GET", "/clients/{connection:number}", broker.connection, None),
    ("POST", "/clients/{connection:number}/close", broker.close_connection, broker.connection),
    ("GET", "/settings", broker.setting_list, None),
    ("GET", "/settings/{name}", broker.setting, None),
    ("POST", "/settings/{name}", broker.change_setting, broker.setting),
    ("GET", "/users", users.user_list, None),
    ("POST", "/users", users.create, users.user_list),
    ("GET", "/users/{user}", users.user_detail, None),
    ("POST", "/users/{user}/grant", users.grant, users.user_detail),
    ("POST", "/users/{user}/revoke", users.revoke, users.user_detail),
    ("POST", "/users/{user}/password", users.change_password, users.user_detail),
    ("POST", "/users/{user}/keys", users.add_key, users.user_detail),
    ("POST", "/users/{user}/keys/remove", users.remove_key, users.user_detail),
    ("POST", "/users/{user}/delete", users.delete, users.user_detail),
    ("GET", "/me", users.me, None),
    ("POST", "/me/end", users.end_session, users.me),
)
"""Method, path and function of each page, and the page with the form that it takes: if it fails, that page is shown
again, with the reason and what was typed."""
