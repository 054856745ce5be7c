/* The console: which view is shown, the key, and how the gateway is. */

import { Api } from "./api.js";
import { byId } from "./elements.js";
import { Playground } from "./playground.js";
import { Replicas } from "./replicas.js";
import { Requests } from "./requests.js";

const VIEWS = ["playground", "request", "replicas"];
const READINESS_PERIOD_MS = 10_000;

let firstView = VIEWS[0];
const api = new Api();
const requests = new Requests(api);
const replicas = new Replicas(api);
const playground = new Playground(api, (answer) => requests.add(answer));

/** The address says which view: #playground, #request/ID, #replicas. */
function show() {
  const [name, ...rest] = location.hash.slice(1).split("/");
  if (name === "main") return; // the link to skip to the content
  const view = VIEWS.includes(name) ? name : firstView;
  for (const one of VIEWS) {
    byId(one).hidden = one !== view;
    if (one === view) navLink(one).setAttribute("aria-current", "page");
    else navLink(one).removeAttribute("aria-current");
  }
  document.title = `${byId(`${view}-title`).textContent} - Baton console`;
  replicas.setShown(view === "replicas");
  if (view === "request" && rest.length) requests.show(decoded(rest.join("/")));
}

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

/** The public port has no replicas to tell of, and the admin port answers no prompts. */
async function findViews() {
  const links = (await api.ask(""))?.links ?? {};
  if (links.status && !links.models) {
    firstView = "replicas";
    navLink("playground").hidden = true;
  }
  show();
  tellServed();
  if (links.ready) tellReadiness();
}

function navLink(view) {
  return document.querySelector(`nav a[href="#${view}"]`);
}

async function tellServed() {
  if (firstView !== VIEWS[0]) return; // nor does it tell of models
  try {
    const { data } = await api.get("v1/models");
    const names = data.map(({ id }) => id);
    byId("served").textContent = `serves ${names.join(", ")}`;
    playground.offer(names);
  } catch {
    byId("served").textContent = api.hasKey ? "" : "console"; // its model is told to who has a key
  }
}

async function tellReadiness() {
  if (!document.hidden) {
    const answer = await api.ask("ready");
    const missing = (answer?.missing ?? []).map((one) => `${one.role} ${one.ready} of ${one.wanted}`);
    const said = answer ? [answer.reason ?? answer.status, ...missing].join("; ") : "cannot be reached";
    if (byId("readiness").textContent !== said) byId("readiness").textContent = said;
  }
  setTimeout(tellReadiness, READINESS_PERIOD_MS);
}

const dialog = byId("key-dialog");
byId("open-key").addEventListener("click", () => dialog.showModal());
byId("close-key").addEventListener("click", () => dialog.close());
byId("key-form").addEventListener("submit", () => {
  api.useKey(byId("key").value);
  byId("key").value = "";
  byId("open-key").textContent = api.hasKey ? "API key: given" : "API key";
  tellServed();
  show();
});

window.addEventListener("hashchange", show);
findViews();
