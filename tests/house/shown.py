"""The pictures that pages show: what pictures.py and tests/claims/page_test.py ask of them.

A picture says in words what it shows, has colours for light and for dark screens, and needs no other file. Those of
docs/CLAIMS.md lie in docs/pictures/claims, where examples/claims.sh leaves them; all others in docs/pictures.
"""
import pathlib
import re
import xml.etree.ElementTree as xml

ANIMATED = "training"
failures = []  # what is wrong, in words


def check(good, *words):
    if not good:
        failures.append(" ".join(map(str, words)))
    return good


def form(name, text):
    """A picture by itself."""
    size, limit = len(text.encode()), 300_000 if name == ANIMATED else 100_000
    check(size < limit, f"{name}.svg has {size} bytes; {limit} are the limit")
    root = xml.fromstring(text)
    space = "{http://www.w3.org/2000/svg}"
    for tag in ("title", "desc"):
        check(len((root.findtext(space + tag) or "").split()) >= 3, f"{name}.svg has no {tag} for screen readers")
    check(root.get("role") == "img", f"{name}.svg has not the role of a picture")
    check("prefers-color-scheme:dark" in text, f"{name}.svg has no colours for dark screens")
    check(not re.search(r"<(script|image|foreignObject)|@import|@font-face|url\((?!#)|href=['\"](?!#)", text),
          f"{name}.svg needs something outside of it, which <img> does not load")
    check((name == ANIMATED) == ("@keyframes" in text), f"{name}.svg: only {ANIMATED}.svg moves")
    shapes = re.sub(r"<(title|desc|text)[\s\S]*?</\1>", "", text)
    check("nan" not in shapes, f"{name}.svg has a coordinate that is no number")


def shown_by_pages(source):
    """The names of the pictures in docs/pictures that pages of a tree show, each with its pages. Checks those of the
    page of claims, which are all that docs/pictures/claims has."""
    folder, shown, of_claims = source / "docs/pictures", {}, set()
    for page in source.rglob("*.md"):
        where = page.relative_to(source)
        if any(part.startswith(("build", ".")) for part in where.parts):
            continue
        claims = where == pathlib.Path("docs/CLAIMS.md")
        for words, link in re.findall(r"!\[([^\]]*)\]\(([^)]+\.svg)\)", page.read_text(encoding="utf-8")):
            picture, home = (page.parent / link).resolve(), folder / "claims" if claims else folder
            check(picture.parent == home, f"{where} shows {link}, which is none of {home.relative_to(source)}")
            check(len(words.split()) >= 3, f"{where}: {link} has no words for those who cannot see it")
            if claims:
                of_claims.add(picture)
            else:
                shown.setdefault(picture.stem, set()).add(where.as_posix())
    found = set((folder / "claims").glob("*.svg"))
    for picture in sorted(found | of_claims):
        if check(picture in of_claims, f"docs/CLAIMS.md does not show {picture.name}") and check(
                picture in found, f"docs/CLAIMS.md shows {picture.name}, which is not there"):
            form(picture.stem, picture.read_text(encoding="utf-8"))
    return shown
