"""The chart's test: gateways are reachable through their Service, accept requests, and answer one.

Run by `helm test` with the image's Python. If gateways need a key and none is given
(BATON_API_KEY), only requests without a key are tried.
"""

import json
import os
import ssl
import sys
from urllib.error import HTTPError
from urllib.request import Request, urlopen

TIMEOUT_S = 120
GENERATE, EMBED = "/v1/completions", "/v1/embeddings"


def ask(path, body=None):
    headers = {"content-type": "application/json"}
    if KEY:
        headers["authorization"] = f"Bearer {KEY}"
    data = None if body is None else json.dumps(body).encode()
    # Its certificate bears the name that clients use, and not that of the Service.
    context = ssl._create_unverified_context()
    asked = Request(URL + path, data=data, headers=headers)
    with urlopen(asked, timeout=TIMEOUT_S, context=context) as answer:
        return json.loads(answer.read())


def probe_model(model):
    """Request a completion, or an embedding from an embedding model."""
    try:
        answer = ask(GENERATE, {"model": model, "prompt": "Hello", "max_tokens": 4})
        return answer["usage"]
    except HTTPError as error:
        if error.code not in (400, 404):
            raise
        return ask(EMBED, {"model": model, "input": "Hello"})["usage"]


def main():
    print("ready:", json.dumps(ask("/ready")))
    if WANTS_KEY and not KEY:
        print("keys are asked for: name a Secret with one in test.apiKey, and a request is made")
        return
    models = [one["id"] for one in ask("/v1/models")["data"]]
    print("models:", ", ".join(models))
    print("answered:", json.dumps(probe_model(models[0])))


URL = sys.argv[1]
WANTS_KEY = "--wants-key" in sys.argv
KEY = os.environ.get("BATON_API_KEY", "").strip()

try:
    main()
except HTTPError as error:
    sys.exit(f"{error.url}: {error.code} {error.read().decode(errors='replace')}")
