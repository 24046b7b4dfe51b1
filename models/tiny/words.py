"""The words that dialogues are made of, and the names that training never sees."""

from __future__ import annotations

from random import Random
from string import ascii_letters, ascii_lowercase, ascii_uppercase, digits, punctuation

from models.tiny.phrasing import pick


def words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


NAMES = words(
    """
    Ada Alan Alice Amir Amy Andrea Andrew Anna Anton Arthur Ava Barbara Bela Ben Bianca Bob Boris Brian Bruno Carl
    Carla Carlos Carmen Carol Cecil Charles Chen Chloe Chris Clara Claude Conrad Cora Dan Dana Daniel David Deniz
    Diana Diego Dora Doris Edgar Edith Eduard Elena Eli Elias Ella Elsa Emil Emily Emma Eric Erika Ernest Ethan Eva
    Evan Fatima Felix Fiona Flora Frances Frank Fred Frida Gabriel Gary George Gina Grace Greta Gustav Hana Hannah
    Harry Hassan Hector Heidi Helen Henry Hugo Ian Ida Igor Ines Ingrid Irene Iris Isaac Ivan Jack Jacob Jamal James
    Jan Jane Jason Jean Jenny Joan Joe Johan John Jonas Jose Joseph Judy Julia Julian June Kai Karim Karl Kate Katrin
    Kenji Kevin Klara Kofi Lana Lars Laura Lea Leila Lena Leo Leon Lewis Liam Lily Linda Lisa Louis Lucas Lucy Luis
    Luna Mara Marco Maria Mark Marta Martin Mary Matteo Max Maya Mehmet Mia Michael Mila Milan Mina Mira Mona Nadia
    Nancy Naomi Nelson Nick Nicole Nils Nina Noah Nora Olaf Olga Oliver Omar Oscar Otto Pablo Patrick Paul Paula Pedro
    Peter Petra Philip Pia Quinn Rachel Ralph Ravi Ray Rita Robert Rosa Ruth Ryan Sally Sam Samir Sandra Sara Sean
    Selma Simon Sofia Sonja Stefan Stella Steve Susan Sven Tara Ted Theo Thomas Tim Tina Tom Tony Ulla Uma Vera Victor
    Vincent Walter Wanda Wendy Will Xenia Yara Yasmin Yuki Yusuf Zoe
    """
)
HELD_OUT_NAMES = words(
    """
    Agnes Albert Amelia Astrid Beatrix Bernard Camille Casper Dmitri Dorothy Edwin Esther Fabian Freya Gloria Gregor
    Harriet Hilda Ismael Jasper Josephine Kirsten Leonard Lorenzo Magnus Marianne Mirela Nathan Octavia Ophelia Pascal
    Priya Roland Rosalind Sebastian Sigrid Tabitha Tobias Ursula Valerie Vladimir Wilhelm Yolanda Zachary
    """
)
COLOURS = words(
    """
    red green blue yellow orange purple pink brown black white grey violet turquoise gold silver crimson beige navy
    """
)
FOODS = words(
    """
    pizza pasta rice soup bread cheese salad sushi curry cake chocolate honey toast noodles pancakes potatoes beans
    ice-cream dumplings sandwiches eggs
    """
)
FRUITS = words(
    """
    apple pear plum cherry banana mango grape lemon lime peach fig melon orange kiwi apricot berry coconut papaya
    """
)
SHOPPING = words(
    """
    milk eggs bread butter cheese salt sugar flour tea coffee rice soap paper water oil honey juice nuts onions
    carrots tomatoes potatoes garlic pepper jam
    """
)
ANIMALS = words(
    """
    cat dog horse cow sheep goat rabbit mouse fox wolf bear lion tiger zebra owl eagle duck goose frog snake turtle
    whale dolphin shark spider bee ant monkey panda camel elephant giraffe penguin
    """
)
OBJECTS = words(
    """
    book lamp table chair box bag key bottle cup plate knife spoon phone clock mirror basket bucket hammer rope ladder
    umbrella candle blanket pillow pencil letter ticket map coin ring hat coat shoe scarf car bicycle boat train drum
    piano guitar kite ball robot door window wall house gate
    """
)
PLACES = words(
    """
    kitchen garden garage office cellar attic drawer cupboard bedroom hall library school market park station harbour
    forest museum bakery shed
    """
)
CITIES = words(
    """
    Amsterdam Athens Berlin Boston Cairo Chicago Delhi Dublin Geneva Hamburg Helsinki Istanbul Lagos Lima Lisbon
    London Madrid Milan Mumbai Munich Nairobi Oslo Paris Prague Quito Rome Seoul Sofia Sydney Tokyo Toronto Turin
    Vienna Warsaw Zurich
    """
)
COUNTRIES = words("France Italy Spain Japan Norway Egypt Peru Canada Brazil Kenya India Poland Greece Chile")
JOBS = words(
    """
    teacher doctor nurse farmer baker painter singer pilot sailor lawyer writer cook driver gardener engineer plumber
    carpenter tailor dentist dancer
    """
)
SPORTS = words("football tennis chess golf hockey rugby cricket swimming running sailing skiing boxing")
DAYS = words("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")
MONTHS = words("January February March April May June July August September October November December")
NUMBER_WORDS = words(
    """
    zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen
    eighteen nineteen twenty
    """
)
ORDINALS = words("first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth")
COMMON = words(
    """
    about above across after again air all almost along also always and another any around ask away back beautiful
    because become before begin behind below beside better between big bird bridge bright bring broken brother build
    busy but buy call carry catch certain change child city clean clear climb close cloud cold come corner could
    country cross cut dance dark day deep different dinner dream drink dry each early earth easy eat empty end enough
    even evening ever every example eye face fall family far fast father feel few field fight fill find fine fire
    first fish floor flower fly follow food foot for forget free fresh friend from front full game gentle give glass
    go good grass great green ground grow half hand happy hard hear heavy help here high hill hold home hope hot hour
    how ice idea if inside island into just keep kind know lake land large last late laugh lead leaf learn leave left
    less letter life light like line listen little long look lose loud love low make many mark mean meet middle mind
    minute moon more morning most mother mountain mouth move much music must near never new next night noise nose
    nothing now ocean of off often old on once only open or other our out outside over own page paint paper part pass
    path people picture piece plain plant play point poor pull push put quick quiet quite rain reach read ready rest
    rich right river road rock roof room rope round run sail same sand say sea season see sell send seven shade shape
    share ship shore short show sing sister sit sky sleep slow small smile snow soft some song soon sound south space
    speak spring stand star start stay step still stone stop storm story street strong such summer sun sure sweet
    table take talk tall teach tell than that the their then there they thick thin thing think this those though
    through time tiny together tomorrow too top touch town tree true try turn under until up use valley very visit
    voice wait walk want warm wash watch water wave way weather well west wet what wheel when where which while wide
    wild wind winter wise with without wonder wood word work world write year yellow yes yesterday young
    """
)
PLAIN_WORDS = tuple(dict.fromkeys((*COMMON, *FOODS, *FRUITS, *ANIMALS, *OBJECTS, *PLACES, *COLOURS)))

_ONSETS = words("b c d f g h j k l m n p r s t v w z br ch cl dr fl gr kl kr pl sh sk st th tr")
_VOWELS = words("a e i o u a e i o ai ea ou")
_ALPHABETS = (
    ascii_lowercase,
    ascii_uppercase,
    ascii_letters + digits,
    ascii_letters + digits + "-_.@/",
    digits + "+-*/=().,:",
    punctuation,
    ascii_lowercase + "äöüßéèçñåøæœ€–…",
)
_CODAS = words("n r l s t m k d x nd rk st") + ("",) * 8


def invented_word(rng: Random) -> str:
    """A word that nobody has heard, and everybody can pronounce."""
    return "".join(pick(rng, _ONSETS) + pick(rng, _VOWELS) + pick(rng, _CODAS) for _ in range(rng.randint(1, 3)))


def any_name(rng: Random) -> str:
    """A name of the list, or an invented one, so that names are copied and not only known; now and then two of them."""
    if rng.random() < 0.06:
        return f"{pick(rng, NAMES)} {invented_word(rng).capitalize()}"
    return pick(rng, NAMES) if rng.random() < 0.55 else invented_word(rng).capitalize()


def any_word(rng: Random) -> str:
    return pick(rng, PLAIN_WORDS) if rng.random() < 0.8 else invented_word(rng)


def any_string(rng: Random) -> str:
    """Characters that follow each other by chance, as in passwords, addresses and typing errors."""
    alphabet = pick(rng, _ALPHABETS)
    return "".join(pick(rng, alphabet) for _ in range(rng.randint(2, 8)))


def any_number(rng: Random) -> str:
    """Of one to four digits, each length as likely."""
    length = rng.randint(1, 4)
    return str(rng.randrange(10 ** (length - 1) if length > 1 else 0, 10**length))


def any_code(rng: Random) -> str:
    """Four to six digits, perhaps with letters before them."""
    letters = "".join(pick(rng, "ABCDEFGHKLMNPRSTUVWXZ") for _ in range(pick(rng, (0, 0, 1, 2))))
    return letters + "".join(pick(rng, "0123456789") for _ in range(rng.randint(4 - len(letters), 6 - len(letters))))


def listed(items: list[str] | tuple[str, ...]) -> str:
    return ", ".join(items)
