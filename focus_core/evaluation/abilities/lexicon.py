"""The words that minimal pairs are made of. All are common, and each is plain in one sense."""

from __future__ import annotations

PEOPLE = (
    ("teacher", "teachers"),
    ("doctor", "doctors"),
    ("farmer", "farmers"),
    ("singer", "singers"),
    ("lawyer", "lawyers"),
    ("painter", "painters"),
    ("nurse", "nurses"),
    ("student", "students"),
    ("driver", "drivers"),
    ("writer", "writers"),
    ("neighbor", "neighbors"),
    ("child", "children"),
    ("guest", "guests"),
    ("soldier", "soldiers"),
)
"""(singular, plural)."""

THINGS = (
    ("book", "books"),
    ("table", "tables"),
    ("letter", "letters"),
    ("picture", "pictures"),
    ("chair", "chairs"),
    ("cup", "cups"),
    ("basket", "baskets"),
    ("lamp", "lamps"),
    ("key", "keys"),
    ("box", "boxes"),
    ("knife", "knives"),
    ("shelf", "shelves"),
    ("coat", "coats"),
    ("watch", "watches"),
)
"""(singular, plural)."""

PLACES = ("house", "garden", "school", "river", "church", "market", "station", "bridge")
NEAR = ("near", "behind", "beside", "in front of")
"""What stands between a person and another person, or a thing and another thing."""

OF_PEOPLE = ("tired", "happy", "angry", "late", "busy", "hungry", "famous", "afraid")
OF_THINGS = ("old", "new", "small", "heavy", "broken", "expensive", "clean", "strange")

WOMEN = (("woman", "women"), ("queen", "queens"), ("girl", "girls"), ("mother", "mothers"), ("sister", "sisters"))
MEN = (("man", "men"), ("king", "kings"), ("boy", "boys"), ("father", "fathers"), ("brother", "brothers"))
"""(singular, plural) of people whose pronoun the word itself tells."""

FEMALE_NAMES = ("Mary", "Anna", "Susan", "Alice", "Helen", "Emily")
MALE_NAMES = ("John", "Peter", "David", "Robert", "Henry", "Thomas")

SELF_VERBS = ("hurt", "blamed", "praised", "saw", "described", "introduced", "defended")
"""Past tense of verbs that take oneself as their object."""

OBJECT_VERBS = ("found", "bought", "wanted", "carried", "described", "hid", "sold", "broke")
"""Past tense of verbs that want an object."""

KNOW = ("knows", "remembers", "said", "forgot", "understood")
"""Verbs before both ``what`` and ``that``."""

IRREGULAR = (
    ("broke", "broken", "the window"),
    ("ate", "eaten", "the bread"),
    ("wrote", "written", "the letter"),
    ("took", "taken", "the money"),
    ("drove", "driven", "the car"),
    ("chose", "chosen", "the color"),
    ("gave", "given", "the answer"),
    ("wore", "worn", "the coat"),
    ("stole", "stolen", "the ring"),
    ("drew", "drawn", "the picture"),
    ("threw", "thrown", "the ball"),
    ("fell", "fallen", "on the stairs"),
)
"""(past, participle, what follows)."""

EVER = ("been to the city", "seen the sea", "met the queen", "read that book", "told a lie", "lost a key")
"""What one has ever done."""

MODALS = ("can", "will", "must", "should", "could", "might")
ACTIONS = (
    ("read", "reads", "the letter"),
    ("carry", "carries", "the box"),
    ("open", "opens", "the door"),
    ("clean", "cleans", "the kitchen"),
    ("sell", "sells", "the house"),
    ("help", "helps", "the stranger"),
    ("find", "finds", "the key"),
    ("paint", "paints", "the wall"),
)
"""(plain form, third person, an object)."""

MASS = ("water", "money", "bread", "furniture", "information", "luggage", "milk", "advice")
"""Nouns that are not counted."""
