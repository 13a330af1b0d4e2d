"use strict";
// Opens a hand-over link. The secret is behind the # of the address, which a browser sends to nobody; it is taken out
// of the address bar at once, so that the browser's history does not keep it. Only a press of the button spends it.
(() => {
  const FILES = [
    ["certificate", "certificate.json", "application/json", "the certificate, as it was signed"],
    ["page", "certificate.html", "text/html", "the certificate for reading"],
    ["artefacts", "certificate.list.jsonl", "application/jsonl", "the list of what was erased"],
    ["opening", "opening.json", "application/json", "what shows that it is about you; give it to nobody else"],
    ["public_key", "lethe.pub.pem", "application/x-pem-file", "the public key that comes with it"],
  ];
  const byId = (id) => document.getElementById(id);
  const match = /^#([0-9a-f-]{36})\.([A-Za-z0-9_-]{20,})$/.exec(location.hash);

  function say(text, standing) {
    const paragraph = document.createElement("p");
    paragraph.textContent = text;
    byId("outcome").replaceChildren(paragraph);
    byId("outcome").className = standing;
  }

  function offer(handed) {
    for (const [field, name, type, what] of FILES) {
      const item = document.createElement("li");
      if (handed[field] === null) {
        item.textContent = `${name}: not handed over with this link`;
      } else {
        const link = document.createElement("a");
        link.href = URL.createObjectURL(new Blob([handed[field]], { type }));
        link.download = name;
        link.textContent = name;
        item.append(link, `: ${what}`);
      }
      byId("files").append(item);
    }
  }

  async function open(id, secret) {
    byId("open").disabled = true;
    say("Opening …", "unknown");
    let answer;
    try {
      answer = await fetch(`/v1/hand-overs/${id}:open`, {
        method: "POST",
        headers: { "Content-Type": "application/json" },
        body: JSON.stringify({ secret }),
        credentials: "omit",
      });
    } catch {
      say("The coordinator cannot be reached. Look whether you are online, and press the button again.", "failed");
      byId("open").disabled = false;
      return;
    }
    let content = {};
    try {
      content = await answer.json();
    } catch { /* said below */ }
    if (answer.ok) {
      say("Handed over. Save every file now: this page cannot show them again.", "proved");
      offer(content);
    } else {
      say(content.detail || `The coordinator answered ${answer.status}.`, "failed");
      byId("open").disabled = answer.status < 500 && answer.status !== 429;
    }
  }

  if (match === null) {
    say("This address is not a whole hand-over link: copy it again, up to its last character.", "failed");
    return;
  }
  history.replaceState(null, "", location.pathname);
  say("Ready. Nothing is spent until you press the button.", "unknown");
  byId("open").disabled = false;
  byId("open").addEventListener("click", () => open(match[1], match[2]));
})();
