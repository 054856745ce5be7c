"""Models from URLs, to the cache of this node."""

from __future__ import annotations

import hashlib
import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import fsspec
import msgspec
import pytest
from tests.file_server import FileServer, file_server
from tests.platform.models.fetched_files import FILES, TEMPLATES, WEIGHTS, contents

from baton.core.errors import CheckpointError, InvalidConfig, ModelUnreachable
from baton.platform.config.deployment import parse_config
from baton.platform.models.listing import Listing
from baton.platform.models.model_folder import find_model
from baton.platform.models.origins.web_token import token_headers

INDEX = "model.safetensors.index.json"


def sums(files: dict[str, bytes]) -> bytes:
    """As `sha256sum *` writes it."""
    lines = [f"{hashlib.sha256(data).hexdigest()}  {name}\n" for name, data in files.items()]
    return "".join(lines).encode()


def final_names(cache: Path) -> set[str]:
    """The files that somebody could take for whole."""
    return {path.name for path in cache.glob("*/*/*") if path.parent.suffix != ".partial"} & {
        *FILES
    }


def test_a_model_of_a_url_is_fetched_once_and_gateways_fetch_no_weights(web: FileServer) -> None:
    light = find_model(f"{web.url}/m", wants_weights=False)
    assert set(contents(light)) == {"config.json", "tokenizer.json"}

    folder = find_model(f"{web.url}/m/")
    assert folder == light
    assert contents(folder) == FILES
    assert find_model(f"{web.url}/m") == folder
    assert sorted(web.fetched()) == [f"m/{name}" for name in sorted(FILES)]  # each once

    web.is_down = True
    assert find_model(f"{web.url}/m") == folder
    web.is_down, kept = False, dict(web.files)
    web.files.clear()  # nor does it matter what became of it there
    assert find_model(f"{web.url}/m") == folder
    web.files |= kept

    web.is_down, web.files["m/config.json"] = False, b'{"b": 2}'
    newer = find_model(f"{web.url}/m")
    assert newer != folder  # whoever has opened the old one goes on with it
    assert contents(folder) == FILES


@pytest.mark.parametrize("knows_ranges", [True, False])
def test_what_came_before_a_cut_is_not_asked_for_again(
    web: FileServer, cache: Path, knows_ranges: bool
) -> None:
    web.knows_ranges = knows_ranges
    web.cuts = [1_000_000, 0, 0, 0]  # then nothing more comes: it is given up
    with pytest.raises(ModelUnreachable, match=r"model\.safetensors does not come from .* is kept"):
        find_model(f"{web.url}/m")
    assert final_names(cache) == {"config.json", "tokenizer.json"}

    folder = find_model(f"{web.url}/m")

    assert contents(folder) == FILES
    assert web.asked[-1] == ("m/model.safetensors", "bytes=1000000-")


def test_a_part_of_which_nobody_says_what_it_is_is_not_taken(web: FileServer) -> None:
    web.places_parts = False
    web.cuts = [1_000_000]

    assert contents(find_model(f"{web.url}/m")) == FILES
    assert web.asked[-2:] == [
        ("m/model.safetensors", "bytes=1000000-"),
        ("m/model.safetensors", ""),
    ]


def test_a_bucket_that_forbids_what_it_lacks_is_a_model_all_the_same(web: FileServer) -> None:
    web.hides = True
    assert contents(find_model(f"{web.url}/m")) == FILES

    with pytest.raises(CheckpointError, match=r"config\.json answers 403; set BATON_MODEL_TOKEN"):
        find_model(f"{web.url}/of_others")


def test_wrong_bytes_get_no_name(web: FileServer, cache: Path) -> None:
    web.files["m/SHA256SUMS"] = sums(FILES)
    web.files["m/model.safetensors"] = WEIGHTS[:-1] + b"?"

    with pytest.raises(CheckpointError, match=r"sha256:\w+ where sha256:\w+ is promised; it is br"):
        find_model(f"{web.url}/m")

    assert final_names(cache) == {"config.json", "tokenizer.json"}
    web.files["m/model.safetensors"] = WEIGHTS
    assert contents(find_model(f"{web.url}/m")) == FILES


def test_bytes_that_rotted_in_what_came_before_are_taken_anew(web: FileServer, cache: Path) -> None:
    web.files["m/SHA256SUMS"] = sums(FILES)
    web.cuts = [1_000_000, 0, 0, 0]
    with pytest.raises(ModelUnreachable):
        find_model(f"{web.url}/m")
    [partial] = cache.glob("*/*.partial/model.safetensors")
    partial.write_bytes(b"?" * 1_000_000)

    assert contents(find_model(f"{web.url}/m")) == FILES


def test_processes_of_a_node_fetch_it_once_between_them(web: FileServer) -> None:
    with ThreadPoolExecutor(4) as threads:
        folders = set(threads.map(find_model, [f"{web.url}/m"] * 4))

    assert len(folders) == 1
    assert sorted(web.fetched()) == [f"m/{name}" for name in sorted(FILES)]


@pytest.mark.parametrize(
    "name",
    [
        *("../../evil.safetensors", "/etc/evil", "a/../evil", ".evil"),
        *("additional_chat_templates/../a.jinja", "additional_chat_templates//a.jinja"),
    ],
)
def test_no_name_of_a_file_leads_out_of_the_folder(web: FileServer, cache: Path, name: str) -> None:
    web.files[f"m/{INDEX}"] = json.dumps({"weight_map": {"w": name}}).encode()
    with pytest.raises(CheckpointError, match="names a file outside its folder"):
        find_model(f"{web.url}/m")

    web.files["m/SHA256SUMS"] = sums({**FILES, name: b"evil"})
    del web.files[f"m/{INDEX}"]
    assert contents(find_model(f"{web.url}/m")) == FILES

    listing = {"model": "m", "version": "v", "files": [{"name": name, "size": 4}]}
    with pytest.raises(msgspec.ValidationError, match="is no name of a file"):
        msgspec.json.decode(json.dumps(listing), type=Listing)


def test_a_pickle_of_a_url_is_not_taken(web: FileServer) -> None:
    web.files["m/pytorch_model.bin"] = web.files.pop("m/model.safetensors")
    web.files["m/SHA256SUMS"] = sums({"config.json": b"{}", "pytorch_model.bin": WEIGHTS})

    with pytest.raises(CheckpointError, match="holds neither"):
        find_model(f"{web.url}/m")


def test_a_token_stays_with_its_server(web: FileServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATON_MODEL_TOKEN", "secret")
    with file_server({"w": WEIGHTS}) as elsewhere:
        del web.files["m/model.safetensors"]
        web.redirects["m/model.safetensors"] = f"{elsewhere.url}/w"
        web.redirects["m/config.json"] = f"{web.url}/m/tokenizer.json"

        assert (find_model(f"{web.url}/m") / "model.safetensors").read_bytes() == WEIGHTS

        assert set(elsewhere.authorizations) == {""}
        assert set(web.authorizations) == {"Bearer secret"}


def test_a_token_is_shown_to_the_server_that_it_is_for(
    web: FileServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("BATON_MODEL_TOKEN", "secret")
    monkeypatch.setenv("BATON_MODEL_TOKEN_HOST", web.url.removeprefix("http://"))
    with file_server({f"d/{name}": data for name, data in FILES.items()}) as of_the_draft:
        find_model(f"{web.url}/m")
        find_model(f"{of_the_draft.url}/d")

        assert set(web.authorizations) == {"Bearer secret"}
        assert set(of_the_draft.authorizations) == {""}
        assert f"is not sent for {of_the_draft.url}/d: it is for" in caplog.text


def test_a_token_is_shown_to_nobody_on_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATON_MODEL_TOKEN", "secret")
    assert token_headers("https://far/m") and not token_headers("http://far/m")

    monkeypatch.setenv("BATON_MODEL_TOKEN_HOST", "FAR")
    assert token_headers("http://far:8000/m") and not token_headers("https://far.evil/m")


def test_credentials_in_a_url_are_refused_before_anybody_hears_of_them() -> None:
    for model in ("https://me:word@host/m", "s3://key:word@bucket/m", "https://host/m?sig=word"):
        with pytest.raises(InvalidConfig, match="in the environment of the nodes") as refusal:
            parse_config({"model": model})
        assert "word" not in str(refusal.value).replace("password", "")
    assert parse_config({"model": "hf://org/name@v1"}).model_name == "name"
    assert parse_config({"model": "s3://bucket/llama@2/"}).model_name == "llama@2"


@pytest.mark.parametrize("scheme", ["memory", "file"])
def test_any_file_system_will_do(
    cache: Path, tmp_path: Path, scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"{scheme}://{tmp_path}/far"
    fs, root = fsspec.core.url_to_fs(url)
    fs.makedirs(f"{root}/sub")
    fs.makedirs(f"{root}/additional_chat_templates")
    files = {**FILES, **TEMPLATES}
    for name, data in {**files, "SHA256SUMS": sums(FILES), "sub/x.json": b""}.items():
        fs.pipe_file(f"{root}/{name}", data)

    folder = find_model(url)

    assert contents(folder) == files
    with pytest.raises(CheckpointError, match=r"FileNotFoundError: .*correct the URL"):
        find_model(f"{url}/nowhere")
    with pytest.raises(CheckpointError, match=r"install the driver|give a model folder"):
        find_model("nosuch://bucket/m")


def test_a_folder_of_links_is_fetched_as_what_they_lead_to(cache: Path, far: Path) -> None:
    links = far.parent / "snapshot"
    links.mkdir()
    for name in FILES:
        os.utime(far / name, (1e9, 1e9))
        (links / name).symlink_to(far / name)

    assert contents(find_model(f"file://{links}")) == FILES


def test_too_little_room_is_told_before_the_first_byte(
    web: FileServer, monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    free = os.statvfs_result((1, 1, 0, 0, 0, 0, 0, 0, 0, 255))
    with monkeypatch.context() as patch:
        patch.setattr("os.statvfs", lambda path: free)
        with pytest.raises(CheckpointError, match=r"where 0\.00 GB are free; make room .*BATON_MO"):
            find_model(f"{web.url}/m")
    assert web.fetched() == []
