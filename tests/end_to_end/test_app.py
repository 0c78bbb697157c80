"""The page in a real browser: load, upload, click, and the picture changes. Bad images get words, never a traceback."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from glocal import LIFE, save
from glocal.zoo import create_model
from tests.unit.explain.test_picture import broken

pytest.importorskip("gradio", reason="gradio is not installed; pip install 'glocal[app]'")
httpx = pytest.importorskip("httpx", reason="httpx comes with gradio")

TINY = {"img_size": 32, "patch_size": 8, "embed_dim": 24, "depth": 2, "num_heads": 2, "num_classes": 4}
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--window-size=1200,1400",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    pixels = np.random.default_rng(0).integers(0, 255, (40, 60, 3), dtype=np.uint8)
    Image.fromarray(pixels).resize((600, 400)).save(folder / "photo.png")
    save(create_model("vit_tiny_patch16_224", **TINY), folder / "runs/plain/model.safetensors")
    save(create_model("vit_tiny_patch16_224", LIFE(), **TINY), folder / "runs/life/model.safetensors")
    return folder


@pytest.fixture(scope="module")
def address(folder: Path) -> Iterator[str]:
    from glocal.app import start

    page = start([], folder / "runs", "127.0.0.1", None, False, False, lambda text: None, wait=False)
    yield page.local_url
    page.close()


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed; pip install selenium")
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not chromium or not driver:
        pytest.skip("no browser: install Debian's packages chromium and chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('chromium')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"performance": "ALL"})
    opened = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    yield opened
    opened.quit()


def until(true: Callable[[], Any], seconds: float = 60) -> Any:
    """Wait for a page to do something."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            if found := true():
                return found
        except Exception:  # the page redraws its parts under our hands
            pass
        time.sleep(0.1)
    raise AssertionError(f"it did not happen in {seconds} s")


def one(browser: Any, css: str) -> Any:
    return browser.find_element("css selector", css)


def message(browser: Any) -> str:
    return one(browser, "#message").text


def picture(browser: Any, number: int = 1) -> str:
    return one(browser, f"#map-{number} img").get_attribute("src")


def upload(browser: Any, path: Path) -> None:
    for old in browser.find_elements(
        "css selector", "#image button[aria-label='Remove this file'], #image button[aria-label='Clear']"
    ):
        old.click()
        break
    until(lambda: one(browser, "#image input[type=file]")).send_keys(str(path))


@pytest.fixture
def page(browser: Any, address: str) -> Any:
    browser.get(address)
    until(lambda: "drop an image" in message(browser))
    return browser


def test_upload_look_and_click(page: Any, folder: Path) -> None:
    upload(page, folder / "photo.png")
    first = until(lambda: picture(page))
    assert until(lambda: picture(page, 2)) != first
    assert "class token" in message(page)
    assert "GMACs" in one(page, "#cost-1").text
    assert "class" in one(page, "#prediction-1").text

    image = one(page, "#map-1 img")
    page.execute_script("arguments[0].scrollIntoView({block: 'center'})", image)
    from selenium.webdriver import ActionChains

    ActionChains(page).move_to_element_with_offset(image, -40, -60).click().perform()
    clicked = until(lambda: "the patch at" in message(page) and picture(page) != first and picture(page))

    one(page, "#class-token").click()
    until(lambda: "class token" in message(page) and picture(page) != clicked)

    one(page, "#method label:nth-of-type(3)").click()
    until(lambda: message(page).startswith("heads"))


def test_the_page_asks_nobody_else_for_anything(page: Any) -> None:
    asked = [json.loads(entry["message"])["message"] for entry in page.get_log("performance")]
    addresses = [each["params"]["request"]["url"] for each in asked if each["method"] == "Network.requestWillBeSent"]
    outgoing = [url for url in addresses if url.startswith(("http", "ws"))]  # the browser has pages of its own
    assert outgoing
    assert not [url for url in outgoing if not url.startswith("http://127.0.0.1:")]


def test_bad_images_get_words_on_the_page(page: Any, tmp_path: Path) -> None:
    for kind, (path, words) in broken(tmp_path).items():
        if not path.is_file():
            continue
        upload(page, path)
        until(lambda words=words: "Sorry" in message(page) and words in message(page))
        assert "Traceback" not in one(page, "body").text, kind


def test_no_file_outside_is_served(address: str, folder: Path) -> None:
    secret = folder / "runs/plain/model.safetensors"  # a model may be looked into, not downloaded
    for path in ("/etc/passwd", str(secret)):
        for route in ("gradio_api/file=", "file="):
            assert httpx.get(f"{address}{route}{path}").status_code in (403, 404)


def test_a_question_about_a_file_outside_is_refused(address: str) -> None:
    outside = {"path": "/etc/passwd", "meta": {"_type": "gradio.FileData"}}
    data = ["runs/plain", "", outside, "rollout", "last", "all", "mean"]
    asked = httpx.post(f"{address}gradio_api/call/look", json={"data": data})
    if asked.status_code == 200:
        told = httpx.get(f"{address}gradio_api/call/look/{asked.json()['event_id']}", timeout=30).text
        assert "event: error" in told
        assert "root:" not in told
    else:
        assert asked.status_code >= 400


def test_uploads_have_a_limit(address: str) -> None:
    large = b"0" * (65 * 2**20)
    answer = httpx.post(f"{address}gradio_api/upload", files={"files": ("large.png", large)}, timeout=60)
    assert answer.status_code == 413
