"""The login page, and the page whose rows `page.js` fills in. Every text is escaped by `tag`; nothing is inline but
what is no script and no style."""

from __future__ import annotations

import hashlib
from importlib import resources

from egs_core.dashboard.sessions import Session
from egs_core.dashboard.snapshot import SECTIONS, Section
from egs_core.dashboard.usage import SPANS, WORDS
from egs_core.report.html import Markup, linked_head, tag

PATH = "/dashboard"
ASSETS = {
    name: (resources.files("egs_core.dashboard") / name).read_bytes() for name in ("page.css", "page.js", "view.js")
}
NAVIGATION = (("", "Now"), ("/workloads", "Workloads"), ("/plan", "Plan"), ("/usage", "Usage"))
VERSION = hashlib.sha256(b"".join(ASSETS.values())).hexdigest()[:12]


def login_page(problem: str = "") -> str:
    """problem: why the last try did not do."""
    field = tag(
        "input",
        type="password",
        id="token",
        name="token",
        required=True,
        autofocus=True,
        maxlength=200,
        autocomplete="current-password",
        spellcheck="false",
        aria_describedby="problem hint" if problem else "hint",
        aria_invalid="true" if problem else None,
    )
    form = tag(
        "form",
        tag("p", problem, id="problem", role="alert", class_="problem") if problem else None,
        tag("label", "Token", for_="token"),
        field,
        tag("button", "Log in", type="submit"),
        method="post",
        action=f"{PATH}/login",
        class_="login",
    )
    hint = tag(
        "p",
        "A token of this server: ",
        tag("code", "egs token create --role viewer --team TEAM"),
        " makes one, for an admin; the one of the user who runs the server is in the file that ",
        tag("code", "egs serve"),
        " names when it starts.",
        id="hint",
        class_="note",
    )
    return _page("log in", tag("main", tag("h1", "EGS: log in"), form, hint), scripts=())


def entered_page(session: Session) -> str:
    """The answer to a login, and the only one that tells the session's secret: its script keeps that, and goes on."""
    words = tag(
        "p", "The dashboard needs JavaScript, and storage for its pages; ", tag("code", "egs top"), " does not."
    )
    return _page("logging in", tag("main", words), scripts=("page.js",), data_csrf=session.csrf)


def main_page(session: Session) -> str:
    """Whoever has but the cookie reads who is logged in, and nothing else."""
    links = [tag("a", section.title, href=f"#{name}", data_count=name) for name, section in SECTIONS.items()]
    status = tag("p", "Loading…", id="status", role="status", aria_live="polite")
    body = tag(
        "main",
        tag("header", tag("h1", "EGS"), status, _log_out(session)),
        _navigation(""),
        *_words(),
        tag("nav", *links, aria_label="Tables"),
        *(_section(name, section) for name, section in SECTIONS.items()),
        _dialog(),
    )
    data = {"data_role": session.me.role, "data_name": session.me.name}
    return _page("dashboard", body, scripts=("page.js",), **data)


def view_page(session: Session, title: str, place: str, parts: tuple[str, ...], view: str, of: str = "") -> str:
    """A page that is made of parts, which come later: see `views`. place: of it in the navigation."""
    body = tag(
        "main",
        tag("header", tag("div", id="part-title"), _log_out(session)),
        _navigation(place),
        *_words(),
        _spans(of) if view == "usage" else None,
        *(tag("div", id=f"part-{name}") for name in parts),
    )
    return _page(title, body, scripts=("view.js", "page.js"), class_="log", data_view=view, data_of=of)


def _navigation(place: str) -> Markup:
    links = [
        tag("a", name, href=PATH + path, aria_current="page" if path == place else None) for path, name in NAVIGATION
    ]
    return tag("nav", *links, aria_label="Pages")


def _spans(over: str) -> Markup:
    links = [
        tag("a", WORDS[one], href=f"{PATH}/usage/{one}", aria_current="page" if one == over else None) for one in SPANS
    ]
    return tag("nav", "The last ", *links, aria_label="Time")


def _words() -> tuple[Markup, Markup]:
    """Where the script cannot help, and what it says of trouble."""
    no_script = tag("p", "The figures here need JavaScript; ", tag("code", "egs top"), " shows them in a terminal.")
    problem = tag("p", "", id="problem", role="alert", class_="problem", hidden=True)
    return tag("noscript", no_script), problem


def _log_out(session: Session) -> Markup:
    me = session.me
    team = "all teams" if me.every_team else f"team {me.team}" if me.team else "no team"
    return tag(
        "form",
        tag("span", f"{me.name}, {me.role}, {team} "),
        tag("input", type="hidden", id="csrf", name="csrf"),
        tag("button", "Log out", type="submit"),
        method="post",
        action=f"{PATH}/logout",
    )


def _section(name: str, section: Section) -> Markup:
    head = [tag("th", column.head, scope="col", data_kind=column.kind) for column in section.columns]
    table = tag(
        "table",
        tag("caption", section.title, class_="unseen"),
        tag("thead", tag("tr", *head)),
        tag("tbody"),
    )
    return tag(
        "section",
        tag("h2", section.title, id=f"h-{name}"),
        tag("div", table, class_="scroll", tabindex=0, role="region", aria_labelledby=f"h-{name}"),
        tag("p", section.empty, class_="empty", hidden=True),
        id=name,
    )


def _dialog() -> Markup:
    """Asked before a change: which run, why, and whether."""
    return tag(
        "dialog",
        tag(
            "form",
            tag("h2", "", id="ask"),
            tag(
                "div",
                tag("label", "Reason, for the log (may be empty)", for_="reason"),
                tag("input", id="reason", name="reason", maxlength=200, autocomplete="off"),
                id="with-reason",
            ),
            tag(
                "div",
                tag("label", "Priority: of two in a queue the higher one goes first", for_="number"),
                tag("input", id="number", type="number", step=1, min=-1_000_000, max=1_000_000, required=True),
                id="with-number",
                hidden=True,
            ),
            tag("p", "", id="refused", role="alert", class_="problem", hidden=True),
            tag("button", "Yes", type="submit", id="yes"),
            tag("button", "No", type="button", id="no"),
            method="dialog",
        ),
        aria_labelledby="ask",
    )


def _page(title: str, body: Markup, *, scripts: tuple[str, ...], **data: str) -> str:
    linked = [f"{PATH}/assets/{name}?{VERSION}" for name in scripts]
    head = linked_head(title, f"{PATH}/assets/page.css?{VERSION}", *linked)
    return f"<!doctype html>\n{tag('html', head, tag('body', body, **data), lang='en')}\n"
