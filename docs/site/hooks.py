"""What MkDocs calls while it builds (mkdocs.yml): anchors as GitHub makes them, and a search that works from a disk."""

import json
import pathlib
import re


def github_slug(text, separator):
    """“The layers: `Gau`” → the-layers-gau."""
    text = re.sub(r"<[^>]*>", "", text).strip().lower()
    return re.sub(r"[^\w\- ]", "", text).replace(" ", separator)


def on_config(config):
    config["mdx_configs"].setdefault("toc", {})["slugify"] = github_slug
    return config


def on_post_build(config):
    site = pathlib.Path(config["site_dir"])
    (site / "404.html").unlink()  # a page of servers, whose links begin at their root
    index = json.loads((site / "search/search_index.json").read_text(encoding="utf-8"))
    index["docs"] = [page for page in index["docs"] if not page["location"].startswith("source/")]
    text = json.dumps(index, ensure_ascii=False)
    (site / "search/search_index.json").write_text(text, encoding="utf-8")
    worker = next((site / "assets/javascripts/workers").glob("search.*.js")).read_text(encoding="utf-8")
    (site / "search/offline.js").write_text(
        "// The index and the worker of the search, for pages that may not fetch them.\n"
        f"var __search = {{index: Promise.resolve({text}),\n"
        f'  worker: URL.createObjectURL(new Blob([{json.dumps(worker)}], {{type: "text/javascript"}}))}};\n',
        encoding="utf-8",
    )
