"""The page of `serve` in a real browser: typing, pointing, tapping, reading."""

import re

import pytest

from tests.apps.serving.toys import Toy, toy_serving
from tests.browser import chromium

sync_api = pytest.importorskip(
    "playwright.sync_api", reason="no playwright: it drives the browser"
)
expect = sync_api.expect
TEXT = "an old man"


@pytest.fixture(scope="module")
def browser():
    with chromium() as started:
        yield started


@pytest.fixture
def toy():
    return Toy()


@pytest.fixture
def url(toy):
    with toy_serving(toy) as url:
        yield url
        toy.go.set()


@pytest.fixture
def open_page(browser):
    """Opens pages; they must ask their own server alone, and log no error."""
    contexts, asked, errors = [], set(), []

    def opened(url, width=1000, **options):
        size = {"width": width, "height": 740}
        contexts.append(browser.new_context(viewport=size, **options))
        page = contexts[-1].new_page()
        page.set_default_timeout(20_000)
        page.on("request", lambda request: asked.add((url, request.url)))
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on(
            "console",
            lambda message: message.type == "error" and errors.append(message.text),
        )
        page.goto(url)
        expect(page.locator("body")).to_have_attribute("data-ready", "true")
        return page

    yield opened
    for context in contexts:
        context.close()
    assert asked and all(to.startswith((f"{own}/", "data:")) for own, to in asked)
    # What a server refuses, or one that has gone, the browser itself tells.
    told = re.compile("Failed to load resource")
    assert [error for error in errors if not told.match(error)] == []


def translation(page):
    return page.locator("#target")


def units(page, side):
    """The headings of the matrix: of columns the source's, of rows the target's."""
    scope = {"source": "col", "target": "row"}[side]
    return page.locator(f'th[scope="{scope}"] button')


def told(page):
    return page.locator(".told")


def enter(page, text, expected=None):
    page.locator("#source").fill(text)
    expect(translation(page)).to_have_text(
        text.upper() if expected is None else expected
    )


def matrix(page):
    """What the cells show, row by row."""
    rows = page.locator("tr:has(th[scope=row])").all()
    return [row.locator("td").all_text_contents() for row in rows]


def colours(page, row):
    """How much of the colour each cell of a row has."""
    cells = page.locator("tr").nth(row + 1).locator("td").all()
    return [c.evaluate("e => +e.style.getPropertyValue('--weight')") for c in cells]


def check_width(page):
    wide = page.evaluate("document.scrollingElement.scrollWidth")
    assert wide <= page.viewport_size["width"]


def test_it_translates_what_is_typed_and_lights_up_what_is_pointed_at(url, open_page):
    page = open_page(url)
    expect(page).to_have_title("English to German")
    page.locator("#source").press_sequentially(TEXT)
    expect(translation(page)).to_have_text("AN OLD MAN")
    expect(page.locator("#note")).to_have_text(re.compile(r"^Translated in \d+ ms\.$"))
    expect(page.locator("#others-list li")).to_have_text([
        "AN OLD MAN -1.00", "An Old Man -2.00", "AN OLD MAN -3.00", "an old man! -4.00",
    ])  # fmt: skip
    expect(units(page, "target")).to_have_text(["AN", "OLD", "MAN", "(end)"])
    expect(units(page, "source")).to_have_text(["an", "old", "man", "(end)"])
    assert matrix(page)[:2] == [["75", "25", "", ""], ["", "75", "25", ""]]
    assert colours(page, 0) == [1, pytest.approx(1 / 3), 0, 0]
    expect(told(page)).to_have_text(re.compile("^Point at a word"))
    units(page, "target").nth(1).hover()
    expect(told(page)).to_have_text("“OLD” looks at “old” 75 %, “man” 25 %.")
    check_width(page)
    units(page, "source").nth(1).hover()
    expect(told(page)).to_have_text("“old” is looked at by “OLD” 75 %, “AN” 25 %.")
    page.locator("h1").hover()
    expect(told(page)).to_have_text(re.compile("^Point at a word"))
    page.locator("#clear").click()
    expect(translation(page)).to_have_text("")
    expect(page.locator("#attention")).to_be_hidden()


def test_words_or_pieces_of_the_likeliest_translation_are_shown(url, toy, open_page):
    page = open_page(url)
    enter(page, "elephants run")
    expect(units(page, "target")).to_have_text(["ELEPHANTS", "RUN", "(end)"])
    page.get_by_label("Show by").select_option("pieces")
    pieces = ["▁ELEP", "HANTS", "▁RUN", "</s>"]
    expect(units(page, "target")).to_have_text(pieces)
    page.get_by_label("Show by").select_option("words")
    # The mean over the word's two pieces: one looks at both, one at itself and "run".
    units(page, "target").nth(0).hover()
    expect(told(page)).to_have_text(
        "“ELEPHANTS” looks at “elephants” 88 %, “run” 13 %."
    )
    text = {"text": ["elephants run"]}
    assert toy.asked[-3:] == [
        ("serving_default", text), ("nbest", text), ("align", text)
    ]  # fmt: skip
    page.get_by_role("button", name="Elephants Run -2.00", exact=True).click()
    expect(translation(page)).to_have_text("Elephants Run")
    expect(page.locator("#attention")).to_be_hidden()
    page.get_by_role("button", name="ELEPHANTS RUN -1.00", exact=True).click()
    expect(page.locator("#attention")).to_be_visible()


def test_translations_are_drawn_and_begun(url, toy, open_page):
    page = open_page(url)
    others = page.locator("#others-list li")
    enter(page, TEXT)
    page.get_by_label("How many").fill("2")
    expect(others).to_have_count(2)
    page.get_by_label("Must begin with").fill("well,")
    expect(translation(page)).to_have_text("well, AN OLD MAN")
    expect(page.locator("#attention")).to_be_hidden()
    expect(page.get_by_label("Temperature")).to_be_hidden()
    page.get_by_label("Choose").select_option("at random")
    expect(translation(page)).to_have_text("an old man 0")
    expect(page.get_by_label("Must begin with")).to_be_hidden()
    page.get_by_role("button", name="Draw again").click()
    expect(translation(page)).to_have_text("an old man 10")
    page.get_by_label("Temperature").fill("0.3")
    expect(page.locator("#degrees")).to_have_text("0.3")
    page.get_by_label("How many").fill("3")
    expect(others).to_have_count(3)
    drawn = [columns for name, columns in toy.asked if name == "sample"][-1]
    assert drawn["temperature"] == [pytest.approx(0.3)] * 3
    assert drawn["seed"] == [10, 11, 12]


def test_a_text_of_several_sentences_keeps_its_lines(url, toy, open_page):
    page = open_page(url)
    enter(page, "one dog\n\n  two")
    shown = translation(page).evaluate("e => e.innerText")
    assert shown == "ONE DOG\n\n  TWO"
    # Others, and what words look at, are those of one sentence.
    assert [name for name, _ in toy.asked] == ["serving_default"]
    expect(page.locator("#others")).to_be_hidden()
    expect(page.locator("#attention")).to_be_hidden()


def test_a_translation_is_corrected_and_kept(toy, open_page, tmp_path):
    file = tmp_path / "corrections.tsv"
    with toy_serving(toy, corrections=file) as url:
        page = open_page(url)
        note, editor = page.locator("#note"), page.get_by_label("Your correction")
        correct = page.get_by_role("button", name="Correct")
        expect(correct).to_be_hidden()
        enter(page, "one dog\n\n  two")
        # Keys alone: to the button, into the editor, to "Keep".
        correct.focus()
        page.keyboard.press("Enter")
        expect(editor).to_be_focused()
        expect(editor).to_have_value("ONE DOG\n\n  TWO")
        expect(translation(page)).to_be_hidden()
        check_width(page)
        cases = {
            "ONE DOG\n\n  TWO": "The translation was not changed.",
            "ein Hund zwei": re.compile("as many lines as the text, 3, because"),
            "ONE DOG\n\n ": re.compile("as many lines as the text, 3, because"),
            " \n\n  TWO": "`pairs[0]` must be two texts: its target is empty.",
        }
        for text, message in cases.items():
            editor.fill(text)
            page.get_by_role("button", name="Keep").click()
            expect(note).to_have_text(message)
            expect(note).to_have_class("note warning")
        assert file.read_text("utf-8") == ""
        editor.fill("ONE DOG\n\n  zwei\tSätze")
        page.keyboard.press("Tab")
        page.keyboard.press("Shift+Tab")
        page.keyboard.press("Shift+Tab")
        page.keyboard.press("Shift+Tab")
        expect(page.get_by_role("button", name="Keep")).to_be_focused()
        page.keyboard.press("Enter")
        # The line that was edited is a pair; a reader is told, and sees what was kept.
        expect(note).to_have_text("Kept.")
        expect(note).to_have_attribute("role", "status")
        expect(translation(page)).to_have_text("ONE DOG zwei Sätze")
        expect(correct).to_be_focused()
        assert file.read_text("utf-8") == "  two\t  zwei Sätze\n"
        # Escape leaves it, and so does another text.
        correct.click()
        editor.fill("nothing")
        page.keyboard.press("Escape")
        expect(translation(page)).to_have_text("ONE DOG zwei Sätze")
        correct.click()
        enter(page, TEXT)
        expect(editor).to_be_hidden()
        assert file.read_text("utf-8").count("\n") == 1


def test_errors_are_told_in_words(url, open_page):
    page = open_page(url)
    note = page.locator("#note")
    cases = {"bad": "This text is bad.", "worse": "The server failed: no memory"}
    for text, message in cases.items():
        enter(page, text, "")
        expect(note).to_have_text(message)
        expect(note).to_have_class("note warning")
    enter(page, "none", "")
    expect(note).to_have_text(
        re.compile(r"^No translation was found\. Translated in \d+ ms\.$")
    )
    enter(page, "cut")
    expect(note).to_have_text(re.compile("^The text, .* was too long and is cut. "))
    enter(page, "doubtful")
    expect(note).to_have_text(
        re.compile(
            "^The translation is doubtful: a sentence may not be translated, most "
            "translations with such a score were wrong."
        )
    )
    enter(page, "cut")
    page.get_by_label("How many").fill("99")
    expect(note).to_have_text("How many must be a whole number from 1 to 10.")
    page.get_by_label("How many").fill("4")
    expect(note).to_have_text(re.compile("cut"))
    page.locator("#source").fill("<img src=x onerror=document.title='x'>")
    expect(note).to_have_text(re.compile("ms.$"))
    expect(page).to_have_title("English to German")
    expect(page.locator("main img")).to_have_count(0)


def test_a_server_that_has_gone_is_told_and_can_come_again(open_page, toy):
    with toy_serving(toy) as url:
        page = open_page(url)
        enter(page, TEXT)
    page.locator("#source").fill("a dog")
    expect(page.get_by_role("alert")).to_contain_text("has ended or cannot be reached")
    with toy_serving(toy, port=int(url.rpartition(":")[2])):
        page.get_by_role("button", name="Try again").click()
        expect(translation(page)).to_have_text("A DOG")
        expect(page.get_by_role("alert")).to_be_hidden()


def test_stale_answers_are_dropped_and_stale_questions_not_asked(url, toy, open_page):
    page = open_page(url)
    page.locator("#source").fill("slow one")
    expect(page.locator("#note")).to_have_text("Translating …")
    while not toy.running:
        page.wait_for_timeout(10)
    for text in ("slow two", "quick"):
        page.locator("#source").fill(text)
        page.wait_for_timeout(300)
    toy.go.set()
    expect(translation(page)).to_have_text("QUICK")
    expect(units(page, "target").first).to_have_text("QUICK")
    texts = [columns["text"] for _, columns in toy.asked]
    assert texts == [["slow one"], ["quick"], ["quick"], ["quick"]]


def test_a_telephone_is_wide_enough_and_a_tap_tells_of_a_word(url, open_page):
    page = open_page(url, width=360, has_touch=True, is_mobile=True)
    enter(page, "x" * 60)
    check_width(page)
    enter(page, TEXT)
    expect(units(page, "target").nth(1)).to_have_text("OLD")
    units(page, "target").nth(1).tap()
    expect(told(page)).to_have_text("“OLD” looks at “old” 75 %, “man” 25 %.")
    check_width(page)
    for unit in units(page, "source").all():
        box = unit.bounding_box()
        assert min(box["width"], box["height"]) >= 24  # WCAG 2.2, 2.5.8.
    page.get_by_label("Choose").select_option("at random")
    expect(translation(page)).to_have_text("an old man 0")
    check_width(page)


def test_keys_lead_through_the_map(url, open_page):
    page = open_page(url)
    enter(page, TEXT)
    expect(units(page, "target")).to_have_count(4)
    page.get_by_label("Show by").focus()
    page.keyboard.press("Tab")
    expect(units(page, "source").nth(0)).to_be_focused()
    for _ in range(4):
        page.keyboard.press("Tab")
    expect(units(page, "target").nth(0)).to_be_focused()
    expect(told(page)).to_have_text("“AN” looks at “an” 75 %, “old” 25 %.")
    page.locator("#source").focus()
    expect(told(page)).to_have_text(re.compile("^Point at a word"))


def test_three_sentences_are_there_to_click(url, open_page):
    page = open_page(url)
    page.get_by_role("button", name="a quick fox", exact=True).click()
    expect(translation(page)).to_have_text("A QUICK FOX")
    expect(page.locator("#examples button")).to_have_count(3)


# Pieces, and their words with the number of pieces of each.
WORDS = [
    ("▁Two ▁m en ▁don ' t ▁ talk . </s>",
     [["Two", 1], ["men", 2], ["don't", 3], ["talk", 2], [".", 1], ["(end)", 1]]),
    ("▁3 . 5 ▁( a ) . ▁b ! ?",
     [["3.5", 3], ["(a", 2], [")", 1], [".", 1], ["b", 1], ["!", 1], ["?", 1]]),
    ("▁B <0xC3> <0xA4> r <0xFF> </s>", [["Bär\ufffd", 5], ["(end)", 1]]),
    (">>fra<< ▁a </s>", [[">>fra<<", 1], ["a", 1], ["(end)", 1]]),
    ("Two Ġm Ã¤ n Ġ", [["Two", 1], ["män", 3], [" ", 1]]),
    ("[CLS] talk ##ing ##s . [SEP]",
     [["(start)", 1], ["talkings", 3], [".", 1], ["(end)", 1]]),
    ("</s>", [["(end)", 1]]),
]  # fmt: skip


def test_words_are_those_of_a_reader(url, open_page):
    page = open_page(url)
    for pieces, expected in WORDS:
        found = page.evaluate(
            "pieces => import('./words.js').then(({ wordsOf }) => wordsOf(pieces))",
            pieces.split(" "),
        )
        assert found == expected, pieces


def test_a_model_without_attention_or_languages_has_a_page(open_page, toy):
    toy.page = {"languages": None, "examples": []}
    del toy.signatures["align"]
    with toy_serving(toy) as url:
        page = open_page(url)
        expect(page).to_have_title("Translator")
        enter(page, TEXT)
        expect(page.locator("#note")).to_have_text(re.compile("^Translated"))
        expect(page.get_by_role("button", name="Correct")).to_be_hidden()
        expect(page.locator("#attention")).to_be_hidden()
        expect(page.locator("#examples")).to_be_hidden()
    assert [name for name, _ in toy.asked] == ["serving_default", "nbest"]


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


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_stand_out_and_every_control_has_a_name(url, open_page, scheme):
    page = open_page(url, color_scheme=scheme)
    enter(page, TEXT)
    expect(units(page, "source")).to_have_count(4)
    for selector in (
        "th button",
        "tr + tr td",
        ".told",
        ".note",
        "h1",
        "label",
        "#clear",
        ".target p",
        ".others-list small",
        "header p",
        "#prefix",
    ):
        assert page.evaluate(CONTRAST, selector) >= 4.5, selector
    nameless = page.evaluate(
        "[...document.querySelectorAll('input, select, textarea')]"
        ".filter(e => e.labels.length === 0).map(e => e.outerHTML)"
    )
    assert nameless == []
    ids = page.evaluate("[...document.querySelectorAll('[id]')].map(e => e.id)")
    assert len(ids) == len(set(ids))
    for group in page.locator("[aria-labelledby]").all():
        assert group.get_attribute("aria-labelledby") in ids
