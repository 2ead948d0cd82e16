"""The pages: each module has the screens of one subject, as functions that take a visit and return a response."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from starlette.convertors import Convertor, register_url_convertor
from starlette.responses import Response

from ..visit import Visit
from . import broker, clients, dead_letters, groups, messages, send, topics, undelivered, users

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

PAGES: tuple[tuple[str, str, Page], ...] = (
    ("GET", "/", broker.overview),
    ("GET", "/topics", topics.topic_list),
    ("POST", "/topics", topics.create),
    ("GET", "/topics/{topic}", messages.message_list),
    ("GET", "/topics/{topic}/{queue:number}/{offset:number}", messages.message_detail),
    ("GET", "/topics/{topic}/{queue:number}/{offset:number}/body", messages.message_body),
    ("GET", "/topics/{topic}/live", topics.live_page),
    ("GET", "/topics/{topic}/live/stream", topics.live_stream),
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
    ("GET", "/store", broker.store),
    ("GET", "/clients", clients.client_list),
    ("GET", "/clients/{connection:number}", clients.connection),
    ("POST", "/clients/{connection:number}/close", clients.close),
    ("GET", "/settings", broker.setting_list),
    ("GET", "/settings/{name}", broker.setting),
    ("POST", "/settings/{name}", broker.change),
    ("GET", "/users", users.user_list),
    ("POST", "/users", users.create),
    ("GET", "/users/{user}", users.user_detail),
    ("POST", "/users/{user}/grant", users.grant),
    ("POST", "/users/{user}/revoke", users.revoke),
    ("POST", "/users/{user}/password", users.change_password),
    ("POST", "/users/{user}/keys", users.add_key),
    ("POST", "/users/{user}/keys/remove", users.remove_key),
    ("POST", "/users/{user}/delete", users.delete),
    ("GET", "/me", users.me),
    ("POST", "/me/end", users.end_session),
)
"""Method, path and function of each page."""
FORM_PAGES: Mapping[Page, Page] = {
    topics.create: topics.topic_list,
    messages.message_list: messages.message_list,
    topics.live_page: topics.live_page,
    send.send_message: send.send_form,
    topics.change: topics.config,
    topics.delete: topics.config,
    groups.reset_preview: groups.group_detail,
    groups.reset: groups.reset_preview,
    groups.delete: groups.group_detail,
    dead_letters.resend: dead_letters.of_group,
    dead_letters.stop: dead_letters.of_group,
    dead_letters.purge: dead_letters.of_group,
    undelivered.end_transaction: undelivered.transaction,
    undelivered.drop_stage: undelivered.stage,
    clients.close: clients.connection,
    broker.change: broker.setting,
    users.create: users.user_list,
    users.grant: users.user_detail,
    users.revoke: users.user_detail,
    users.change_password: users.user_detail,
    users.add_key: users.user_detail,
    users.remove_key: users.user_detail,
    users.delete: users.user_detail,
    users.end_session: users.me,
}
"""The page with the form that a page takes: if it fails, that page is shown again, with the reason and what was
typed."""
