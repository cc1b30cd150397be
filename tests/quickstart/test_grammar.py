import hashlib
import itertools
import re
import sys

import pytest

from keras_transformer.quickstart.grammar import (
    LANGUAGES,
    SPLITS,
    english,
    french,
    french_phrases,
    generate_pairs,
    german,
    german_phrases,
    write_corpus,
)
from keras_transformer.quickstart.grammar.corpus import split_of
from keras_transformer.quickstart.grammar.grammar import Grammar
from keras_transformer.quickstart.grammar.lexicon import (
    Adjective,
    Name,
    Noun,
    load_lexicon,
    read_entries,
)
from keras_transformer.quickstart.grammar.plan import (
    Clause,
    NounPhrase,
    Relative,
    Sentence,
)

SAMPLE = 6000

LEXICON = load_lexicon()
NOUNS = {noun.english: noun for noun in LEXICON.nouns}
ADJECTIVES = {word.english: word for word in LEXICON.adjectives}
VERBS = {verb.key: verb for verb in LEXICON.verbs}
PLACES = {place.english: place for place in LEXICON.places}
ADVERBS = {adverb.english: adverb for adverb in LEXICON.adverbs}
NAMES = {name.english: name for name in LEXICON.names}
SITUATIONS = {item.english_present: item for item in LEXICON.situations}


def np_(text, **options):
    """Builds a noun phrase from "the red car", "Anna", "she"."""
    pronouns = {"I": "1s", "you": "2s", "he": "3s", "she": "3s", "we": "1p"}
    pronouns["they"] = "3p"
    if text in pronouns:
        person = pronouns[text]
        gender = "f" if text == "she" else "m"
        return NounPhrase(
            person=person, gender=gender, plural=person[1] == "p", determiner="none"
        )
    if text in NAMES:
        return NounPhrase(NAMES[text], gender=NAMES[text].gender)
    determiner, *adjective, noun = text.split("/")
    return NounPhrase(
        NOUNS[noun],
        determiner=determiner,
        adjective=ADJECTIVES[adjective[0]] if adjective else None,
        **options,
    )


def clause(subject, verb, tense="past", **options):
    for name in ("time", "frequency", "manner"):
        if name in options:
            options[name] = ADVERBS[options[name]]
    for name in ("theme", "recipient", "agent", "standard"):
        if isinstance(options.get(name), str):
            options[name] = np_(options[name])
    if "place" in options:
        options["place"] = PLACES[options["place"]]
    if "adjective" in options:
        options["adjective"] = ADJECTIVES[options["adjective"]]
    subject = np_(subject) if isinstance(subject, str) else subject
    return Clause(subject, VERBS[verb] if verb else None, tense, **options)


def said(subject, verb, tense="past", question="", **options):
    return Sentence(clause(subject, verb, tense, **options), question)


def joined(main, conjunction, second, first=False):
    return Sentence(main, "", conjunction, second, first)


def related(text, inner, role, **options):
    phrase = np_(text, **options)
    if role == "subject":
        inner.subject = phrase
    phrase.relative = Relative(inner, role)
    return phrase


CASES = [
    (
        said("the/baker", "buy", "present", theme="a/red/car"),
        "The baker is buying a red car.",
        "Der Bäcker kauft ein rotes Auto.",
        "Le boulanger achète une voiture rouge.",
    ),
    (
        said("I", "see", "present", theme="the/old/lion"),
        "I see the old lion.",
        "Ich sehe den alten Löwen.",
        "Je vois le vieux lion.",
    ),
    (
        said("the/woman", "help", "present", theme="my/neighbor"),
        "The woman is helping my neighbor.",
        "Die Frau hilft meinem Nachbarn.",
        "La femme aide mon voisin.",
    ),
    (
        said("the/teacher", "call", "present", theme="Anna", time="now"),
        "The teacher is calling Anna now.",
        "Der Lehrer ruft jetzt Anna an.",
        "Le professeur appelle Anna maintenant.",
    ),
    (
        said("the/nurse", "arrive", time="yesterday", front="time"),
        "Yesterday, the nurse arrived.",
        "Gestern ist die Krankenschwester angekommen.",
        "Hier, l'infirmière est arrivée.",
    ),
    (
        said("we", "sleep", place="garden", front="place"),
        "In the garden, we slept.",
        "Im Garten haben wir geschlafen.",
        "Dans le jardin, nous avons dormi.",
    ),
    (
        said("she", "get up"),
        "She got up.",
        "Sie ist aufgestanden.",
        "Elle s'est levée.",
    ),
    (
        said("the/child", "rest", time="on Sunday", front="time"),
        "On Sunday, the child rested.",
        "Am Sonntag hat sich das Kind ausgeruht.",
        "Dimanche, l'enfant s'est reposé.",
    ),
    (
        said("Peter", "buy", "present", theme="a/bicycle", negated=True),
        "Peter is not buying a bicycle.",
        "Peter kauft kein Fahrrad.",
        "Peter n'achète pas de vélo.",
    ),
    (
        said("Peter", "drink", "present", theme="none/water", negated=True),
        "Peter is not drinking water.",
        "Peter trinkt kein Wasser.",
        "Peter ne boit pas d'eau.",
    ),
    (
        said("Peter", "buy", theme="the/bicycle", negated=True, time="yesterday"),
        "Peter did not buy the bicycle yesterday.",
        "Peter hat gestern das Fahrrad nicht gekauft.",
        "Peter n'a pas acheté le vélo hier.",
    ),
    (
        said("the/man", "wait", "future", theme="the/bus", negated=True),
        "The man will not wait for the bus.",
        "Der Mann wird nicht auf den Bus warten.",
        "L'homme n'attendra pas le bus.",
    ),
    (
        said("he", "give", theme="the/key", recipient="she"),
        "He gave the key to her.",
        "Er hat ihr den Schlüssel gegeben.",
        "Il lui a donné la clé.",
    ),
    (
        said("the/cook", "show", theme="a/photo", recipient="the/guest"),
        "The cook showed a photo to the guest.",
        "Der Koch hat dem Gast ein Foto gezeigt.",
        "Le cuisinier a montré une photo à l'invité.",
    ),
    (
        said("the/doctor", "see", theme="she", time="last week"),
        "The doctor saw her last week.",
        "Der Arzt hat sie letzte Woche gesehen.",
        "Le médecin l'a vue la semaine dernière.",
    ),
    (
        said("the/tourist", "go", "present", place="market"),
        "The tourist is going to the market.",
        "Der Tourist geht auf den Markt.",
        "Le touriste va au marché.",
    ),
    (
        said("my/sister", "fly", "future", place="Germany"),
        "My sister will fly to Germany.",
        "Meine Schwester wird nach Deutschland fliegen.",
        "Ma sœur ira en avion en Allemagne.",
    ),
    (
        said("the/mechanic", "repair", "present", modal="must", theme="the/bus"),
        "The mechanic must repair the bus.",
        "Der Mechaniker muss den Bus reparieren.",
        "Le mécanicien doit réparer le bus.",
    ),
    (
        said("they", "open", modal="can", theme="the/door", negated=True),
        "They could not open the door.",
        "Sie konnten die Tür nicht öffnen.",
        "Ils n'ont pas pu ouvrir la porte.",
    ),
    (
        said("the/car", "repair", passive=True, agent="the/mechanic"),
        "The car was repaired by the mechanic.",
        "Das Auto wurde vom Mechaniker repariert.",
        "La voiture a été réparée par le mécanicien.",
    ),
    (
        said("the/door", "open", "future", passive=True, time="tomorrow"),
        "The door will be opened tomorrow.",
        "Die Tür wird morgen geöffnet werden.",
        "La porte sera ouverte demain.",
    ),
    (
        said(
            "the/girl", "read", "habitual", "yes-no", theme="a/book", frequency="often"
        ),
        "Does the girl often read a book?",
        "Liest das Mädchen oft ein Buch?",
        "Est-ce que la fille lit souvent un livre ?",
    ),
    (
        said("he", "go", "present", "where to"),
        "Where is he going?",
        "Wohin geht er?",
        "Où est-ce qu'il va ?",
    ),
    (
        said("he", "repair", "past", "who", theme="the/watch"),
        "Who repaired the watch?",
        "Wer hat die Armbanduhr repariert?",
        "Qui a réparé la montre ?",
    ),
    (
        said("the/king", "eat", "past", "what"),
        "What did the king eat?",
        "Was hat der König gegessen?",
        "Qu'est-ce que le roi a mangé ?",
    ),
    (
        said("Anna", "invite", "future", "whom"),
        "Whom will Anna invite?",
        "Wen wird Anna einladen?",
        "Qui est-ce qu'Anna invitera ?",
    ),
    (
        said(
            "the/teacher",
            "say",
            complement=clause("the/child", "call", "pluperfect", theme="the/doctor"),
        ),
        "The teacher said that the child had called the doctor.",
        "Der Lehrer hat gesagt, dass das Kind den Arzt angerufen hatte.",
        "Le professeur a dit que l'enfant avait appelé le médecin.",
    ),
    (
        said(
            "I",
            "know%whether",
            "present",
            negated=True,
            complement=clause("he", "come", "future", place="café"),
        ),
        "I do not know whether he will come to the café.",
        "Ich weiß nicht, ob er ins Café kommen wird.",
        "Je ne sais pas s'il viendra au café.",
    ),
    (
        joined(
            clause("the/dentist", "buy", "present", theme="a/bicycle"),
            "because",
            clause("the/bus", "arrive", negated=True),
        ),
        "The dentist is buying a bicycle because the bus did not arrive.",
        "Der Zahnarzt kauft ein Fahrrad, weil der Bus nicht angekommen ist.",
        "Le dentiste achète un vélo parce que le bus n'est pas arrivé.",
    ),
    (
        joined(
            clause("the/farmer", "sell", "future", theme="the/goose"),
            "if",
            SITUATIONS["is raining"],
            first=True,
        ),
        "If it is raining, the farmer will sell the goose.",
        "Wenn es regnet, wird der Bauer die Gans verkaufen.",
        "S'il pleut, le fermier vendra l'oie.",
    ),
    (
        joined(
            clause("the/soldier", "run", place="station"),
            "in order to",
            clause("the/soldier", "pick up", "present", theme="the/suitcase"),
        ),
        "The soldier ran to the station in order to pick up the suitcase.",
        "Der Soldat ist zum Bahnhof gelaufen, um den Koffer abzuholen.",
        "Le soldat a couru à la gare pour récupérer la valise.",
    ),
    (
        said(
            "she",
            "forget%to",
            complement=clause("she", "open", "present", theme="the/window"),
        ),
        "She forgot to open the window.",
        "Sie hat vergessen, das Fenster zu öffnen.",
        "Elle a oublié d'ouvrir la fenêtre.",
    ),
    (
        said(
            related("the/actor", clause("he", "lose", theme="the/ring"), "subject"),
            "sleep",
            "present",
        ),
        "The actor who lost the ring is sleeping.",
        "Der Schauspieler, der den Ring verloren hat, schläft.",
        "L'acteur qui a perdu la bague dort.",
    ),
    (
        said(
            "Maria",
            "wash",
            theme=related(
                "the/cup", clause("I", "buy", "pluperfect"), "object", plural=True
            ),
        ),
        "Maria washed the cups that I had bought.",
        "Maria hat die Tassen gewaschen, die ich gekauft hatte.",
        "Maria a lavé les tasses que j'avais achetées.",
    ),
    (
        said("the/dog", None, "present", adjective="big", standard="the/cat"),
        "The dog is bigger than the cat.",
        "Der Hund ist größer als die Katze.",
        "Le chien est plus grand que le chat.",
    ),
    (
        said("Paul", "play", "present", theme="instrument/piano"),
        "Paul is playing the piano.",
        "Paul spielt Klavier.",
        "Paul joue du piano.",
    ),
    (
        said(
            "the/student",
            "find",
            theme=np_("the/new/map", possessor=np_("the/tourist")),
        ),
        "The student found the tourist's new map.",
        "Der Student hat die neue Landkarte des Touristen gefunden.",
        "L'étudiant a trouvé la nouvelle carte du touriste.",
    ),
    (
        said("we", "buy", "future", theme=np_("none/beautiful/rose", plural=True)),
        "We will buy beautiful roses.",
        "Wir werden schöne Rosen kaufen.",
        "Nous achèterons de belles roses.",
    ),
    (
        said("the/woman", "know", theme=np_("the/old/man")),
        "The woman knew the old man.",
        "Die Frau kannte den alten Mann.",
        "La femme connaissait le vieil homme.",
    ),
    (
        said(
            "I",
            "believe",
            "present",
            complement=clause("the/cook", "call", "present", theme="Anna"),
        ),
        "I believe that the cook is calling Anna.",
        "Ich glaube, dass der Koch Anna anruft.",
        "Je crois que le cuisinier appelle Anna.",
    ),
    (
        said("we", "help", theme=np_("the/child", plural=True)),
        "We helped the children.",
        "Wir haben den Kindern geholfen.",
        "Nous avons aidé les enfants.",
    ),
    (
        said("Paul", "need", "present", theme="my/ladder"),
        "Paul needs my ladder.",
        "Paul braucht meine Leiter.",
        "Paul a besoin de mon échelle.",
    ),
]


@pytest.mark.parametrize("plan, source, in_german, in_french", CASES)
def test_plan_is_said_as_a_native_would(plan, source, in_german, in_french):
    assert english.say(plan) == source
    assert german.say(plan) == in_german
    assert french.say(plan) == in_french


def test_it_refers_to_a_thing_with_the_gender_of_its_noun():
    car = NounPhrase(person="3s", determiner="none", antecedent=NOUNS["car"])
    plan = joined(
        clause("the/baker", "repair", "present", theme="the/car"),
        "because",
        clause(car, None, "present", adjective="old"),
    )
    assert english.say(plan) == "The baker is repairing the car because it is old."
    assert german.say(plan) == "Der Bäcker repariert das Auto, weil es alt ist."
    assert (
        french.say(plan) == "Le boulanger répare la voiture parce qu'elle est vieille."
    )


@pytest.fixture(scope="module")
def triples():
    grammar = Grammar(3)
    plans = [grammar.sentence() for _ in range(SAMPLE)]
    return [(english.say(p), german.say(p), french.say(p)) for p in plans]


def test_translation_is_a_function_of_the_english_sentence(triples):
    seen = {}
    for source, *targets in triples:
        assert seen.setdefault(source, targets) == targets


def test_sentences_are_well_formed(triples):
    bad = re.compile(r"not never|  | [.,]|,,|\bNone\b|[^\w' ,.?-]|' ")
    for sentence in itertools.chain.from_iterable(triples):
        assert sentence[0].isupper()
        assert re.search(r"[\w][.?]$| \?$", sentence)
        assert not bad.search(sentence), sentence
    for source, target, in_french in triples:
        assert source.endswith("?") == target.endswith("?") == in_french.endswith(" ?")


def test_never_is_the_only_negation():
    grammar = Grammar(5)
    for _ in range(3000):
        for draw in (grammar.passive, grammar.simple):
            assert not re.search(r"not \w* ?never", english.say(draw()))


def test_sentences_have_the_intended_length(triples):
    lengths = [len(source.split()) for source, _, _ in triples]
    assert 8 <= sum(lengths) / len(lengths) <= 13


def test_french_elides_and_contracts(triples):
    unelided = re.compile(
        r"\b(le|la|je|me|te|se|ne|de|que) [aeiouéèêâîôœ]|\bsi ils?\b", re.IGNORECASE
    )
    # "De le voir" keeps both words; an article before a noun never does.
    uncontracted = re.compile(r"\b(de|à) (le|les) [\w-]+(?<!er)(?<!re)(?<!ir)\b")
    for _, _, sentence in triples:
        assert not unelided.search(sentence), sentence
        assert not uncontracted.search(sentence), sentence


def test_french_contracts_articles_only():
    plan = said(
        "he", "try", complement=clause("he", "help", "present", theme=np_("they"))
    )
    assert french.say(plan) == "Il a essayé de les aider."


def test_german_contracts_prepositions(triples):
    loose = re.compile(r"\b(in|an|von|zu) dem\b|\bzu der\b|\b(in|an) das\b")
    for _, sentence, _ in triples:
        assert not loose.search(sentence.lower()), sentence


# Written apart from the package: which genders and cases a determiner can mark.
GERMAN_DETERMINERS = {
    "der": {"m nom", "f dat", "f gen", "p gen"},
    "die": {"f nom", "f acc", "p nom", "p acc"},
    "das": {"n nom", "n acc"},
    "den": {"m acc", "p dat"},
    "dem": {"m dat", "n dat"},
    "des": {"m gen", "n gen"},
    "ein": {"m nom", "n nom", "n acc"},
    "eine": {"f nom", "f acc"},
    "einen": {"m acc"},
    "einem": {"m dat", "n dat"},
    "einer": {"f dat", "f gen"},
}


@pytest.mark.parametrize("case", ["nom", "acc", "dat"])
def test_german_determiner_agrees_with_its_noun(case):
    for noun in LEXICON.nouns:
        for determiner, plural in (("the", False), ("a", False), ("the", True)):
            if plural and noun.german_plural == "-":
                continue
            phrase = NounPhrase(noun, plural=plural, determiner=determiner)
            word = german_phrases.noun_phrase(phrase, case).split()[0]
            gender = "p" if plural else noun.german_gender
            assert f"{gender} {case}" in GERMAN_DETERMINERS[word]


GERMAN_ENDINGS = {  # after "der", after "ein", alone; m, f, n, plural
    "nom": ("e e e en", "er e es en", "er e es e"),
    "acc": ("en e e en", "en e es en", "en e es e"),
    "dat": ("en en en en", "en en en en", "em er em en"),
}


@pytest.mark.parametrize("case", sorted(GERMAN_ENDINGS))
def test_german_adjective_endings_follow_the_table(case):
    for column, noun in enumerate(("baker", "woman", "child", "baker")):
        for row, determiner in enumerate(("the", "my", "none")):
            phrase = np_(f"{determiner}/small/{noun}", plural=column == 3)
            words = german_phrases.noun_phrase(phrase, case).split()
            ending = GERMAN_ENDINGS[case][row].split()[column]
            assert "klein" + ending in words


@pytest.mark.parametrize("adjective", LEXICON.adjectives, ids=lambda a: a.english)
def test_french_adjective_agrees(adjective):
    for noun in ("man", "woman"):
        phrase = NounPhrase(NOUNS[noun], adjective=adjective)
        words = french_phrases.noun_phrase(phrase)
        if noun == "woman":
            assert adjective.french_feminine in words.split()
        elif adjective.french_position == "pre":
            form = adjective.french_before_vowel or adjective.french_masculine
            assert words == f"le {form} homme" or words == f"l'{form} homme"


def test_lexicon_has_several_hundred_words():
    words = [LEXICON.nouns, LEXICON.adjectives, LEXICON.verbs, LEXICON.adverbs]
    assert sum(map(len, words)) >= 450


def test_english_words_mean_one_thing():
    forms = [english.noun_form(noun, False) for noun in LEXICON.nouns]
    forms += [
        english.noun_form(noun, True)
        for noun in LEXICON.nouns
        if noun.english_plural != "-"
    ]
    assert len(forms) == len(set(forms))


def test_german_nouns_are_capitalised_and_people_have_a_genitive():
    for noun in LEXICON.nouns:
        assert noun.german[0].isupper() and noun.french_gender in "mf"
        if "person" in noun.tags and noun.german_gender != "f":
            assert noun.german_genitive, noun.english


def test_tags_of_verbs_and_adjectives_name_nouns():
    known = set(NOUNS) | {tag for noun in LEXICON.nouns for tag in noun.tags}
    for verb in LEXICON.verbs:
        assert verb.subjects | verb.objects <= known, verb.key
        assert verb.manners <= set(ADVERBS)
        tags = {tag for place in LEXICON.places for tag in place.tags}
        assert verb.places <= tags | set(PLACES), verb.key
    for adjective in LEXICON.adjectives:
        assert adjective.nouns <= known, adjective.english


@pytest.mark.parametrize("language", LANGUAGES)
def test_no_sentence_is_in_two_splits(language):
    drawn = {
        split: list(generate_pairs(language, split, 300, seed))
        for seed, split in enumerate(SPLITS)
    }
    for one, other in itertools.combinations(SPLITS, 2):
        for side in (0, 1):
            sides = [{pair[side] for pair in drawn[name]} for name in (one, other)]
            assert not sides[0] & sides[1]
    for split, pairs in drawn.items():
        assert len({source for source, _ in pairs}) == 300
        assert {split_of(target) for _, target in pairs} == {split}


def test_pairs_depend_on_the_seed_alone():
    first = list(generate_pairs("de", "test", 50, seed=7))
    assert first == list(generate_pairs("de", "test", 50, seed=7))
    assert first != list(generate_pairs("de", "test", 50, seed=8))
    assert first[:20] == list(generate_pairs("de", "test", 20, seed=7))


PINNED = {"de": "bf113f71e34a9de9", "fr": "fcdd5378f427423f"}


@pytest.mark.parametrize("language", LANGUAGES)
def test_pairs_are_the_same_everywhere(language):
    pairs = generate_pairs(language, "train", 200, seed=1)
    text = "".join(f"{source}\t{target}\n" for source, target in pairs)
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == PINNED[language]


def test_capacity_is_far_above_the_promised_200_000(triples):
    # The birthday estimate: n draws of N equal sentences repeat about n^2 / 2N times.
    repeats = len(triples) - len({source for source, _, _ in triples})
    assert repeats < SAMPLE**2 / (2 * 200_000)


def test_write_corpus_writes_whole_files(tmp_path):
    paths = write_corpus(tmp_path / "new", "fr", train=20, valid=3, test=2)
    assert [path.name for path in paths.values()] == [
        "train.en-fr.tsv",
        "valid.en-fr.tsv",
        "test.en-fr.tsv",
    ]
    assert sorted((tmp_path / "new").iterdir()) == sorted(paths.values())
    lines = paths["train"].read_bytes().decode("utf-8").splitlines()
    expected = generate_pairs("fr", "train", 20)
    assert lines == [f"{source}\t{target}" for source, target in expected]


@pytest.mark.parametrize(
    "arguments, error, message",
    [
        (("nl", "train", 1), ValueError, "`language` must be one of 'de', 'fr'"),
        (("de", "dev", 1), ValueError, "`split` must be one of"),
        (("de", "train", 0), ValueError, "`count` must be at least 1"),
        (("de", "train", 1.5), TypeError, "`count` must be int"),
        (("de", "train", 1, "x"), TypeError, "`seed` must be int"),
    ],
)
def test_bad_arguments_are_refused_at_once(arguments, error, message):
    with pytest.raises(error, match=message):
        generate_pairs(*arguments)


def test_count_beyond_the_grammar_is_an_error(monkeypatch):
    class Stuck:
        def __init__(self, seed):
            self.plan = CASES[0][0]

        def sentence(self):
            return self.plan

    module = sys.modules["keras_transformer.quickstart.grammar.corpus"]
    monkeypatch.setattr(module, "Grammar", Stuck)
    monkeypatch.setattr(module, "_MAX_IDLE_DRAWS", 50)
    split = split_of(CASES[0][2])
    with pytest.raises(ValueError, match="1 pairs, then 50 draws"):
        list(generate_pairs("de", split, 2))


@pytest.mark.parametrize(
    "content, message",
    [
        ("english\tgender\n", r":1: the columns must be english, gender, german"),
        ("Anna\tf\tAnna", r":2: expected 4 columns. Received: 3"),
        ("Anna\tx\tAnna\tAnna", r":2: `gender` must be m or f. Received: 'x'"),
        ("Anna\tf\tAnna \tAnna", r":2: `german` has stray spaces"),
        ("A\tf\tA\tA\nA\tf\tA\tA", r":3: 'A' is already on line 2"),
    ],
)
def test_bad_lexicon_lines_are_named(tmp_path, content, message):
    path = tmp_path / "lexicon_names.tsv"
    has_header = content.startswith("english")
    header = "" if has_header else "english\tgender\tgerman\tfrench\n"
    path.write_text(header + content, encoding="utf-8")
    with pytest.raises(ValueError, match=r"lexicon_names\.tsv" + message):
        read_entries(path, Name)


def test_entries_are_typed():
    assert all(isinstance(noun, Noun) for noun in LEXICON.nouns)
    assert all(isinstance(word, Adjective) for word in LEXICON.adjectives)
