"""What a column's name hints at, and what it may be called in a schema. English words; values decide, names help."""

from __future__ import annotations

import re
import unicodedata

from diurnal.config.features import TORCH_MODULE_NAMES

MAX_NAME_CHARS = 80

_OUTCOMES = (
    "label labels is_label target y outcome",
    "click clicked is_click is_clicked clk has_click clicks",
    "conversion converted is_conversion is_converted conv purchase purchased is_purchase bought buy ordered install "
    "installed signup subscribed churn churned response responded liked like positive is_positive relevant",
)
_LABELS = tuple(names.split() for names in _OUTCOMES)
"""Names of outcomes, the most telling first."""

_HAPPENED = "click clicked conversion converted purchase purchased bought ordered installed subscribed churned"
_DONE = frozenset(_HAPPENED.split())
"""What a row's text says where the outcome came about."""

_BEFORE = "past prev previous last history hist avg mean ctr rate prior before ever count cnt num days"
_PAST = frozenset(_BEFORE.split())

_HINTS = {
    "user": "user uid member visitor cookie customer account profile subscriber household viewer buyer person client "
    "consumer reader player userid memberid customerid visitorid cookieid",
    "item": "item product ad creative campaign advertiser article video movie film song track sku asin listing shop "
    "doc document page publisher site domain app book news post query keyword merchant seller brand author channel "
    "placement slot zone adid itemid productid campaignid",
    "request": "request req impression imp event auction rid uuid guid trace transaction hit pageview requestid "
    "impressionid eventid auctionid",
    "key": "id ids idx key hash uid guid uuid",
    "category": "index code cat category type kind class group segment band bucket bin tier "
    "grade zip zipcode postcode version",
    "quantity": "count cnt num n age price amount amt sum total days hours minutes seconds secs sec ms duration length "
    "len size score rate ratio pct percent value val qty quantity views clicks visits distance dist width height bytes "
    "bid cost cpc cpm freq frequency rating balance income lag year since avg mean max min median std elapsed "
    "impressions budget salary revenue delay depth popularity",
    "cyclic": "hour weekday dow month minute position pos rank",
    "time": "time timestamp ts at when date datetime",
}
_WORDS = {kind: frozenset(words.split()) for kind, words in _HINTS.items()}

_ENGLISH = "paid bid valid grid void solid rapid mid amid avoid aid raid said laid kid lid"
_NO_IDS = frozenset(_ENGLISH.split())
"""Words that end in `id` and name none."""

_WEIGHTED = "weight weights w sample_weight sample_weights importance_weight importance instance_weight"
_WEIGHTS = frozenset(_WEIGHTED.split())


def words(name: str) -> tuple[str, ...]:
    """`userId` and `USER.id` are (user, id)."""
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", name)
    return tuple(word for word in re.split(r"[\W_]+", spaced.casefold()) if word)


def hints_at(name: str, kind: str) -> bool:
    """Whether a word of the name says `user`, `item`, `request`, `key`, `category`, `quantity`, `cyclic` or `time`."""
    return any(_says(word, kind) for word in words(name))


def last_hint(name: str, kinds: tuple[str, ...]) -> str:
    """Which of the kinds the last telling word of the name says: a `price_category` is a category."""
    return next((kind for word in reversed(words(name)) for kind in kinds if _says(word, kind)), "")


def names_a(name: str, kind: str) -> bool:
    """Whether the name is that of the thing itself, as `user`, `user_id` or `userKey`, and not of what it has."""
    found = words(name)
    return hints_at(name, kind) and (len(found) == 1 or _says(found[-1], "key"))


def _says(word: str, kind: str) -> bool:
    if kind == "key" and len(word) > 3 and word.endswith("id") and word not in _NO_IDS:
        return True
    return word in _WORDS[kind]


def is_weight(name: str) -> bool:
    return "_".join(words(name)) in _WEIGHTS


def label_score(name: str) -> int:
    """How much the name sounds like an outcome: 0 is not at all, below 0 like something of the past."""
    found = words(name)
    joined = "_".join(found)
    for place, names in enumerate(_LABELS):
        if joined in names:
            return 30 - 10 * place - names.index(joined) // 4
    if not _PAST.isdisjoint(found) or found[:1] in (("is",), ("has",)):
        return -1
    for place, names in enumerate(_LABELS):
        if any(word in names for word in found if len(word) > 1):
            return 5 - place
    return 0


def names_an_outcome(value: str) -> bool:
    """Whether a text is what a row says when its outcome came about, as `bought`."""
    return value.casefold() in _DONE


class SafeNames:
    """Gives every column a name that a schema takes, none of them twice."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def take(self, column: str) -> str:
        """ASCII letters, digits, `_`, `.` and `-`, a letter or `_` first; the column's own name where it is that."""
        plain = unicodedata.normalize("NFKD", column).encode("ascii", "ignore").decode()
        name = re.sub(r"[^A-Za-z0-9_.-]+", "_", plain)
        if name != column:
            name = name.strip("_")
        if not re.match(r"[A-Za-z_]", name):
            name = f"column_{name}".rstrip("_")
        return self._unique(name[:MAX_NAME_CHARS])

    def table(self, feature: str) -> str:
        """A name of a table, a torch submodule: letters, digits, `_` and `-`, and none that torch uses itself."""
        name = re.sub(r"^[^A-Za-z]+", "", feature.replace(".", "_"))
        return name if name == feature and name not in TORCH_MODULE_NAMES else self._unique(f"{name}_table".lstrip("_"))

    def _unique(self, name: str) -> str:
        number, unique = 1, name
        while unique in self._taken:
            number += 1
            unique = f"{name}_{number}"
        self._taken.add(unique)
        return unique
