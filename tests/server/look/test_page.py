"""The page over HTTP: what it shows, who may see it, and that nothing a policy wrote runs."""

import base64
import io
import json
import re
import shutil
from collections.abc import Iterator
from html import unescape
from html.parser import HTMLParser
from pathlib import Path

import httpx
import pytest
from PIL import Image

from rewardfleet.blocking import RewardFleet
from rewardfleet.code import code_request
from rewardfleet.score_log import Scored
from rewardfleet_server.code.app import create_app
from rewardfleet_server.code.settings import CodeSettings
from rewardfleet_server.look.labels import Labels, label_of
from rewardfleet_server.testing import serving, wait_until

from .conftest import ATTACKS, REFERENCE, drawn_items, numbers_of, scored_items, served, write_log

ROWS = Path(__file__).parents[2] / "data" / "rows"


class Structure(HTMLParser):
    """The tags and names of attributes of a page, and its text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, tuple[str, ...]]] = []
        self.text = ""
        self.cells: list[str] = []  # of tables
        self.in_cell = False
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, tuple(name for name, _ in attrs)))
        if tag == "td":
            self.cells.append("")
            self.in_cell = True

    def handle_endtag(self, tag):
        self.in_cell = self.in_cell and tag != "td"

    def handle_data(self, data):
        self.text += data
        if self.in_cell:
            self.cells[-1] += data


def pages(client: httpx.Client) -> dict[str, str]:
    """Return the pages of a log, by what they are of."""
    found = {"/": client.get("/").text, "/compare": client.get("/compare").text}
    for number in numbers_of(client):
        found[f"/record/{number}"] = client.get(f"/record/{number}").text
    return found


def test_the_table_is_filtered_sorted_and_searched(serve_page):
    with httpx.Client(base_url=serve_page(scored_items("a plum"))) as client:

        def numbers(query: str) -> list[str]:
            page = client.get("/", params=query)
            assert page.status_code == 200
            return [part.split('"')[0] for part in page.text.split('data-n="')[1:]]

        everything = numbers("")
        assert len(everything) == 6
        queries = {"service=video": 2, "judge=another": 1, "step=2": 2, "uid=a plum": 1}
        queries |= {"text=PUT A PLUM": 2, "suspicious=1": 1, "text=nothing of this": 0}
        assert {query: len(numbers(query)) for query in queries} == queries
        by_score = numbers("sort=score&order=up")
        assert sorted(by_score) == sorted(everything)
        assert client.get(f"/record/{by_score[1]}").text.count("1 wrong_answer") == 1
        # What is no filter is ignored.
        assert numbers("sort=n; drop table items&step=x&start=x") == everything


def test_a_record_shows_what_was_scored_and_why(serve_page):
    with httpx.Client(base_url=serve_page(scored_items("a plum"))) as client:
        shown = [Structure(text).text for text in pages(client).values()]
    clip = next(text for text in shown if "It saw a plum" in text)
    assert "Curve" in clip and "Frames" in clip and "Same request" in clip
    program = next(text for text in shown if "What the policy wrote" in text and "Tests" in text)
    assert "wrong_answer" in program and "Suspicion:" in program
    assert "a plum1" in next(text for text in shown if "Group a plum" in text)


def test_a_clip_shows_the_references_that_it_was_compared_with(serve_page):
    with httpx.Client(base_url=serve_page(scored_items("a plum"))) as client:
        number = numbers_of(client)[0]
        page = Structure(client.get(f"/record/{number}").text).text
        assert "Nearest finished frame: a plum, 1.5 gray levels away" in page and REFERENCE in page
        picture = client.get(f"/record/{number}/references/0")
        assert picture.headers["content-type"] == "image/jpeg"
        assert Image.open(io.BytesIO(picture.content)).width > 100
        for path in ("references/1", "references/x", f"references/{'9' * 99}"):
            assert client.get(f"/record/{number}/{path}").status_code == 404
        other = numbers_of(client)[2]
        assert client.get(f"/record/{other}/references/0").status_code == 404


def test_an_answer_shows_what_its_calls_cost_and_how_the_score_follows(serve_page):
    with httpx.Client(base_url=serve_page(scored_items("a plum"))) as client:
        page = Structure(client.get(f"/record/{numbers_of(client)[3]}").text)
    assert page.cells[:4] == ['search(for="a plum")', "expected", "search", "0.5"]
    assert page.cells[4:] == ["a plum()", "not expected", "other", "1"]
    assert "The cost is 1.5; the budget is 0.3 per answer" in page.text
    assert "Minus the price of tools: lambda 0.5 x cost 1.5 = " in page.text


def test_an_episode_shows_its_group_and_what_was_kept_and_why(serve_page):
    with httpx.Client(base_url=serve_page(scored_items("a plum"))) as client:
        page = Structure(client.get(f"/record/{numbers_of(client)[5]}").text)
    assert page.cells[:7] == ["a plum0", "yes", "9", "1", "0.7", "", "yes"]
    assert page.cells[7:13] == ["a plum1", "no", "9", "0", "-0.3", ""]
    assert page.cells[13] == "no: `select: efficient` keeps 1 members of a group"
    assert "1 of 2 episodes are kept" in page.text and "Advantage" in page.text
    assert "mean 0.5, standard deviation 0.7071" in page.text


@pytest.fixture(scope="module")
def code() -> Iterator[str]:
    settings = CodeSettings(cache_mb=0, testlib_path=ROWS.parent / "code/testlib/testlib.h")
    with serving(create_app(settings)) as url:
        yield url


@pytest.mark.parametrize("path", sorted(ROWS.glob("*.jsonl")), ids=lambda path: path.stem)
def test_tests_of_rows_of_data_sets_are_shown(serve_page, code: str, path: Path):
    row = json.loads(path.read_text().splitlines()[0])
    row.pop("_source", None)
    request = code_request("print(1)", row)
    with RewardFleet(code=code) as fleet:
        score = fleet.code.score("print(1)", row)
    with httpx.Client(base_url=serve_page([Scored("code", 1.0, request, score)])) as client:
        cells = Structure(client.get(f"/record/{numbers_of(client)[0]}").text).cells
    assert len(cells) == 7 * len(score.verdicts)
    assert all(cells[7 * at + 2] for at in range(len(score.verdicts)))


def test_texts_are_found_as_a_policy_wrote_them(serve_page):
    with httpx.Client(base_url=serve_page(scored_items('Größe "\\\n\t中'))) as client:
        for text in ("größe", "GRÖSSE"[:3], '"\\\n', "中", "print('größe \""):
            assert 'data-n="' in client.get("/", params={"text": text}).text, text


def test_new_records_are_there_when_the_table_is_loaded_again(serve_page, tmp_path: Path):
    with httpx.Client(base_url=serve_page(scored_items("a plum"))) as client:
        before = numbers_of(client)
        write_log(tmp_path / "log", scored_items("a pear", start=0.0))
        wait_until(lambda: "12 scores" in client.get("/").text, 60)
        after = numbers_of(client)
        assert after[6:] == before  # a record keeps its number: open pages stay right
        shutil.rmtree(tmp_path / "log")
        wait_until(lambda: "new records cannot be read" in client.get("/").text, 60)
        assert numbers_of(client) == after


def test_two_judges_are_compared_with_disagreements_first(serve_page):
    with httpx.Client(base_url=serve_page(scored_items())) as client:
        page = client.get("/compare", params={"first": "reference", "second": "another"})
    assert "1 requests were scored by both" in page.text
    assert "0.5" in Structure(page.text).text


def test_labels_are_lines_of_a_file_and_shown(serve_page, tmp_path: Path):
    with httpx.Client(base_url=serve_page(scored_items())) as client:
        numbers = [
            n for n in numbers_of(client) if "0.25" in client.get(f"/record/{n}").text[:2500]
        ]
        page = client.get(f"/record/{numbers[0]}").text
        target = page.split('hx-post="')[1].split("?")[0]
        record_id = page.split("&amp;id=")[1].split('"')[0]

        def post(label: str, record_id: str, headers: dict[str, str]) -> httpx.Response:
            params = {"label": label, "id": record_id}
            return client.post(target, params=params, headers=headers)

        from_page = {"hx-request": "true"}
        assert post("right", record_id, {}).status_code == 403  # a page of another origin
        assert post("good", record_id, from_page).status_code == 400
        assert post("right", "of another record", from_page).status_code == 409
        for label in ("wrong", "right"):
            answer = post(label, record_id, from_page)
            assert 'aria-pressed="true">' + label.capitalize() in answer.text
        assert ">right<" in client.get("/").text
    first, last = map(json.loads, (tmp_path / "labels.jsonl").read_text().splitlines())
    assert (first["label"], first["success"]) == ("wrong", True)  # 0.25 says no, wrongly
    assert (last["label"], last["success"], last["judge"]) == ("right", False, "reference")
    assert (tmp_path / "labels.jsonl").stat().st_mode & 0o077 == 0


def test_a_verdict_is_by_the_threshold_of_the_calibration(tmp_path: Path):
    labels = Labels(tmp_path / "labels.jsonl")
    unknown = dict.fromkeys(("service", "judge", "task", "request", "path"))
    provenance = '{"calibration": {"threshold": 0.7}}'
    record = {**unknown, "id": "7" * 64, "score": 0.6, "provenance": provenance}
    labels.add(record, "right")
    labels.add(record, label_of(record, success=True))
    right, seen = map(json.loads, (tmp_path / "labels.jsonl").read_text().splitlines())
    assert right["success"] is False
    assert (seen["success"], seen["label"]) == (True, "wrong")


def test_the_random_sample_is_labeled_without_the_verdict(serve_page, tmp_path: Path):
    with httpx.Client(base_url=serve_page(drawn_items("a plum"))) as client:
        page, from_page = client.get("/to-label").text, {"hx-request": "true"}
        assert "3 scores of a random sample" in page and "a plum" in page
        assert "reference" not in page and "It saw" not in page
        skipped = page.split("after=")[1].split('"')[0]
        assert f"id={skipped}&" not in client.get(f"/to-label?after={skipped}").text
        saw = ["success", "unclear", "failure"]
        for count, seen in zip((3, 2, 1), saw, strict=True):
            assert f"{count} score" in Structure(page).text
            links = [unescape(each) for each in re.findall(r'hx-post="([^"]+)"', page)]
            (link,) = [each for each in links if each.endswith(seen)]
            assert client.post(link).status_code == 403  # a page of another origin
            assert client.post(f"{link}x", headers=from_page).status_code == 400
            assert client.post(link.replace("id=", "id=0"), headers=from_page).status_code == 409
            answer = client.post(link, headers=from_page)
            page = client.get(answer.headers["hx-redirect"]).text
        assert "No score is to be labeled" in page
    lines = [*map(json.loads, (tmp_path / "labels.jsonl").read_text().splitlines())]
    assert [each["success"] for each in lines] == [True, None, False]
    for each in lines:
        verdict = each["score"] >= 0.5
        right = "unclear" if each["success"] is None else "right"
        assert each["label"] == (right if each["success"] in {None, verdict} else "wrong")


#: A harmless text, then some with three attacks each: what stops one of them would show another.
TEXTS = ["plain", *(" ".join(ATTACKS[at::14]) for at in range(14))]


@pytest.fixture(scope="module")
def attacked(tmp_path_factory) -> Iterator[tuple[httpx.Client, list[int]]]:
    """The page of records with each of the texts, and their numbers."""
    items = [each for at, text in enumerate(TEXTS) for each in scored_items(text, 1000.0 * at)]
    folder = tmp_path_factory.mktemp("attacked")
    with served(folder, items) as url, httpx.Client(base_url=url) as client:
        yield client, numbers_of(client)


@pytest.mark.parametrize("place", range(6))
def test_what_a_policy_wrote_is_text(attacked: tuple[httpx.Client, list[int]], place: int):
    client, numbers = attacked
    plain, *pages = (Structure(client.get(f"/record/{n}").text) for n in numbers[place::6])
    for text, page in zip(TEXTS[1:], pages, strict=True):
        assert page.tags == plain.tags
        assert text in page.text


def test_the_table_shows_attacks_as_text(attacked: tuple[httpx.Client, list[int]]):
    client, _ = attacked
    plain = Structure(client.get("/", params={"text": "plain"}).text)
    for at in (0, 50):
        page = Structure(client.get("/", params={"start": at}).text)
        links = {("a", ("rel", "href")), ("nav", ("class", "aria-label"))}
        assert {*page.tags} - {*plain.tags} <= links


def test_pages_allow_nothing_but_their_own_files(serve_page):
    with httpx.Client(base_url=serve_page(scored_items())) as client:
        record = f"/record/{numbers_of(client)[0]}"
        for path in ("/", "/compare", record, f"{record}/frames", "/static/look.js", "/none"):
            policy = client.get(path).headers["content-security-policy"]
            assert "default-src 'none'" in policy and "unsafe" not in policy
        page = client.get(record).text
        assert "style=" not in page and "<script>" not in page


def test_a_page_beyond_loopback_needs_a_key(serve_page, tmp_path: Path):
    keys = tmp_path / "keys"
    keys.write_text("secret\n")
    with httpx.Client(base_url=serve_page(scored_items(), keys)) as client:
        refused = client.get("/")
        assert refused.status_code == 401
        assert refused.headers["www-authenticate"].startswith("Basic")
        basic = base64.b64encode(b"any:secret").decode()
        assert client.get("/", headers={"authorization": f"Basic {basic}"}).status_code == 200


def test_another_name_of_this_server_is_refused(serve_page):
    """A page of another origin can give its own name the address of this one."""
    with httpx.Client(base_url=serve_page(scored_items())) as client:
        assert client.get("/", headers={"host": "example.invalid"}).status_code == 403


@pytest.mark.parametrize("path", ["/record/0", "/record/x", f"/record/{'9' * 5000}", "/record/-1"])
def test_records_that_do_not_exist(serve_page, path: str):
    with httpx.Client(base_url=serve_page(scored_items())) as client:
        assert client.get(path).status_code == 404
        assert client.get(f"{path}/frames").status_code == 404
