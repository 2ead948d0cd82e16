"""The console's pages for administrators in a real browser: the same rules as for every other page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.browser.conftest import Tab, axe_findings, misfits, open_tab, sideways
from tests.security_tools import PASSWORD

if TYPE_CHECKING:
    from playwright.async_api import Browser

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="module")]

PATHS = ["/users", "/users/shop", "/users/nobody", "/clients", "/clients/{own}", "/me"]


async def logged_in(browser: Browser, console: str, **options: Any) -> Tab:
    """Return a tab in which ``ops`` is logged in."""
    tab = await open_tab(browser, **options)
    await tab.page.goto(f"{console}/login")
    await tab.page.fill("[name=user]", "ops")
    await tab.page.fill("[name=password]", PASSWORD)
    await tab.page.keyboard.press("Enter")
    await tab.page.wait_for_url(f"{console}/")
    return tab


async def urls(tab: Tab, console: str) -> list[str]:
    """Return the URLs of the pages; that of a connection is the console's own."""
    await tab.page.goto(f"{console}/clients")
    own = await tab.page.get_attribute("tbody a[data-dialog]", "href")
    return [console + path.replace("/clients/{own}", own or "") for path in PATHS]


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_pages_of_administrators_are_free_of_errors_and_fit_a_phone(
    browser: Browser, guarded_console: str, scheme: str
) -> None:
    tab = await logged_in(browser, guarded_console, color_scheme=scheme)
    found = await misfits(tab, await urls(tab, guarded_console))
    await tab.page.context.close()
    assert found == []


async def test_no_page_of_administrators_scrolls_sideways(browser: Browser, guarded_console: str) -> None:
    tab = await logged_in(browser, guarded_console)
    found = await sideways(tab, await urls(tab, guarded_console))
    await tab.page.context.close()
    assert found == [], "\n".join(found)


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_axe_finds_nothing_in_the_pages_of_administrators(
    browser: Browser, guarded_console: str, scheme: str
) -> None:
    tab = await logged_in(browser, guarded_console, color_scheme=scheme, bypass_csp=True)
    found = [each for url in await urls(tab, guarded_console) for each in await axe_findings(tab, url)]
    await tab.page.context.close()
    assert found == [], "\n".join(found)


async def test_a_user_is_added_and_gets_a_right_by_the_keyboard_alone(browser: Browser, guarded_console: str) -> None:
    tab = await logged_in(browser, guarded_console)
    page = tab.page
    await page.keyboard.press("g")
    await page.keyboard.press("u")
    await page.wait_for_url("**/users")
    await page.focus("summary")
    await page.keyboard.press("Enter")
    await page.keyboard.press("Tab")
    await page.keyboard.type("new")
    await page.keyboard.press("Enter")
    await page.wait_for_selector("text=Its password is shown only here")
    await page.goto(f"{guarded_console}/users/new")
    await page.focus("[name=right]")
    await page.keyboard.type("consume on a topic")
    await page.keyboard.press("Tab")
    await page.keyboard.type("orders")
    await page.keyboard.press("Enter")
    await page.wait_for_selector("text=new may consume on topic orders")
    assert "consume on topic orders" in await page.inner_text("tbody")
    assert tab.faults == []
    await page.context.close()


async def test_a_user_is_changed_and_deleted_without_javascript(browser: Browser, guarded_console: str) -> None:
    tab = await logged_in(browser, guarded_console, java_script_enabled=False)
    page = tab.page
    await page.goto(f"{guarded_console}/users")
    await page.click("summary")
    await page.fill("[name=user]", "brief")
    await page.click("button:has-text('Add')")
    await page.click("text=rights and keys of the user")
    await page.click("summary:has-text('Delete')")
    await page.fill("[action$=delete] [name=name]", "brief")
    await page.click("text=Delete this user")
    assert "user brief is deleted" in await page.inner_text("[role=status]")
    await page.context.close()


async def test_a_connection_is_closed_by_the_keyboard_in_a_dialog(browser: Browser, guarded_console: str) -> None:
    tab = await logged_in(browser, guarded_console)
    page = tab.page
    await page.goto(f"{guarded_console}/clients")
    await page.focus("tbody tr:last-child a[data-dialog]")
    await page.keyboard.press("Enter")
    await page.wait_for_selector("dialog[open] #dialog-title")
    await page.focus("dialog button.danger")
    await page.keyboard.press("Enter")
    await page.wait_for_selector("[role=status]:has-text('is closed; its client may connect again')")
    assert tab.faults == []
    await page.context.close()
