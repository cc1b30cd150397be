"""The playground's page in a real browser: typing, pointing, tapping, reading."""

from __future__ import annotations

import os
import re
import shutil

import pytest

from tests.playground.toys import BARE, RUN, SAVED_MODEL, Server, Toy

sync_api = pytest.importorskip(
    "playwright.sync_api", reason="no playwright: it drives the browser"
)
expect = sync_api.expect
ARGUMENTS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run "
    "--disable-background-networking --disable-component-update --disable-sync"
).split()
TEXT = "an old man"


def chromium():
    """Returns the program's path; skips the tests where there is none."""
    names = (
        os.environ.get("CHROMIUM", "chromium"),
        "chromium-browser",
        "google-chrome",
    )
    path = next(filter(None, map(shutil.which, names)), None)
    if path is None:
        pytest.skip("no Chromium: CHROMIUM or the PATH must name it")
    return path


@pytest.fixture(scope="module")
def browser():
    path = chromium()
    with sync_api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
        yield started
        started.close()


@pytest.fixture
def toys():
    return [Toy(RUN), Toy(SAVED_MODEL)]


@pytest.fixture
def server(toys):
    with Server(toys, ("en", "de"), max_text_length=60) as running:
        yield running
        for toy in toys:
            toy.go.set()


@pytest.fixture
def open_page(browser):
    """Opens pages; they must ask their own server alone, and log no error."""
    contexts, asked, errors = [], set(), []

    def opened(server, width=1000, **options):
        size = {"width": width, "height": 740}
        contexts.append(browser.new_context(viewport=size, **options))
        page = contexts[-1].new_page()
        page.set_default_timeout(20_000)
        page.on("request", lambda request: asked.add(request.url))
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on(
            "console",
            lambda message: message.type == "error" and errors.append(message.text),
        )
        page.goto(server.url)
        expect(page.locator("body")).to_have_attribute("data-ready", "true")
        page.server = server
        return page

    yield opened
    urls = tuple(f"{page.server.url}/" for c in contexts for page in c.pages)
    for context in contexts:
        context.close()
    assert asked and all(url.startswith((*urls, "data:")) for url in asked)
    # What a server refuses, or one that has gone, the browser itself tells.
    told = re.compile("Failed to load resource")
    assert [error for error in errors if not told.match(error)] == []


def panel(page, place=0):
    return page.locator(".model").nth(place)


def translation(page, place=0):
    return panel(page, place).locator(".target")


def units(page, side, place=0):
    return panel(page, place).locator(f'[data-side="{side}"] .unit')


def enter(page, text, expected=None, place=0):
    page.locator("#source").fill(text)
    expect(translation(page, place)).to_have_text(
        text.upper() if expected is None else expected
    )


def weights(page, side, place=0):
    found = units(page, side, place).all()
    return [
        unit.evaluate("e => +e.style.getPropertyValue('--weight')") for unit in found
    ]


def picture(page, path):
    content = page.screenshot(path=path, full_page=True)
    assert content.startswith(b"\x89PNG") and len(content) > 10_000
    assert (
        page.evaluate("document.scrollingElement.scrollWidth")
        <= page.viewport_size["width"]
    )


def test_it_translates_what_is_typed_and_lights_up_what_is_pointed_at(
    server, open_page, tmp_path
):
    page = open_page(server)
    expect(page).to_have_title("English to German")
    page.locator("#source").press_sequentially(TEXT)
    for place in (0, 1):
        expect(translation(page, place)).to_have_text("AN OLD MAN")
        expect(panel(page, place).locator(".note")).to_have_text(
            re.compile(r"^\d+ ms$")
        )
    others = panel(page).locator(".others-list li")
    expect(others).to_have_text([
        "AN OLD MAN -1.00", "An Old Man -2.00", "AN OLD MAN -3.00", "an old man! -4.00",
    ])  # fmt: skip
    expect(units(page, "target")).to_have_text(["AN", "OLD", "MAN", "</s>"])
    told = panel(page).locator(".told")
    expect(told).to_have_text(re.compile("^Point at a word"))
    units(page, "target").nth(1).hover()
    expect(told).to_have_text("“OLD” looks at old 75 %, man 25 %.")
    assert weights(page, "source") == [0, 0.75, 0.25, 0]
    expect(units(page, "source").nth(1)).to_have_text("old75 %")
    picture(page, tmp_path / "wide.png")
    units(page, "source").nth(1).hover()
    expect(told).to_have_text("“old” is looked at by OLD 75 %, AN 25 %.")
    assert weights(page, "target") == [0.25, 0.75, 0, 0]
    page.locator("h1").hover()
    expect(told).to_have_text(re.compile("^Point at a word"))
    assert weights(page, "source") == [0, 0, 0, 0]
    page.locator("#clear").click()
    expect(translation(page)).to_have_text("")
    expect(panel(page).locator(".attention")).to_be_hidden()


def test_another_translation_layer_head_and_pieces_can_be_chosen(
    server, toys, open_page
):
    page = open_page(server)
    enter(page, "elephants run")
    expect(units(page, "target")).to_have_text(["ELEPHANTS", "RUN", "</s>"])
    run = panel(page)
    run.get_by_label("By").select_option("pieces")
    pieces = ["▁ELEP", "HANTS", "▁RUN", "</s>"]
    expect(units(page, "target")).to_have_text(pieces)
    run.get_by_label("By").select_option("words")
    # The mean over the word's two pieces: one looks at both, one at itself and "run".
    units(page, "target").nth(0).hover()
    expect(run.locator(".told")).to_have_text(
        "“ELEPHANTS” looks at elephants 88 %, run 13 %."
    )
    run.get_by_role("button", name="Elephants Run -2.00", exact=True).click()
    expect(translation(page)).to_have_text("Elephants Run")
    expect(units(page, "target").nth(0)).to_have_text(re.compile("^Elephants"))
    run.get_by_label("Layer").select_option(label="1")
    run.get_by_label("Head").select_option(label="2")
    expect(page.locator("body")).to_have_attribute("data-ready", "true")
    page.wait_for_timeout(200)
    last = toys[0].asked[-1]
    assert (last.translation, last.layer, last.head) == ("Elephants Run", 0, 1)
    assert last.tokens == [6, 2]


def test_translations_are_drawn_begun_and_searched_for_with_a_beam(
    server, toys, open_page
):
    page = open_page(server)
    enter(page, TEXT)
    page.get_by_label("Beam size").fill("2")
    expect(panel(page).locator(".others-list li")).to_have_count(2)
    page.get_by_label("Must begin with").fill("well,")
    expect(translation(page)).to_have_text("well, AN OLD MAN")
    expect(panel(page, 1).locator(".note")).to_have_text(
        "This model takes no beginning."
    )
    expect(page.get_by_label("Temperature")).to_be_hidden()
    page.get_by_label("at random").check()
    expect(translation(page)).to_have_text("an old man 0")
    expect(panel(page, 1).locator(".note")).to_have_text(
        "This model draws no translations."
    )
    for name in ("Beam size", "Must begin with"):
        expect(page.get_by_label(name)).to_be_hidden()
    page.get_by_role("button", name="Draw again").click()
    expect(translation(page)).to_have_text("an old man 10")
    page.get_by_label("Temperature").fill("0.3")
    expect(page.locator("#temperature-value")).to_have_text("0.3")
    page.get_by_label("Translations", exact=True).fill("3")
    expect(panel(page).locator(".others-list li")).to_have_count(3)
    drawn = [question for question in toys[0].asked if hasattr(question, "temperature")]
    assert (drawn[-1].temperature, drawn[-1].seed, drawn[-1].count) == (0.3, 10, 3)


def test_a_saved_model_says_what_it_does_not_offer(server, open_page, browser):
    page = open_page(server)
    enter(page, TEXT)
    expect(units(page, "target", 1)).to_have_text(["AN", "OLD", "MAN", "</s>"])
    saved = panel(page, 1)
    for name in ("Layer", "Head"):
        expect(saved.get_by_label(name)).to_be_hidden()
    saved.get_by_text("What this SavedModel does not offer").click()
    expect(saved.locator(".missing li")).to_have_text(list(SAVED_MODEL.missing))
    saved.get_by_role("button", name="An Old Man -2.00", exact=True).click()
    expect(saved.locator(".unseen")).to_have_text(
        re.compile("^A SavedModel tells what")
    )
    expect(saved.locator(".map")).to_be_hidden()
    saved.get_by_role("button", name="AN OLD MAN -1.00", exact=True).click()
    expect(saved.locator(".map")).to_be_visible()


def test_controls_that_no_model_offers_are_not_there(open_page):
    with Server([Toy(BARE)]) as server:
        page = open_page(server)
        enter(page, TEXT)
        for name in ("ways", "count-field", "beam-field", "prefix-field", "redraw"):
            expect(page.locator(f"#{name}")).to_be_hidden()
        expect(panel(page).locator(".attention")).to_be_hidden()


def test_errors_are_told_in_words(server, open_page, tmp_path):
    page = open_page(server)
    note = panel(page).locator(".note")
    cases = {
        "bad": "This text is bad.",
        "worse": "no memory",
        "x" * 61: "The text is too long: 61 characters; at most 60 are taken.",
    }
    for text, message in cases.items():
        enter(page, text, "")
        expect(note).to_have_text(message)
        expect(note).to_have_class("note warning")
    picture(page, tmp_path / "error.png")
    enter(page, "none", "")
    expect(note).to_have_text(re.compile(r"^No translation was found\. \d+ ms$"))
    enter(page, "cut")
    expect(note).to_have_text(re.compile("^The text, .* was too long and is cut. "))
    page.get_by_label("Beam size").fill("99")
    expect(note).to_have_text("Beam size must be a whole number from 1 to 16.")
    page.get_by_label("Beam size").fill("4")
    expect(note).to_have_text(re.compile("cut"))
    page.get_by_label("Must begin with").fill("y" * 61)
    expect(note).to_have_text(re.compile("^The beginning is too long: 61 characters;"))


def test_a_server_that_has_gone_is_told_and_can_come_again(open_page, toys):
    with Server(toys) as server:
        page = open_page(server)
        enter(page, TEXT)
    page.locator("#source").fill("a dog")
    expect(page.get_by_role("alert")).to_contain_text("has ended or cannot be reached")
    with Server(toys, port=server.port):
        page.get_by_role("button", name="Try again").click()
        expect(translation(page)).to_have_text("A DOG")
        expect(page.get_by_role("alert")).to_be_hidden()


def test_stale_answers_are_dropped_and_their_questions_not_begun(
    server, toys, open_page
):
    page = open_page(server)
    page.locator("#source").fill("slow one")
    expect(panel(page).locator(".note")).to_have_text("Translating …")
    while not toys[0].asked:
        page.wait_for_timeout(10)
    page.locator("#source").fill("slow two")
    page.wait_for_timeout(300)
    page.locator("#source").fill("quick")
    page.wait_for_timeout(300)
    for toy in toys:
        toy.go.set()
    expect(translation(page)).to_have_text("QUICK")
    expect(units(page, "target").first).to_have_text("QUICK")
    texts = [question.text for question in toys[0].asked]
    assert texts == ["slow one", "quick", "quick"]


def test_a_telephone_is_wide_enough_and_a_tap_lights_up(server, open_page, tmp_path):
    page = open_page(server, width=360, has_touch=True, is_mobile=True)
    enter(page, "x" * 60)
    assert page.evaluate("document.scrollingElement.scrollWidth") <= 360
    enter(page, TEXT)
    expect(units(page, "target").nth(1)).to_have_text("OLD")
    units(page, "target").nth(1).tap()
    expect(units(page, "target").nth(1)).to_have_attribute("aria-pressed", "true")
    told = panel(page).locator(".told")
    expect(told).to_have_text("“OLD” looks at old 75 %, man 25 %.")
    picture(page, tmp_path / "narrow.png")
    units(page, "target").nth(1).tap()
    expect(told).to_have_text(re.compile("^Point at a word"))
    for unit in units(page, "target").all():
        box = unit.bounding_box()
        assert min(box["width"], box["height"]) >= 24  # WCAG 2.2, 2.5.8.


def test_keys_lead_through_the_map(server, open_page):
    page = open_page(server)
    enter(page, TEXT)
    expect(units(page, "target")).to_have_count(4)
    panel(page).get_by_label("Head").focus()
    page.keyboard.press("Tab")
    expect(units(page, "source").nth(0)).to_be_focused()
    page.keyboard.press("Tab")
    told = panel(page).locator(".told")
    expect(told).to_have_text("“AN” looks at an 75 %, old 25 %.")
    for key, place in (
        ("ArrowRight", 1),
        ("End", 3),
        ("ArrowRight", 3),
        ("ArrowLeft", 2),
    ):
        page.keyboard.press(key)
        expect(units(page, "target").nth(place)).to_be_focused()
    expect(told).to_have_text("“MAN” looks at man 75 %, </s> 25 %.")
    page.keyboard.press("Enter")
    page.locator("#source").focus()
    expect(told).to_have_text("“MAN” looks at man 75 %, </s> 25 %.")
    units(page, "target").nth(2).focus()
    page.keyboard.press("Escape")
    page.locator("#source").focus()
    expect(told).to_have_text(re.compile("^Point at a word"))


CONTRAST = """
    (selector) => {
      const canvas = document.createElement("canvas").getContext("2d");
      const light = (color) => {
        canvas.fillStyle = color;
        canvas.fillRect(0, 0, 1, 1);
        const [r, g, b] = [...canvas.getImageData(0, 0, 1, 1).data].map((byte) => {
          const part = byte / 255;
          return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
        });
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
      };
      const one = document.querySelector(selector);
      let behind = one;
      const shown = (e) => getComputedStyle(e).backgroundColor;
      while (shown(behind) === "rgba(0, 0, 0, 0)") behind = behind.parentElement;
      const pair = [light(getComputedStyle(one).color), light(shown(behind))].sort();
      return (pair[1] + 0.05) / (pair[0] + 0.05);
    }
"""


@pytest.mark.parametrize("scheme", ("light", "dark"))
def test_texts_stand_out_and_every_control_has_a_name(
    server, open_page, scheme, tmp_path
):
    page = open_page(server, color_scheme=scheme)
    enter(page, TEXT)
    expect(units(page, "source")).to_have_count(4)
    units(page, "source").nth(0).evaluate("e => e.style.setProperty('--weight', 1)")
    picture(page, tmp_path / f"{scheme}.png")
    for selector in (
        ".unit", ".unit small", ".told", ".note", "h1", "label", "#clear", ".target p",
        ".others-list small", "header p", ".missing summary", "#prefix",
    ):  # fmt: skip
        assert page.evaluate(CONTRAST, selector) >= 4.5, selector
    nameless = page.evaluate(
        "[...document.querySelectorAll('input, select, textarea')]"
        ".filter(e => e.labels.length === 0).map(e => e.outerHTML)"
    )
    assert nameless == []
    for region in page.locator("[role=region], [role=toolbar]").all():
        assert region.get_attribute("aria-label")
    ids = page.evaluate("[...document.querySelectorAll('[id]')].map(e => e.id)")
    assert len(ids) == len(set(ids))


def test_the_page_runs_no_other_script(server, open_page):
    page = open_page(server)
    enter(page, "<img src=x onerror=document.title='x'>")
    expect(page).to_have_title("English to German")
    expect(page.locator("main img, .model img")).to_have_count(0)
